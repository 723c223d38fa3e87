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
checkpoints. So it has no sizes of partitions; `kbatch describe --prometheus`, which looks at everything once, has them.
Nothing is written, not even to see whether a log dir can be: a write for each disk and scrape tells little more.

Source: https://github.com/prometheus/jmx_exporter, examples/kafka-2_0_0.yml; Kafka docs/operations/monitoring.md;
https://github.com/danielqsj/kafka_exporter; https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import INSTALL_EXTRA, ConfigError, KBatchError, RequestTimedOutError
from spark_kbatch.opening.stores import store_of
from spark_kbatch.terminal import visible

if TYPE_CHECKING:
    from prometheus_client import Metric

    from spark_kbatch import Cluster, Server
    from spark_kbatch.bucket.maintenance import BucketDescription, LedgerDescription
    from spark_kbatch.store.commits import Commit

logger = logging.getLogger(__name__)

_SHARED_FOR_S = 5.0  # by scrapes
_WAITS_FOR_S = 5.0  # for another scrape; Prometheus gives up after ten
_COMMITS = "__commits-0"  # the log whose offsets are the numbers of a folder's commits


class Described(NamedTuple):
    """A metric: its kind, the names of its labels, and what it means."""

    kind: str  # gauge, counter or histogram
    labels: tuple[str, ...]
    text: str


def _described(kind: str, labels: str, texts: Mapping[str, str]) -> dict[str, Described]:
    return {name: Described(kind, tuple(labels.split()), text) for name, text in texts.items()}


OF_SERVERS = {
    **_described(
        "counter",
        "request",
        {
            "kafka_network_requestmetrics_requests_total": "Requests that were answered, by their kind."
        },
    ),
    **_described(
        "counter",
        "request error",
        {
            "kafka_network_requestmetrics_errors_total": "Errors in answers, by Kafka's name; one for each "
            "partition or topic that has one. NONE is not counted."
        },
    ),
    **_described(
        "histogram",
        "request",
        {
            "kafka_network_requestmetrics_totaltimems": "Milliseconds from a request to its answer. A Fetch waits "
            "for records, a JoinGroup for members."
        },
    ),
    **_described(
        "counter",
        "",
        {
            "kafka_server_brokertopicmetrics_messagesin_total": "Records that were appended.",
            "kafka_server_brokertopicmetrics_bytesin_total": "Bytes of batches that were appended.",
            "kafka_server_brokertopicmetrics_bytesout_total": "Bytes of batches that were read.",
            "kafka_server_brokertopicmetrics_totalproducerequests_total": "Appends, one for each partition of a request.",
            "kafka_server_brokertopicmetrics_failedproducerequests_total": "Appends that failed.",
            "kafka_server_brokertopicmetrics_totalfetchrequests_total": "Reads, one for each partition of a request.",
            "kafka_server_socket_server_metrics_connection_creation_total": "Connections that were accepted.",
        },
    ),
    **_described(
        "gauge",
        "",
        {"kafka_server_socket_server_metrics_connection_count": "Connections that are open."},
    ),
    **_described(
        "gauge",
        "delayedOperation",
        {
            "kafka_server_delayedoperationpurgatory_purgatorysize": "Requests that wait: of Fetch for records, of "
            "Produce for replicas in sync."
        },
    ),
}
OF_FOLDERS = {
    **_described(
        "gauge",
        "",
        {
            "kafka_server_replicamanager_partitioncount": "Partitions, those of internal topics too.",
            "kafka_server_replicamanager_underreplicatedpartitions": "Partitions with a replica that is not in sync.",
            "kafka_server_replicamanager_underminisrpartitioncount": "Partitions with fewer replicas in sync than "
            "min.insync.replicas: acks=all is refused.",
            "kafka_server_replicamanager_offlinereplicacount": "Replicas that cannot be used.",
            "kafka_controller_kafkacontroller_globaltopiccount": "Topics, internal ones too.",
            "kafka_controller_kafkacontroller_globalpartitioncount": "Partitions of all topics.",
            "kafka_controller_kafkacontroller_offlinepartitionscount": "Partitions without a replica that can be used: "
            "they can be neither read nor written.",
            "kafka_log_logmanager_offlinelogdirectorycount": "Log dirs that cannot be used.",
            "kbatch_last_commit_timestamp_seconds": "Time of the newest commit of a job.",
            "kbatch_last_commit_records": "Records of the newest commit.",
            "kbatch_last_commit_bytes": "Bytes of the newest commit.",
        },
    ),
    **_described("counter", "", {"kbatch_commits_total": "Commits of jobs, ever."}),
    **_described(
        "gauge",
        "topic partition",
        {"kafka_log_log_numlogsegments": "Segments of a partition's log."},
    ),
    **_described(
        "gauge",
        "logDirectory",
        {
            "kafka_log_logmanager_logdirectoryoffline": "1 for a log dir that cannot be used, 0 for others.",
            "kbatch_log_dir_writable": "1 for a log dir that can be written, 0 for one that is full, read-only or "
            "offline.",
            "kbatch_log_dir_free_bytes": "Bytes that are left on a log dir's disk.",
            "kbatch_log_dir_size_bytes": "Bytes of a log dir's disk.",
            "kbatch_log_dir_staged_bytes": "Bytes that jobs have staged beside a log dir, and not committed.",
        },
    ),
}
OF_PLACES = {
    **_described(
        "gauge",
        "topic partition",
        {
            "kafka_log_log_logstartoffset": "First offset of a partition that is kept.",
            "kafka_log_log_logendoffset": "Offset of the next record of a partition.",
            "kafka_log_log_size": "Bytes of a partition's batches; not of a real cluster, nor where a bucket is scraped.",
        },
    ),
    **_described(
        "gauge",
        "consumergroup topic partition",
        {
            "kafka_consumergroup_current_offset": "Offset that a consumer group has committed.",
            "kafka_consumergroup_lag": "Records from there to the end.",
        },
    ),
    **_described(
        "gauge", "consumergroup", {"kafka_consumergroup_members": "Members of a consumer group."}
    ),
    **_described(
        "gauge",
        "part",
        {
            "kbatch_scrape_failed": "1 if a part of the place could not be read, and is left out; 0 if it could."
        },
    ),
}
OF_BUCKETS = {
    **_described(
        "gauge",
        "",
        {
            "kbatch_bucket_entries": "Entries of the ledger: each append, commit and change of a topic is one.",
            "kbatch_bucket_entries_since_checkpoint": "Entries after the newest checkpoint.",
            "kbatch_bucket_last_entry_timestamp_seconds": "Time of the newest entry.",
            "kbatch_bucket_unmaintained_since_timestamp_seconds": "Time of the oldest entry after the horizon.",
            "kbatch_bucket_clock_ahead_seconds": "How far the clock of the last writer is ahead of the store's.",
            "kbatch_bucket_small_pieces": "Small pieces of the partition that has the most; only of `kbatch describe`.",
        },
    ),
    **_described(
        "gauge",
        "state",
        {
            "kbatch_bucket_objects": "Objects that are read, wait to be deleted, or are the ledger's own; only of "
            "`kbatch describe`.",
            "kbatch_bucket_bytes": "Bytes of these objects; only of `kbatch describe`.",
        },
    ),
}
METRICS: Mapping[str, Described] = {**OF_SERVERS, **OF_FOLDERS, **OF_PLACES, **OF_BUCKETS}

_MBEANS = {"ReplicaManager": "server", "KafkaController": "controller", "LogManager": "log"}


def _mbean(domain: str, kind: str, name: str) -> str:
    """Return how the JMX exporter's example for Kafka names an MBean's value."""
    name = f"{name.removesuffix('PerSec')}_total" if name.endswith("PerSec") else name
    return f"kafka_{domain}_{kind}_{name}".replace("-", "_").lower()


class _Families:
    """Metrics with their values, as one scrape has them."""

    def __init__(self, client: ModuleType) -> None:
        self._core = client.core
        self.found: dict[str, Any] = {}

    def add(self, values: Mapping[str, Any], *labels: str | int) -> None:
        """Add values by name but for those that are None; of a histogram, its buckets and sum."""
        shown = [visible(str(one)) for one in labels]
        for name, value in values.items():
            if value is None:
                continue
            if name not in self.found:
                kind, of, text = METRICS[name]
                make = getattr(self._core, f"{kind.capitalize()}MetricFamily")
                self.found[name] = make(name, text, labels=of)
            self.found[name].add_metric(shown, *(value if isinstance(value, tuple) else (value,)))


_Add: TypeAlias = Callable[[_Families], None]


class _PlaceMetrics:
    """Metrics of a place, by its public `Cluster`."""

    def __init__(self, cluster: Cluster, bucket: BucketDescription | None) -> None:
        self._cluster, self._bucket = cluster, bucket
        self._newest: Commit | None = None
        self._told: dict[str, str] = {}  # errors, by part

    def add_to(self, found: _Families) -> None:
        """Add the metrics as of now; raises if not even the topics can be read."""
        parts: dict[str, _Add] = {}
        if self._cluster.has("disks"):
            count = self._add_logs(found)
            parts["log dirs"] = self._add_log_dirs
            parts["commits"] = lambda found: self._add_commits(found, count)
        elif self._bucket is not None or store_of(self._cluster).ledger is None:
            self._add_partitions(found)
        else:
            self._add_offsets(found)
            parts["ledger"] = self._add_ledger
        if self._cluster.has("groups"):
            parts["groups"] = self._add_groups
        if self._bucket is not None:
            _add_bucket(found, self._bucket)
        for part, add in parts.items():
            found.add({"kbatch_scrape_failed": int(not self._is_added(found, part, add))}, part)

    def _is_added(self, found: _Families, part: str, add: _Add) -> bool:
        """Add a part of the place, or log why it cannot be read, once for each reason."""
        try:
            add(found)
        except (KBatchError, OSError) as error:
            if self._told.get(part) != str(error):
                self._told[part] = str(error)
                logger.warning("metrics of %s have no %s: %s", self._cluster.address, part, error)
            return False
        self._told.pop(part, None)
        return True

    def _add_logs(self, found: _Families) -> int | None:
        """Add what the cluster's own metrics have; return how many commits there are, if that can be read."""
        metrics = self._cluster.metrics()
        for kind, domain in _MBEANS.items():
            found.add({_mbean(domain, kind, name): value for name, value in metrics[kind].items()})
        for text, log in metrics["Log"].items():
            topic, _, partition = text.rpartition("-")
            values = {_mbean("log", "Log", name): value for name, value in log.items()}
            found.add(values, topic, partition)
        count: int | None = metrics["Log"].get(_COMMITS, {}).get("LogEndOffset")
        return count

    def _add_partitions(self, found: _Families) -> None:
        for one in self._cluster.describe(self._cluster.topic_names()):
            if not one.error:
                values = {
                    "kafka_log_log_logstartoffset": one.offsets.log_start_offset,
                    "kafka_log_log_logendoffset": one.offsets.log_end_offset,
                    # Brokers do not tell it.
                    "kafka_log_log_size": one.size_in_bytes if one.size_in_bytes >= 0 else None,
                }
                found.add(values, *one.topic_partition)

    def _add_offsets(self, found: _Families) -> None:
        """Add starts and ends of a bucket's partitions, which its ledger alone tells."""
        every = [(one.name, at) for one in self._cluster.topics() for at in range(one.partitions)]
        for name, bound in (("start", "earliest"), ("end", "latest")):
            for tp, one in self._cluster.list_offsets(dict.fromkeys(every, bound)).items():
                found.add({f"kafka_log_log_log{name}offset": one and one.offset}, *tp)

    def _add_ledger(self, found: _Families) -> None:
        from spark_kbatch.bucket.maintenance import describe_ledger  # noqa: PLC0415  only for a bucket

        _add_lengths(found, describe_ledger(store_of(self._cluster).ledger))

    def _add_groups(self, found: _Families) -> None:
        for group in self._cluster.groups():
            found.add({"kafka_consumergroup_members": len(group.members)}, group.group_id)
            for tp, one in group.offsets.items():
                values = {
                    "kafka_consumergroup_current_offset": one.committed_offset,
                    "kafka_consumergroup_lag": one.lag,
                }
                found.add(values, group.group_id, *tp)

    def _add_log_dirs(self, found: _Families) -> None:
        disks = store_of(self._cluster).disks
        for one in disks.log_dirs(writes=False) if disks is not None else ():
            is_offline = one.state == "offline"
            # Some network file systems tell no sizes.
            disk = None if is_offline else shutil.disk_usage(one.path)
            values = {
                "kafka_log_logmanager_logdirectoryoffline": int(is_offline),
                "kbatch_log_dir_writable": int(one.state == "online"),
                "kbatch_log_dir_free_bytes": disk.free if disk and disk.total else None,
                "kbatch_log_dir_size_bytes": (disk and disk.total) or None,
                "kbatch_log_dir_staged_bytes": one.staged_size_in_bytes,
            }
            found.add(values, one.path)

    def _add_commits(self, found: _Families, count: int | None) -> None:
        """Add the number of commits, and the newest one, which is read when there is a newer one."""
        found.add({"kbatch_commits_total": count})
        if not count:
            return
        if self._newest is None or self._newest.number != count - 1:
            self._newest = self._cluster.find_commit(count - 1)
        values = {
            "kbatch_last_commit_timestamp_seconds": self._newest.time_ms / 1000,
            "kbatch_last_commit_records": self._newest.records_count,
            "kbatch_last_commit_bytes": self._newest.size_in_bytes,
        }
        found.add(values)


def _add_lengths(found: _Families, one: LedgerDescription | BucketDescription) -> None:
    """Add how long a ledger is, and how old."""
    values = {
        "entries": one.entries,
        "entries_since_checkpoint": one.entries_since_checkpoint,
        "last_entry_timestamp_seconds": one.last_entry_ms / 1000,
        "unmaintained_since_timestamp_seconds": one.unmaintained_since_ms / 1000,
        "clock_ahead_seconds": one.clock_ahead_ms / 1000,
    }
    found.add({f"kbatch_bucket_{name}": value for name, value in values.items()})


def _add_bucket(found: _Families, bucket: BucketDescription) -> None:
    _add_lengths(found, bucket)
    found.add({"kbatch_bucket_small_pieces": bucket.small_extents})
    states = {"read": bucket.referenced, "waiting": bucket.waiting, "ledger": bucket.ledger}
    for state, (objects, size) in states.items():
        found.add({"kbatch_bucket_objects": objects, "kbatch_bucket_bytes": size}, state)


def _add_server(found: _Families, metrics: Mapping[str, Any]) -> None:
    """Add what `Server.metrics` has."""
    topics, sockets = metrics["BrokerTopicMetrics"], metrics["socket-server-metrics"]
    mbeans = {("BrokerTopicMetrics", name): meter["Count"] for name, meter in topics.items()}
    mbeans |= {("socket-server-metrics", name): value for name, value in sockets.items()}
    found.add({_mbean("server", *of): value for of, value in mbeans.items()})
    for operation, size in metrics["DelayedOperationPurgatory"].items():
        name = _mbean("server", "DelayedOperationPurgatory", "PurgatorySize")
        found.add({name: size["PurgatorySize"]}, operation)
    for kind, one in metrics["RequestMetrics"].items():
        times = one["TotalTimeMs"]
        buckets = [*times["AtMost"].items(), ("+Inf", times["Count"])]
        values = {
            "kafka_network_requestmetrics_requests_total": one["RequestsPerSec"]["Count"],
            "kafka_network_requestmetrics_totaltimems": (buckets, times["Sum"]),
        }
        found.add(values, kind)
        for error, meter in one["ErrorsPerSec"].items():
            found.add({"kafka_network_requestmetrics_errors_total": meter["Count"]}, kind, error)


class Exposition:
    """What Prometheus scrapes of a place, and of the server in this process, if there is one. Thread-safe.

    Scrapes within five seconds share one look at the place.

        content_type, text = Exposition(cluster, server=server).text()
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
        self._client, self._server = prometheus_client, server
        self._place = _PlaceMetrics(cluster, bucket)
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(self)
        if server is not None:
            prometheus_client.ProcessCollector(registry=self._registry)
        self._lock = threading.Lock()  # guards the rest, and is held while the place is looked at
        self._text, self._until_s = b"", 0.0

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as of now, as a collector of prometheus_client; the caller holds the lock."""
        found = _Families(self._client)
        if self._server is not None:
            _add_server(found, self._server.metrics())
        self._place.add_to(found)
        return found.found.values()

    def text(self) -> tuple[str, bytes]:
        """Return the content type and the text.

        Raises:
            RequestTimedOutError: another scrape has looked for so long that this one does not wait for it.
            Other errors, as `Cluster.metrics` and `Cluster.describe`.
        """
        # A disk that hangs holds one thread then, not one for each scrape.
        if not self._lock.acquire(timeout=_WAITS_FOR_S):
            raise RequestTimedOutError(f"a scrape has not ended for {_WAITS_FOR_S:.0f} s")
        try:
            if not self._text or monotonic_s() >= self._until_s:
                self._text = self._client.generate_latest(self._registry)
                self._until_s = monotonic_s() + _SHARED_FOR_S
            return self._client.CONTENT_TYPE_LATEST, self._text
        finally:
            self._lock.release()
