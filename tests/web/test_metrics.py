"""What Prometheus scrapes equals what the test did, by real clients, and what it costs."""

from __future__ import annotations

import functools
import json
import logging
import re
import shutil
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import confluent_kafka
import kafka
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka.errors import MessageSizeTooLargeError
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML
from starlette.requests import Request

import spark_kbatch
from spark_kbatch import Cluster, Server
from spark_kbatch.bucket import staging
from spark_kbatch.bucket.ledger import CHECKPOINT_EVERY
from spark_kbatch.bucket.maintenance import describe
from spark_kbatch.bucket.store import BucketStore
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import ClosedError
from spark_kbatch.files import LinkedFiles
from spark_kbatch.options.server import ServerConfig
from spark_kbatch.server.intercepts import InterceptedRequest
from spark_kbatch.web import app as web_app
from spark_kbatch.web import site as web_site
from spark_kbatch.web.metrics import METRICS, OF_SERVERS, Exposition
from spark_kbatch.web.site import Site
from spark_kbatch.wire.errors import ErrorCode
from tests.cli.test_ui import TOKEN, line_of, running, status
from tests.support import builders
from tests.support.bucket_jobs import commit_batch, commit_micro_batch
from tests.support.bucket_objects import AllCounted, a_bucket
from tests.support.generated_docs import DOCS
from tests.support.pages import Visitor, shown
from tests.support.waiting import until

SOON = 20
TOPIC = "events"
REQUESTS, TIMES = "kafka_network_requestmetrics_requests_total", "kafka_network_requestmetrics_totaltimems"  # fmt: skip
ERRORS = "kafka_network_requestmetrics_errors_total"
BROKER = "kafka_server_brokertopicmetrics"


class Scraped:
    """One scrape, as Prometheus reads it."""

    def __init__(self, exposition: Exposition) -> None:
        content_type, text = exposition.text()
        assert content_type.startswith("text/plain; version=")
        self.families = {one.name: one for one in text_string_to_metric_families(text.decode())}
        samples = [one for family in self.families.values() for one in family.samples]
        found = [((one.name, frozenset(one.labels.items())), one.value) for one in samples]
        self._found = dict(found)
        assert len(self._found) == len(found), "each sample is there once"

    def __call__(self, name: str, **labels: str) -> float | None:
        """Return a sample's value; None if it was left out."""
        return self._found.get((name, frozenset(labels.items())))

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the values of a metric by one label."""
        return {dict(labels)[label]: v for (n, labels), v in self._found.items() if n == name}


def scraped(cluster: Cluster, server: Server | None = None) -> Scraped:
    """Return what a first scrape shows."""
    return Scraped(Exposition(cluster, server=server))


class Counting:
    """Counts a server's requests by their kind, apart from its own metrics."""

    KINDS = ("Produce", "Fetch", "Metadata", "ListOffsets", "FindCoordinator", "OffsetCommit", "OffsetFetch", "JoinGroup", "SyncGroup", "LeaveGroup")  # fmt: skip

    def __init__(self, server: Server) -> None:
        self.seen = Counter[str]()
        for kind in self.KINDS:
            server.intercept(kind, self._see)

    def _see(self, request: InterceptedRequest) -> None:
        self.seen[request.api] += 1

    def equals(self, found: Mapping[str, float]) -> bool:
        return {kind: found[kind] for kind in found if kind in self.KINDS} == self.seen


def test_requests_records_and_bytes_are_those_of_the_clients(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={TOPIC: 1})
    with cluster.serve() as server:
        counted = Counting(server)
        producer = kafka.KafkaProducer(bootstrap_servers=server.bootstrap_servers)
        for number in range(7):
            producer.send(TOPIC, b"value %d" % number).get(SOON)
        producer.close()
        size = cluster.describe(TOPIC)[0].size_in_bytes
        consumer = kafka.KafkaConsumer(
            TOPIC,
            bootstrap_servers=server.bootstrap_servers,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
        )
        assert [next(consumer).value for _ in range(7)] == [b"value %d" % n for n in range(7)]
        consumer.close()
        until(lambda: counted.equals(scraped(cluster, server).by(REQUESTS, "request")))

        found = scraped(cluster, server)
        assert found(REQUESTS, request="Produce") == 7
        assert found(f"{BROKER}_messagesin_total") == 7
        assert found(f"{BROKER}_bytesin_total") == found(f"{BROKER}_bytesout_total") == size
        assert found(f"{BROKER}_totalproducerequests_total") == 7
        assert found(f"{BROKER}_failedproducerequests_total") == 0
        assert (found(f"{BROKER}_totalfetchrequests_total") or 0) >= 1
        assert found.by(ERRORS, "error") == {}
        assert found("kafka_log_log_logendoffset", topic=TOPIC, partition="0") == 7
        assert found("kafka_log_log_logstartoffset", topic=TOPIC, partition="0") == 0
        assert found("kafka_log_log_size", topic=TOPIC, partition="0") == size
        assert found("kafka_log_log_numlogsegments", topic=TOPIC, partition="0") == 1
        for kind, count in found.by(REQUESTS, "request").items():
            assert found(f"{TIMES}_count", request=kind) == count
            assert found(f"{TIMES}_bucket", request=kind, le="+Inf") == count
    assert {"process_resident_memory_bytes", "process_open_fds"} <= found.families.keys()


def test_what_pages_read_is_no_read_of_a_client(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={TOPIC: 1})
    with cluster.producer() as producer:
        producer.send(TOPIC, "a value that is looked at")
    names = f"{BROKER}_bytesout_total", f"{BROKER}_totalfetchrequests_total"
    with cluster.serve() as server, shown(cluster, server) as pages:
        visitor = Visitor(pages)
        assert "a value that is looked at" in visitor.get(f"/topics/{TOPIC}/records").words
        found = scraped(cluster, server)
        assert [found(one) for one in names] == [0, 0]
        with spark_kbatch.connect(server.bootstrap_servers) as remote:
            assert remote.read(TOPIC).read_all().num_rows == 1
        found = scraped(cluster, server)
        assert found(names[0]) == cluster.describe(TOPIC)[0].size_in_bytes
        assert (found(names[1]) or 0) >= 1


def test_a_place_without_a_server_has_no_metrics_of_one(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={TOPIC: 1})
    with cluster.producer() as producer:
        producer.send(TOPIC, "value")
    with shown(cluster) as pages:
        visitor = Visitor(pages)
        visitor.get(f"/topics/{TOPIC}/records")
        scraped_by_ui = visitor.get("/metrics").text
    described = CliRunner().invoke(cli, ["describe", str(cluster.path), "--prometheus"]).output
    for text in (scraped_by_ui, described):
        families = {one.name for one in text_string_to_metric_families(text)}
        assert "kafka_log_log_logendoffset" in families
        assert not families & {name.removesuffix("_total") for name in OF_SERVERS}


def test_a_refused_record_is_an_error_of_its_kind(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={TOPIC: 1, "small": 2})
    cluster.alter_topic("small", {"max.message.bytes": 200})
    with cluster.serve(auto_create=False) as server:
        with kafka.KafkaProducer(bootstrap_servers=server.bootstrap_servers, retries=0) as producer:
            for partition in (0, 1):
                with pytest.raises(MessageSizeTooLargeError):
                    producer.send("small", bytes(1000), partition=partition).get(SOON)
            producer.send("small", b"fits").get(SOON)
        asked = list[str]()  # librdkafka asks again
        server.intercept(
            "Metadata", lambda request: asked.extend(one.name for one in request.body.topics or ())
        )
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": server.bootstrap_servers, "group.id": "g"}
        )
        consumer.list_topics("nothing", timeout=SOON)
        consumer.close()

        def errors(request: str, error: str) -> float:
            return scraped(cluster, server)(ERRORS, request=request, error=error)

        until(lambda: errors("Metadata", "UNKNOWN_TOPIC_OR_PARTITION") == len(asked) > 0)
        assert errors("Produce", "MESSAGE_TOO_LARGE") == 2
        found = scraped(cluster, server)

    assert found(f"{BROKER}_failedproducerequests_total") == 2
    assert found(f"{BROKER}_messagesin_total") == 1
    assert found(REQUESTS, request="Produce") == 3


def test_each_partition_of_an_answer_with_an_error_is_counted(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={TOPIC: 3})
    with cluster.serve() as server:
        server.intercept("ListOffsets", lambda request: request.fail("TOPIC_AUTHORIZATION_FAILED"))
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
        partitions = [confluent_kafka.TopicPartition(TOPIC, number) for number in range(3)]
        wanted = dict.fromkeys(partitions, OffsetSpec.latest())
        for answer in admin.list_offsets(wanted, request_timeout=SOON).values():
            with pytest.raises(confluent_kafka.KafkaException):
                answer.result(SOON)
        found = scraped(cluster, server)

    asked = found(REQUESTS, request="ListOffsets")
    assert asked
    assert found(ERRORS, request="ListOffsets", error="TOPIC_AUTHORIZATION_FAILED") == 3 * asked


def test_times_are_counted_up_to_bounds_that_a_delayed_request_is_above(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={TOPIC: 1})
    with cluster.serve() as server:
        server.intercept("Produce", lambda request: request.delay(0.25))
        with kafka.KafkaProducer(bootstrap_servers=server.bootstrap_servers) as producer:
            for _ in range(2):
                producer.send(TOPIC, b"value").get(SOON)
        found = scraped(cluster, server)

    within = {
        float(dict(sample.labels)["le"]): sample.value
        for sample in found.families[TIMES].samples
        if sample.name.endswith("_bucket") and sample.labels["request"] == "Produce"
    }
    assert [within[one] for one in (1, 100, 200)] == [0, 0, 0]
    assert within[float("inf")] == 2
    assert [*within.values()] == sorted(within.values())
    assert (found(f"{TIMES}_sum", request="Produce") or 0) >= 500


def test_connections_are_those_that_are_open_and_all_there_were(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={TOPIC: 1})
    with cluster.serve() as server:
        name = "kafka_server_socket_server_metrics_connection"
        sockets = [socket.create_connection((server.host, server.port)) for _ in range(3)]
        until(lambda: scraped(cluster, server)(f"{name}_count") == 3)
        sockets.pop().close()
        until(lambda: scraped(cluster, server)(f"{name}_count") == 2)
        assert scraped(cluster, server)(f"{name}_creation_total") == 3
        for one in sockets:
            one.close()


def test_a_fetch_that_waits_is_in_the_purgatory(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={TOPIC: 1})
    with cluster.serve() as server:
        name = "kafka_server_delayedoperationpurgatory_purgatorysize"
        assert scraped(cluster, server).by(name, "delayedOperation") == {"Fetch": 0, "Produce": 0}
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": server.bootstrap_servers,
                "group.id": "g",
                "fetch.wait.max.ms": 30_000,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0)])
        until(lambda: scraped(cluster, server)(name, delayedOperation="Fetch") == 1)
        with cluster.producer() as producer:
            producer.send(TOPIC, "value").result(SOON)
        message = consumer.poll(SOON)
        assert message is not None
        assert message.value() == b"value"
        consumer.close()


def test_lag_is_what_a_group_has_not_read(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={TOPIC: 2})
    with cluster.producer() as producer:
        for number in range(5):
            producer.send(TOPIC, f"{number}", partition=number % 2).result(SOON)
    with cluster.serve() as server:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": server.bootstrap_servers,
                "group.id": "billing",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([TOPIC])
        until(lambda: consumer.poll(0.1) is not None)
        partition = confluent_kafka.TopicPartition(TOPIC, 0, 1)
        consumer.commit(offsets=[partition], asynchronous=False)
        found = scraped(cluster, server)
        of_group = functools.partial(found, consumergroup="billing", topic=TOPIC)
        assert of_group("kafka_consumergroup_current_offset", partition="0") == 1
        assert of_group("kafka_consumergroup_lag", partition="0") == 2
        # Nothing is committed there.
        assert of_group("kafka_consumergroup_current_offset", partition="1") is None
        assert of_group("kafka_consumergroup_lag", partition="1") is None
        assert found("kafka_consumergroup_members", consumergroup="billing") == 1
        consumer.close()
        with spark_kbatch.connect(server.bootstrap_servers) as remote:
            elsewhere = scraped(remote)

    assert scraped(cluster)("kafka_consumergroup_members", consumergroup="billing") == 0
    # Of what a client of a real cluster can see, all is the same.
    assert elsewhere("kafka_consumergroup_lag", consumergroup="billing", topic=TOPIC, partition="0") == 2  # fmt: skip
    assert elsewhere("kafka_log_log_logendoffset", topic=TOPIC, partition="0") == 3
    assert "kafka_log_log_size" not in elsewhere.families
    assert not {"kbatch_commits", "kafka_server_replicamanager_partitioncount"} & elsewhere.families.keys()  # fmt: skip


def test_commits_are_counted_and_the_newest_is_told(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={TOPIC: 2})
    exposition = Exposition(cluster)
    assert Scraped(exposition)("kbatch_commits_total") == 0
    assert Scraped(exposition)("kbatch_last_commit_timestamp_seconds") is None
    for number, sizes in enumerate([(3,), (2, 5)], 1):
        batches = [builders.batch(n=size) for size in sizes]
        builders.write(cluster, {(TOPIC, at): [one] for at, one in enumerate(batches)})
        found = Scraped(exposition)
        assert found("kbatch_commits_total") == number
        assert found("kbatch_last_commit_records") == sum(sizes)
        assert found("kbatch_last_commit_bytes") == sum(map(len, batches))
        time_s = builders.FIRST_TIMESTAMP_MS / 1000
        assert found("kbatch_last_commit_timestamp_seconds") == time_s


def test_commits_to_a_bucket_are_counted_from_the_first_scrape_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(web_site, "monotonic_s", lambda: now_s[0])
    objects = AllCounted()
    with (
        a_bucket(objects, TOPIC) as cluster,
        shown(cluster) as pages,
        cluster.producer(linger_ms=0) as producer,
    ):
        visitor = Visitor(pages)

        def commits() -> dict[str, float]:
            """Return what a scrape tells of commits."""
            now_s[0] += 60
            return {
                sample.name: sample.value
                for family in text_string_to_metric_families(visitor.get("/metrics").text)
                for sample in family.samples
                if "commit" in sample.name
            }

        def newest(records: int, count: int) -> dict[str, float]:
            one = next(iter(cluster.history()))
            return {
                "kbatch_commits_total": count,
                "kbatch_last_commit_timestamp_seconds": one.time_ms / 1000,
                "kbatch_last_commit_records": records,
                "kbatch_last_commit_bytes": one.size_in_bytes,
            }

        assert commits() == {}
        assert commits() == {"kbatch_commits_total": 0}
        commit_micro_batch(cluster.address, 0, ["a", "b"])
        assert commits() == newest(records=2, count=1)
        for number in (1, 2, 3):
            producer.send(TOPIC, "not of a job").result(SOON)
            commit_micro_batch(cluster.address, number, ["a"] * number)
        commit_batch(cluster.address, [["a"] * 7])
        producer.send(TOPIC, "not of a job").result(SOON)
        assert commits() == newest(records=7, count=5)
        objects.taken()
        commits()
        assert objects.taken() == {"get ledger": 1, "list ledger": 2, "list checkpoints": 1}

        # Who begins to look knows the newest one, and not how many there were.
        described = CliRunner().invoke(cli, ["describe", cluster.address, "--prometheus"]).output
        assert "\nkbatch_last_commit_records 7.0\n" in described
        assert "kbatch_commits_total" not in described


def test_a_commit_to_a_bucket_whose_bytes_are_in_an_index_tells_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "INDEX_BYTES_MIN", 0)
    with a_bucket(None, TOPIC) as cluster:
        commit_micro_batch(cluster.address, 0, ["a value"])
        found = scraped(cluster)

    assert found("kbatch_last_commit_records") == 1
    assert found("kbatch_last_commit_bytes") is None


def test_a_transaction_of_a_producer_is_a_commit(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={TOPIC: 1})
    with cluster.producer(transactional_id="orders") as producer, producer.transaction():
        for value in "abc":
            producer.send(TOPIC, value)
    found = scraped(cluster)
    assert found("kbatch_commits_total") == 1
    assert found("kbatch_last_commit_records") == 3


def test_a_disk_that_is_gone_shows_in_partitions_replicas_and_log_dirs(tmp_path: Path) -> None:
    disks = [tmp_path / name for name in "abc"]
    with spark_kbatch.open(tmp_path / "cluster", create=True, log_dirs=disks) as cluster:
        cluster.create_topic("safe", replication_factor=3, config={"min.insync.replicas": 3})
        cluster.create_topic("single", partitions=3)
        builders.staged(cluster, {("single", 0): [builders.batch(n=3)]})
        found = scraped(cluster)
        all_names = "underreplicatedpartitions", "underminisrpartitioncount", "offlinereplicacount"
        replicas = {f"kafka_server_replicamanager_{name}": 0 for name in all_names}
        assert {name: found(name) for name in replicas} == replicas
        assert found("kafka_log_logmanager_offlinelogdirectorycount") == 0
        staged = sum(one.stat().st_size for one in tmp_path.glob("*/*staging*/**/*") if one.is_file())  # fmt: skip
        staged += sum(one.stat().st_size for one in tmp_path.glob("*staging*/**/*") if one.is_file())  # fmt: skip
        assert sum(found.by("kbatch_log_dir_staged_bytes", "logDirectory").values()) == staged > 0
        internal = sum(len(cluster.partitions(one)) for one in cluster.topic_names(internal=True)) - 4  # fmt: skip
        assert found("kafka_server_replicamanager_partitioncount") == 4 + internal
        assert found("kafka_controller_kafkacontroller_globalpartitioncount") == 4 + internal
        assert found("kafka_controller_kafkacontroller_globaltopiccount") == len(cluster.topic_names(internal=True))  # fmt: skip

        shutil.rmtree(disks[1])
        found = scraped(cluster)
        assert found("kafka_server_replicamanager_underreplicatedpartitions") == 2 + internal
        assert found("kafka_server_replicamanager_underminisrpartitioncount") == 2
        assert found("kafka_server_replicamanager_offlinereplicacount") == 2 + internal
        assert found("kafka_controller_kafkacontroller_offlinepartitionscount") == 1
        assert found("kafka_log_logmanager_offlinelogdirectorycount") == 1
        dirs = [str(disk / f"broker-{at}") for at, disk in enumerate(disks)]
        by_dir = {one: float(one == dirs[1]) for one in dirs}
        assert found.by("kafka_log_logmanager_logdirectoryoffline", "logDirectory") == by_dir
        writable = {name: 1 - offline for name, offline in by_dir.items()}
        assert found.by("kbatch_log_dir_writable", "logDirectory") == writable
        total = found.by("kbatch_log_dir_size_bytes", "logDirectory")
        expected = float(shutil.disk_usage(tmp_path).total)
        assert total == {dirs[at]: expected for at in (0, 2)}
        free = found.by("kbatch_log_dir_free_bytes", "logDirectory")
        assert free.keys() == total.keys()
        assert all(0 < one < expected for one in free.values())
        assert found("kafka_log_log_logendoffset", topic="single", partition="1") is None
        assert found("kafka_log_log_logendoffset", topic="single", partition="0") == 0
        assert found("kbatch_scrape_failed", part="log dirs") == 0


def test_a_scrape_writes_nothing_to_see_whether_it_could(tmp_path: Path) -> None:
    written = list[Path]()

    class Watched(LinkedFiles):
        def write(self, path: Path, *arguments: Any, **named: Any) -> None:
            written.append(path)
            super().write(path, *arguments, **named)

        def may_write(self, path: Path) -> bool:
            return False

    cluster = builders.a_cluster(tmp_path, files=Watched())
    with cluster.serve() as server:
        written.clear()
        found = scraped(cluster, server)
    assert [*found.by("kbatch_log_dir_writable", "logDirectory").values()] == [0]
    assert not any(one.name.startswith(".probe-") for one in written)


def test_a_full_disk_is_online_and_cannot_be_written(tmp_path: Path) -> None:
    class Full(LinkedFiles):
        def is_full(self, path: Path) -> bool:
            return True

    found = scraped(builders.a_cluster(tmp_path, files=Full()))
    assert [*found.by("kbatch_log_dir_writable", "logDirectory").values()] == [0]
    assert [*found.by("kafka_log_logmanager_logdirectoryoffline", "logDirectory").values()] == [0]


def test_a_part_that_cannot_be_read_is_left_out_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = builders.a_cluster(tmp_path, topics={TOPIC: 1})
    with cluster.serve():
        cluster.alter_group_offsets("g", {(TOPIC, 0): 0})
    exposition = Exposition(cluster)
    assert Scraped(exposition)("kbatch_scrape_failed", part="groups") == 0
    (state,) = cluster.path.glob("broker-0/__consumer_offsets-0/kbatch.state")
    state.rename(state.with_suffix(".away"))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = Scraped(exposition)
            assert found("kbatch_scrape_failed", part="groups") == 1
            assert found("kafka_log_log_logendoffset", topic=TOPIC, partition="0") == 0
            assert "kafka_consumergroup_lag" not in found.families
    told = [one for one in caplog.messages if "have no groups" in one]
    assert len(told) == 1
    assert str(cluster.path) in told[0]

    state.with_suffix(".away").rename(state)
    assert Scraped(exposition)("kbatch_scrape_failed", part="groups") == 0


def test_scrapes_of_the_same_seconds_share_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    objects, now_s = AllCounted(), [1000.0]
    monkeypatch.setattr(web_site, "monotonic_s", lambda: now_s[0])
    app = web_app.application(Site(a_bucket(objects, TOPIC)))
    request = Request({"type": "http", "app": app})
    web_app.metrics(request)
    objects.taken()  # the first one, with what it found out for all others
    now_s[0] += 5
    once = web_app.metrics(request).body
    assert objects.taken() == {"get ledger": 1, "list ledger": 2, "list checkpoints": 1}

    now_s[0] += 4.9
    assert web_app.metrics(request).body == once
    assert objects.taken() == {"get ledger": 1}  # as each look asks for news


def test_checkpoints_that_others_have_made_since_are_counted_from() -> None:
    with a_bucket(AllCounted(), TOPIC) as cluster:
        exposition = Exposition(Cluster.over(BucketStore(cluster.address)))
        Scraped(exposition)
        for number in range(3 * CHECKPOINT_EVERY):
            commit_micro_batch(cluster.address, number, ["a value"])
        found = Scraped(exposition)("kbatch_bucket_entries_since_checkpoint")
        now = describe(BucketStore(cluster.address).ledger)

    assert found == now.entries_since_checkpoint < CHECKPOINT_EVERY


@pytest.mark.parametrize("topics", [1, 40])
def test_a_scrape_of_a_bucket_costs_six_reads_of_its_ledger_and_three_lists(topics: int) -> None:
    objects = AllCounted()
    names = [f"{TOPIC}-{number}" for number in range(topics)]
    cluster = a_bucket(objects, *names, partitions=3)
    store = BucketStore(cluster.address)
    with cluster.producer(linger_ms=0) as producer:
        for number in range(5):
            producer.send(names[0], f"{number}", partition=1).result(SOON)
    cluster.alter_group_offsets("g", {(names[0], 1): 3})
    exposition = Exposition(Cluster.over(store))
    found = Scraped(exposition)
    objects.taken()
    assert Scraped(exposition)("kbatch_bucket_entries") == 1 + topics + 5 + 1
    asked = objects.taken()

    assert asked == {"list ledger": 2, "list checkpoints": 1, "get ledger": 6}
    assert found("kafka_log_log_logendoffset", topic=names[0], partition="1") == 5
    assert found("kafka_log_log_logstartoffset", topic=names[0], partition="1") == 0
    assert found("kafka_consumergroup_lag", consumergroup="g", topic=names[0], partition="1") == 2
    assert found("kbatch_scrape_failed", part="ledger") == 0
    size = cluster.describe(names[0])[1].size_in_bytes
    assert found("kafka_log_log_size", topic=names[0], partition="1") == size > 0
    full = describe(store.ledger)
    assert found("kbatch_bucket_entries_since_checkpoint") == full.entries_since_checkpoint
    assert found("kbatch_bucket_last_entry_timestamp_seconds") == full.last_entry_ms / 1000
    assert found("kbatch_bucket_clock_ahead_seconds") == full.clock_ahead_ms / 1000
    assert found("kbatch_bucket_unmaintained_since_timestamp_seconds") == full.unmaintained_since_ms / 1000  # fmt: skip


def test_odd_names_come_through_as_text(tmp_path: Path) -> None:
    odd = 'a"b\\c\nd\x00e \N{SNOWMAN}'
    folder = tmp_path / 'x"\ny'
    folder.mkdir()
    cluster = builders.a_cluster(folder, topics={TOPIC: 1})
    cluster.alter_group_offsets(odd, {(TOPIC, 0): 0})
    found = scraped(cluster)
    (shown,) = found.by("kafka_consumergroup_lag", "consumergroup")
    assert shown == 'a"b\\c\\nd\\x00e \N{SNOWMAN}'
    (path,) = found.by("kbatch_log_dir_writable", "logDirectory")
    assert path == f'{tmp_path}/x"\\ny/cluster/broker-0'


def test_a_closed_cluster_raises(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    exposition = Exposition(cluster)
    cluster.close()
    with pytest.raises(ClosedError):
        exposition.text()


def test_all_metrics_that_are_described_are_there(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={TOPIC: 1})
    builders.write(cluster, {(TOPIC, 0): [builders.batch(n=3)]})
    cluster.alter_group_offsets("g", {(TOPIC, 0): 0})
    with cluster.serve(auto_create=False) as server:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": "g"})  # fmt: skip
        consumer.list_topics("nothing", timeout=SOON)
        consumer.close()
        texts = [Exposition(cluster, server=server).text()[1]]
    bucket = a_bucket(None, TOPIC)
    commit_micro_batch(bucket.address, 0, ["a value"])
    store = BucketStore(bucket.address)
    texts.append(Exposition(bucket, bucket=describe(store.ledger)).text()[1])

    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", b"".join(texts).decode(), re.MULTILINE))
    own = {name: kind for name, kind in kinds.items() if not name.startswith("process_")}
    assert own == {name: one.kind for name, one in METRICS.items()}


# The rules of the JMX exporter's example for Kafka, examples/kafka-2_0_0.yml, that metrics of ours fall under.
JMX_RULES = (
    (r"kafka\.(\w+)<type=(.+), name=(.+)PerSec\w*(?:, .+=.+)*><>Count", r"kafka_\1_\2_\3_total"),
    (r"kafka\.server<type=(.+), listener=.+, networkProcessor=.+><>(.+)", r"kafka_server_\1_\2"),
    (r"kafka\.(\w+)<type=([^,]+), name=([^,]+)(?:, .+=.+)*><>Value", r"kafka_\1_\2_\3"),
    (r"kafka\.(\w+)<type=([^,]+), name=([^,]+)(?:, .+=.+)*><>Count", r"kafka_\1_\2_\3_count"),
)
OF_A_TOPIC = "topic=events, partition=0"
OF_SOCKETS = "kafka.server<type=socket-server-metrics, listener=PLAINTEXT, networkProcessor=0"
MBEANS = [
    *(f"kafka.server<type=BrokerTopicMetrics, name={name}PerSec><>Count" for name in ("MessagesIn", "BytesIn", "BytesOut", "TotalProduceRequests", "FailedProduceRequests", "TotalFetchRequests")),
    "kafka.network<type=RequestMetrics, name=RequestsPerSec, request=Fetch><>Count",
    "kafka.network<type=RequestMetrics, name=ErrorsPerSec, request=Fetch, error=NONE><>Count",
    "kafka.network<type=RequestMetrics, name=TotalTimeMs, request=Fetch><>Count",
    "kafka.server<type=DelayedOperationPurgatory, name=PurgatorySize, delayedOperation=Fetch><>Value",
    *(f"{OF_SOCKETS}><>{name}" for name in ("connection-count", "connection-creation-total")),
    *(f"kafka.server<type=ReplicaManager, name={name}><>Value" for name in ("PartitionCount", "UnderReplicatedPartitions", "UnderMinIsrPartitionCount", "OfflineReplicaCount")),
    *(f"kafka.controller<type=KafkaController, name={name}><>Value" for name in ("GlobalTopicCount", "GlobalPartitionCount", "OfflinePartitionsCount")),
    "kafka.log<type=LogManager, name=OfflineLogDirectoryCount><>Value",
    "kafka.log<type=LogManager, name=LogDirectoryOffline, logDirectory=/data><>Value",
    *(f"kafka.log<type=Log, name={name}, {OF_A_TOPIC}><>Value" for name in ("LogStartOffset", "LogEndOffset", "NumLogSegments", "Size")),
]  # fmt: skip


def test_what_a_broker_has_is_named_as_the_jmx_exporter_names_it() -> None:
    exported = set()
    for mbean in MBEANS:
        rule, name = next(one for one in JMX_RULES if re.fullmatch(one[0], mbean))
        exported.add(re.sub(rule, name, mbean).lower().replace("-", "_"))
    ours = {
        f"{name}_count" if one.kind == "histogram" else name
        for name, one in METRICS.items()
        if not name.startswith(("kbatch_", "kafka_consumergroup_"))
    }
    assert ours == exported


def test_the_command_of_the_page_lets_prometheus_in_as_its_configuration_says(
    tmp_path: Path,
) -> None:
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^kbatch serve (.*--http.*)$", page, re.MULTILINE)
    (configuration,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (scraped_by,) = YAML(typ="safe").load(configuration)["scrape_configs"]
    (target,) = scraped_by["static_configs"][0]["targets"]
    assert {"credentials_file"} == scraped_by[
        "authorization"
    ].keys()  # by default of the type Bearer
    places = {
        "my-cluster": str(builders.a_cluster(tmp_path, topics={TOPIC: 1}).path),
        "127.0.0.1:9092": "127.0.0.1:0",
        f"0.0.0.0:{target.partition(':')[2]}": "0.0.0.0:0",
        "/etc/kbatch/token": str(tmp_path / "token"),
    }
    (tmp_path / "token").write_text(TOKEN)
    words = [places.pop(word, word) for word in command.split()]
    assert places == {}
    with running("serve", *words, "--json") as process:
        port = urlsplit(json.loads(line_of(process))["url"]).port
        url, host = f"http://127.0.0.1:{port}/metrics", target.replace("8080", str(port))
        token = {"Authorization": f"Bearer {TOKEN}"}
        assert status(url, token | {"Host": host}) == 200
        assert status(url, {"Host": host}) == 401
        assert status(url, token | {"Host": f"another.{host}"}) == 400


ALARMS = re.compile(r"<!-- alarms.*? -->\n(.*?)<!-- end of alarms -->", re.DOTALL)
OF_PROMETHEUS = {"up", "process_open_fds", "process_max_fds"}


def test_what_one_alarms_on_is_there_and_each_number_that_is_an_option_holds() -> None:
    tables = ALARMS.findall((DOCS / "metrics.md").read_text(encoding="utf-8"))
    assert len(tables) == 2
    expressions = [row.split("`")[1] for table in tables for row in table.splitlines()[2:]]
    named = {
        re.sub(r"_bucket$", "", name)
        for one in expressions
        for name in re.findall(r"\b(?:k(?:batch|afka)_\w+|up|process_\w+)\b", one)
        if name.isidentifier()
    }
    assert named - OF_PROMETHEUS <= METRICS.keys()
    assert len(named) > 20
    (connections,) = (one for one in expressions if "connection_count" in one)
    assert connections.endswith(f"> {ServerConfig.max_connections * 4 // 5}")
    labels = {name: {*one.labels.split()} for name, one in METRICS.items()}
    for one in expressions:
        for name, selector in re.findall(r"(\w+)\{(\w+)=", one):
            assert selector in labels[re.sub(r"_bucket$", "", name)]
    for code in re.findall(r"[A-Z]+_[A-Z_]+", " ".join(expressions)):
        assert code in ErrorCode.__members__
