"""What Prometheus scrapes: of a place of topics, of a bucket's ledger, and of a server.

    kafka_server_brokertopicmetrics_messagesin_total 1200.0
    kafka_consumergroup_lag{consumergroup="billing",partition="0",topic="orders"} 2.0

Names are chosen by one rule, so that dashboards and alerts for Kafka find what they know:

    what a broker's MBean has     the name that the JMX exporter's example for Kafka gives it, in lower case:
                                  kafka_DOMAIN_TYPE_NAME, with _total in place of PerSec, and the MBean's labels
    offsets and lag of groups     kafka_consumergroup_..., as kafka_exporter has them; brokers have no such MBean
    all else                      kbatch_..., with units as Prometheus wants them: seconds and bytes

A total is one of this process, since it has the server or the cluster; a commit's number is the place's own. What is
not known, such as the lag of a group that has committed nothing, is left out.

A scrape of a bucket lists none of its data: it reads what is new in the ledger, and lists two entries and the newest
checkpoints. What of its objects takes a list of them all is only in `kbatch describe --prometheus`.
Nothing is written, not even to see whether a log dir can be: a write for each disk and scrape tells little more.

Source: https://github.com/prometheus/jmx_exporter, examples/kafka-2_0_0.yml; Kafka docs/operations/monitoring.md;
https://github.com/danielqsj/kafka_exporter; https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

import fnmatch
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from spark_kbatch.errors import INSTALL_EXTRA, ConfigError, KBatchError
from spark_kbatch.files import Files
from spark_kbatch.opening.stores import store_of
from spark_kbatch.terminal import visible

if TYPE_CHECKING:
    from prometheus_client import Metric

    from spark_kbatch import Cluster, Server
    from spark_kbatch.bucket.maintenance import BucketDescription

logger = logging.getLogger(__name__)


class Described(NamedTuple):
    """A metric: its kind, the names of its labels, what it means, and where `metrics` of a server or cluster has it.

    In its path "*" is any key, which is a label's value, and "*-*" the values of two labels.
    """

    kind: str  # gauge, counter or histogram
    labels: str  # with spaces between them, as in the path
    text: str
    path: str = ""


OF_SERVERS = {
    "kafka_network_requestmetrics_requests_total": Described(
        "counter",
        "request",
        "Requests that were answered, by their kind.",
        "RequestMetrics * RequestsPerSec Count",
    ),
    "kafka_network_requestmetrics_errors_total": Described(
        "counter",
        "request error",
        "Errors in answers, by Kafka's name; one for each partition or topic that has one. NONE is not counted.",
        "RequestMetrics * ErrorsPerSec * Count",
    ),
    "kafka_network_requestmetrics_totaltimems": Described(
        "histogram",
        "request",
        "Milliseconds from a request to its answer. A Fetch waits for records, a JoinGroup for members.",
        "RequestMetrics * TotalTimeMs",
    ),
    "kafka_server_brokertopicmetrics_messagesin_total": Described(
        "counter", "", "Records that were appended.", "BrokerTopicMetrics MessagesInPerSec Count"
    ),
    "kafka_server_brokertopicmetrics_bytesin_total": Described(
        "counter",
        "",
        "Bytes of batches that were appended.",
        "BrokerTopicMetrics BytesInPerSec Count",
    ),
    "kafka_server_brokertopicmetrics_bytesout_total": Described(
        "counter", "", "Bytes of batches that were read.", "BrokerTopicMetrics BytesOutPerSec Count"
    ),
    "kafka_server_brokertopicmetrics_totalproducerequests_total": Described(
        "counter",
        "",
        "Appends, one for each partition of a request.",
        "BrokerTopicMetrics TotalProduceRequestsPerSec Count",
    ),
    "kafka_server_brokertopicmetrics_failedproducerequests_total": Described(
        "counter",
        "",
        "Appends that failed.",
        "BrokerTopicMetrics FailedProduceRequestsPerSec Count",
    ),
    "kafka_server_brokertopicmetrics_totalfetchrequests_total": Described(
        "counter",
        "",
        "Reads, one for each partition of a request.",
        "BrokerTopicMetrics TotalFetchRequestsPerSec Count",
    ),
    "kafka_server_socket_server_metrics_connection_creation_total": Described(
        "counter",
        "",
        "Connections that were accepted.",
        "socket-server-metrics connection-creation-total",
    ),
    "kafka_server_socket_server_metrics_connection_count": Described(
        "gauge", "", "Connections that are open.", "socket-server-metrics connection-count"
    ),
    "kafka_server_delayedoperationpurgatory_purgatorysize": Described(
        "gauge",
        "delayedOperation",
        "Requests that wait: of Fetch for records, of Produce for replicas in sync.",
        "DelayedOperationPurgatory * PurgatorySize",
    ),
}
OF_FOLDERS = {
    "kafka_server_replicamanager_partitioncount": Described(
        "gauge", "", "Partitions, those of internal topics too.", "ReplicaManager PartitionCount"
    ),
    "kafka_server_replicamanager_underreplicatedpartitions": Described(
        "gauge",
        "",
        "Partitions with a replica that is not in sync.",
        "ReplicaManager UnderReplicatedPartitions",
    ),
    "kafka_server_replicamanager_underminisrpartitioncount": Described(
        "gauge",
        "",
        "Partitions with fewer replicas in sync than min.insync.replicas: acks=all is refused.",
        "ReplicaManager UnderMinIsrPartitionCount",
    ),
    "kafka_server_replicamanager_offlinereplicacount": Described(
        "gauge", "", "Replicas that cannot be used.", "ReplicaManager OfflineReplicaCount"
    ),
    "kafka_controller_kafkacontroller_globaltopiccount": Described(
        "gauge", "", "Topics, internal ones too.", "KafkaController GlobalTopicCount"
    ),
    "kafka_controller_kafkacontroller_globalpartitioncount": Described(
        "gauge", "", "Partitions of all topics.", "KafkaController GlobalPartitionCount"
    ),
    "kafka_controller_kafkacontroller_offlinepartitionscount": Described(
        "gauge",
        "",
        "Partitions without a replica that can be used: they can be neither read nor written.",
        "KafkaController OfflinePartitionsCount",
    ),
    "kafka_log_logmanager_offlinelogdirectorycount": Described(
        "gauge", "", "Log dirs that cannot be used.", "LogManager OfflineLogDirectoryCount"
    ),
    "kbatch_last_commit_timestamp_seconds": Described(
        "gauge", "", "Time of the newest commit of a job."
    ),
    "kbatch_last_commit_records": Described("gauge", "", "Records of the newest commit."),
    "kbatch_last_commit_bytes": Described("gauge", "", "Bytes of the newest commit."),
    "kbatch_commits_total": Described("counter", "", "Commits of jobs, ever."),
    "kafka_log_log_numlogsegments": Described(
        "gauge", "topic partition", "Segments of a partition's log.", "Log *-* NumLogSegments"
    ),
    "kafka_log_logmanager_logdirectoryoffline": Described(
        "gauge", "logDirectory", "1 for a log dir that cannot be used, 0 for others."
    ),
    "kbatch_log_dir_writable": Described(
        "gauge",
        "logDirectory",
        "1 for a log dir that can be written, 0 for one that is full, read-only or offline.",
    ),
    "kbatch_log_dir_free_bytes": Described(
        "gauge", "logDirectory", "Bytes that are left on a log dir's disk."
    ),
    "kbatch_log_dir_size_bytes": Described("gauge", "logDirectory", "Bytes of a log dir's disk."),
    "kbatch_log_dir_staged_bytes": Described(
        "gauge", "logDirectory", "Bytes that jobs have staged beside a log dir, and not committed."
    ),
}
OF_PLACES = {
    "kafka_log_log_logstartoffset": Described(
        "gauge",
        "topic partition",
        "First offset of a partition that is kept.",
        "Log *-* LogStartOffset",
    ),
    "kafka_log_log_logendoffset": Described(
        "gauge",
        "topic partition",
        "Offset of the next record of a partition.",
        "Log *-* LogEndOffset",
    ),
    "kafka_log_log_size": Described(
        "gauge",
        "topic partition",
        "Bytes of a partition's batches; not of a real cluster, and of a bucket as far as few requests tell.",
        "Log *-* Size",
    ),
    "kafka_consumergroup_current_offset": Described(
        "gauge", "consumergroup topic partition", "Offset that a consumer group has committed."
    ),
    "kafka_consumergroup_lag": Described(
        "gauge", "consumergroup topic partition", "Offsets from there to the end."
    ),
    "kafka_consumergroup_members": Described(
        "gauge", "consumergroup", "Members of a consumer group."
    ),
    "kbatch_scrape_failed": Described(
        "gauge",
        "part",
        "1 if a part of the place could not be read, and is left out; 0 if it could.",
    ),
}
OF_BUCKETS = {
    "kbatch_bucket_entries": Described(
        "gauge", "", "Entries of the ledger: each append, commit and change of a topic is one."
    ),
    "kbatch_bucket_entries_since_checkpoint": Described(
        "gauge", "", "Entries after the newest checkpoint."
    ),
    "kbatch_bucket_last_entry_timestamp_seconds": Described(
        "gauge", "", "Time of the newest entry."
    ),
    "kbatch_bucket_unmaintained_since_timestamp_seconds": Described(
        "gauge", "", "Time of the oldest entry after the horizon."
    ),
    "kbatch_bucket_clock_ahead_seconds": Described(
        "gauge", "", "How far the clock of the last writer is ahead of the store's."
    ),
    "kbatch_bucket_small_pieces": Described(
        "gauge", "", "Small pieces of the partition that has the most; only of `kbatch describe`."
    ),
    "kbatch_bucket_objects": Described(
        "gauge",
        "state",
        "Objects that are read, wait to be deleted, or are the ledger's own; only of `kbatch describe`.",
    ),
    "kbatch_bucket_bytes": Described(
        "gauge", "state", "Bytes of these objects; only of `kbatch describe`."
    ),
}
METRICS: Mapping[str, Described] = {**OF_SERVERS, **OF_FOLDERS, **OF_PLACES, **OF_BUCKETS}

# Values by metric, and the values of the labels that these have.
_Values: TypeAlias = Iterator[tuple[Mapping[str, Any], Sequence[object]]]


def _of_metrics(metrics: Mapping[str, Any]) -> _Values:
    """Yield what `Server.metrics` or `Cluster.metrics` has."""
    for name, one in METRICS.items():
        for labels, value in _at(metrics, one.path.split()) if one.path else ():
            yield {name: value}, labels


def _at(
    found: Any, path: Sequence[str], labels: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what is at a path, and the labels that are part of the path."""
    if not path:
        yield labels, found
        return
    pattern = path[0]
    for key in fnmatch.filter(found, pattern):
        of_key = key.rsplit("-", pattern.count("-")) if "*" in pattern else ()
        yield from _at(found[key], path[1:], (*labels, *of_key))


def _of_partitions(cluster: Cluster) -> _Values:
    for one in cluster.describe(cluster.topic_names()):
        if not one.error:
            values = {
                "kafka_log_log_logstartoffset": one.offsets.log_start_offset,
                "kafka_log_log_logendoffset": one.offsets.log_end_offset,
                "kafka_log_log_size": one.size_in_bytes if one.size_in_bytes >= 0 else None,
            }
            yield values, one.topic_partition


def _of_groups(cluster: Cluster) -> _Values:
    for group in cluster.groups():
        yield {"kafka_consumergroup_members": len(group.members)}, [group.group_id]
        for tp, one in group.offsets.items():
            values = {
                "kafka_consumergroup_current_offset": one.committed_offset,
                "kafka_consumergroup_lag": one.lag,
            }
            yield values, (group.group_id, *tp)


def _of_log_dirs(disks: Any) -> _Values:
    for one in disks.log_dirs(writes=False):
        is_offline = one.state == "offline"
        total, usable = (0, 0) if is_offline else Files().disk_space(Path(one.path))
        values = {
            "kafka_log_logmanager_logdirectoryoffline": int(is_offline),
            "kbatch_log_dir_writable": int(one.state == "online"),
            "kbatch_log_dir_free_bytes": usable if total else None,
            "kbatch_log_dir_size_bytes": total or None,
            "kbatch_log_dir_staged_bytes": one.staged_size_in_bytes,
        }
        yield values, [one.path]


def _of_commits(cluster: Cluster) -> _Values:
    """Yield the number of commits, and the newest one."""
    numbers = cluster.commit_numbers()
    yield {"kbatch_commits_total": numbers.stop}, ()
    for newest in cluster.history(numbers=numbers[-1:]):
        values = {
            "kbatch_last_commit_timestamp_seconds": newest.time_ms / 1000,
            "kbatch_last_commit_records": newest.records_count,
            "kbatch_last_commit_bytes": newest.size_in_bytes,
        }
        yield values, ()


def _of_ledger(ledger: Any) -> _Values:
    """Yield how long a ledger is, and how old."""
    from spark_kbatch.bucket.maintenance import describe_ledger  # noqa: PLC0415  only for a bucket

    found = describe_ledger(ledger)
    values = {
        "kbatch_bucket_entries": found.entries,
        "kbatch_bucket_entries_since_checkpoint": found.entries_since_checkpoint,
        "kbatch_bucket_last_entry_timestamp_seconds": found.last_entry_ms / 1000,
        "kbatch_bucket_unmaintained_since_timestamp_seconds": found.unmaintained_since_ms / 1000,
        "kbatch_bucket_clock_ahead_seconds": found.clock_ahead_ms / 1000,
    }
    yield values, ()


def _of_objects(bucket: BucketDescription) -> _Values:
    yield {"kbatch_bucket_small_pieces": bucket.small_extents}, ()
    states = {"read": bucket.referenced, "waiting": bucket.waiting, "ledger": bucket.ledger}
    for state, (objects, size) in states.items():
        yield {"kbatch_bucket_objects": objects, "kbatch_bucket_bytes": size}, [state]


class Exposition:
    """What Prometheus scrapes of a place, and of the server in this process, if there is one. Not thread-safe.

    text = Exposition(cluster, server=server).text()
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        bucket: BucketDescription | None = None,
        server: Server | None = None,
    ) -> None:
        """Set up the metrics of a place.

        Args:
            cluster: the place.
            bucket: of a bucket whose objects were all listed, as `kbatch describe` does; for one look.
            server: that serves the place; its process's memory, CPU time and open files are told too.

        Raises:
            ConfigError: the package prometheus-client is missing.
        """
        try:
            import prometheus_client.core  # noqa: PLC0415  few commands need it
        except ModuleNotFoundError:
            raise ConfigError(
                f"metrics for Prometheus need the package prometheus-client: {INSTALL_EXTRA.format('metrics')}"
            ) from None
        self._client, self._cluster = prometheus_client, cluster
        self._server, self._bucket = server, bucket
        store, part = store_of(cluster), functools.partial
        self._parts: dict[str, Callable[[], _Values]] = {}  # those that may fail by themselves
        if cluster.has("disks"):
            self._parts["log dirs"] = part(_of_log_dirs, store.disks)
            self._parts["commits"] = part(_of_commits, cluster)
        if store.ledger is not None:
            self._parts["ledger"] = part(_of_ledger, store.ledger)
        if cluster.has("groups"):
            self._parts["groups"] = part(_of_groups, cluster)
        self._told: dict[str, str] = {}  # why a part could not be read last time
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(self)
        if server is not None:
            prometheus_client.ProcessCollector(registry=self._registry)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as of now, as a collector of prometheus_client; raises if no topics can be read."""
        families = {
            name: getattr(self._client.core, f"{one.kind.capitalize()}MetricFamily")(
                name, one.text, labels=one.labels.split()
            )
            for name, one in METRICS.items()
        }
        _add(families, self._whole())
        for part, find in self._parts.items():
            why = ""
            try:
                _add(families, find())
            except (KBatchError, OSError) as error:
                why = str(error)
            if why and self._told.get(part) != why:
                logger.warning("metrics of %s have no %s: %s", self._cluster.address, part, why)
            self._told[part] = why
            families["kbatch_scrape_failed"].add_metric([part], int(bool(why)))
        return [one for one in families.values() if one.samples]

    def _whole(self) -> _Values:
        """Yield what is told all together, or not at all."""
        if self._server is not None:
            yield from _of_metrics(self._server.metrics())
        if self._cluster.has("disks"):
            yield from _of_metrics(self._cluster.metrics())
        else:
            yield from _of_partitions(self._cluster)
        if self._bucket is not None:
            yield from _of_objects(self._bucket)

    def text(self) -> tuple[str, bytes]:
        """Return the content type and the text.

        Raises as `Cluster.metrics` and `Cluster.describe`.
        """
        return self._client.CONTENT_TYPE_LATEST, self._client.generate_latest(self._registry)


def _add(families: Mapping[str, Any], found: _Values) -> None:
    """Add values but for those that are None; of a histogram, its buckets and sum."""
    for values, labels in found:
        shown = [visible(str(one)) for one in labels]
        for name, value in values.items():
            if METRICS[name].kind == "histogram":
                families[name].add_metric(shown, [*value["AtMost"].items()], value["Sum"])
            elif value is not None:
                families[name].add_metric(shown, value)
