"""Exactly once from Spark into a real broker, read all the time by a consumer of committed records."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_kbatch
from spark_kbatch.errors import CommitError, KBatchError
from spark_kbatch.remote import exactly_once
from spark_kbatch.remote.batch_producer import BatchProducer
from spark_kbatch.remote.client import close_idle_clients
from spark_kbatch.remote.transactions import Transactions
from tests import test_readme
from tests.support.committed_reader import CommittedReader
from tests.support.exactly_once_driver import Driver
from tests.support.held_streams import STEPS, HeldStreams, fill, hold, release, topic_of
from tests.support.kafka import Broker, Kafka, Listener
from tests.support.spark_streams import SparkCheckpoint

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(scope="module")
def broker(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that soon aborts what takes too long."""
    with Broker(
        kafka,
        tmp_path_factory.mktemp("broker"),
        transaction_abort_timed_out_transaction_cleanup_interval_ms=200,
    ) as broker:
        yield broker


@pytest.fixture
def reader(broker: Broker, topic: str) -> Iterator[CommittedReader]:
    exactly_once._answered.clear()
    broker.create_topic(topic, partitions=3)
    with CommittedReader(broker.address, {topic: 3}) as reader:
        yield reader
    close_idle_clients()


@pytest.fixture
def checkpoint(tmp_path: Path) -> SparkCheckpoint:
    return SparkCheckpoint(tmp_path / "checkpoint")


def driver_of(broker: Broker, topic: str, **options: object) -> Driver:
    given = {"topic": topic, "transactional.id.prefix": f"to-{topic}"} | options
    return Driver(broker.address, **given)


def test_micro_batches_and_their_repetitions(
    broker: Broker, topic: str, reader: CommittedReader, checkpoint: SparkCheckpoint
) -> None:
    for end in range(0, 300, 10):
        driver = driver_of(broker, topic, compression_type="zstd")
        driver.micro_batch(checkpoint, end, is_noted=end % 40 != 0)
    driver.micro_batch(checkpoint, 290)
    reader.ensure(topic, range(290))


def test_twin_drivers_write_each_row_once_or_fail(
    broker: Broker, topic: str, reader: CommittedReader, checkpoint: SparkCheckpoint
) -> None:
    """Both run from one checkpoint, as fast as they can."""
    errors: list[CommitError] = []
    end = 400

    def run() -> None:
        driver = driver_of(broker, topic)
        while checkpoint.plan(end).start < end:
            try:
                driver.micro_batch(checkpoint, checkpoint.plan(end).start + 10)
            except CommitError as error:
                errors.append(error)

    checkpoint.plan(10)
    twins = [threading.Thread(target=run) for _ in range(2)]
    for one in twins:
        one.start()
    for one in twins:
        one.join(120)
    assert errors
    reader.ensure(topic, range(end))


def test_frozen_driver_is_fenced_and_its_rows_are_never_seen(
    broker: Broker, topic: str, reader: CommittedReader, checkpoint: SparkCheckpoint
) -> None:
    driver, frozen = driver_of(broker, topic), driver_of(broker, topic)
    driver.micro_batch(checkpoint, 10)
    message = frozen.staged(frozen.planned(), ["10", "11"], checkpoint.query_id)
    driver.micro_batch(checkpoint, 12)
    driver.micro_batch(checkpoint, 20)
    with pytest.raises(CommitError, match="nothing is visible"):
        frozen.commit([message], 1)
    message = frozen.staged(frozen.planned(), ["20"], checkpoint.query_id)
    driver.planned()
    with pytest.raises(CommitError, match="has taken over the prefix"):
        frozen.commit([message], 3)
    reader.ensure(topic, range(20))


@pytest.mark.parametrize("step", [BatchProducer.flush, Transactions.add_offsets, Transactions.end])
def test_transaction_that_takes_too_long_is_aborted_and_repeated(
    broker: Broker,
    topic: str,
    reader: CommittedReader,
    checkpoint: SparkCheckpoint,
    monkeypatch: pytest.MonkeyPatch,
    step: object,
) -> None:
    driver, slow = driver_of(broker, topic), driver_of(broker, topic, transaction_timeout_ms=1000)
    driver.micro_batch(checkpoint, 10)
    kind = BatchProducer if step is BatchProducer.flush else Transactions

    def slowly(*args: object, **named: object) -> object:
        time.sleep(2.5)
        return step(*args, **named)  # type: ignore[operator]

    with monkeypatch.context() as patch:
        patch.setattr(kind, step.__name__, slowly)  # type: ignore[attr-defined]
        with pytest.raises(CommitError, match=r"nothing is visible.*transaction\.timeout\.ms=1000"):
            slow.micro_batch(checkpoint, 20)
    driver.micro_batch(checkpoint, 20)
    driver.micro_batch(checkpoint, 30)
    reader.ensure(topic, range(30))


def test_commit_of_which_nothing_is_heard_is_found_by_its_progress(
    broker: Broker,
    topic: str,
    reader: CommittedReader,
    checkpoint: SparkCheckpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its answer is lost, and another driver takes over before it asks again."""
    driver, other = driver_of(broker, topic), driver_of(broker, topic)
    end = Transactions.end

    def lost(self: Transactions, *, commit: bool, timeout_ms: int | None = None) -> None:
        end(self, commit=commit, timeout_ms=timeout_ms)
        self._has_offsets = True
        other.planned()
        end(self, commit=commit, timeout_ms=timeout_ms)

    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "end", lost)
        driver.micro_batch(checkpoint, 10, is_noted=False)
    other.micro_batch(checkpoint, 10)
    other.micro_batch(checkpoint, 20)
    reader.ensure(topic, range(20))


def test_restored_and_copied_checkpoints_are_refused(
    broker: Broker, topic: str, reader: CommittedReader, checkpoint: SparkCheckpoint, tmp_path: Path
) -> None:
    driver = driver_of(broker, topic)
    driver.micro_batch(checkpoint, 10)
    copy, older = (checkpoint.copied_to(tmp_path / name) for name in ("copy", "older"))
    driver.micro_batch(checkpoint, 20)
    driver.micro_batch(checkpoint, 30)
    for one in (copy, older):
        with pytest.raises(CommitError, match="is no repetition"):
            driver.micro_batch(one, 40)
    reader.ensure(topic, range(30))


def test_rows_of_16_mib_go_through_the_driver(
    broker: Broker, topic: str, reader: CommittedReader
) -> None:
    rows = [f"{number:0100d}" for number in range(160_000)]
    driver_of(broker, topic).batch(rows)
    reader.ensure(topic, rows)


# Through Spark.


def test_streams_killed_at_each_step_write_each_row_once(broker: Broker, tmp_path: Path) -> None:
    fill(tmp_path, range(100))
    topics = [topic_of(step) for step in STEPS]
    for step in STEPS:
        broker.create_topic(topic_of(step), partitions=2)
        hold(tmp_path, step, step, 1)
    with CommittedReader(broker.address, dict.fromkeys(topics, 2)) as reader:
        with HeldStreams(tmp_path, broker.address, *STEPS) as streams:
            assert all(streams.holds(step) for step in STEPS)
        seen = {topic: len(found) for topic, found in reader.found.items()}
        assert all(seen[topic] < 100 for topic in topics)

        release(tmp_path, *STEPS)
        with HeldStreams(tmp_path, broker.address, *STEPS) as streams:
            for step in STEPS:
                assert not streams.ended(step)
        for topic in topics:
            reader.ensure(topic, range(100))


def test_the_page_shows_what_comes_out_with_a_real_broker(kafka: Kafka, tmp_path: Path) -> None:
    page = test_readme.DOCS / "exactly-once.md"
    shown = test_readme.examples(page.read_text(encoding="utf-8"))
    with Broker(kafka, tmp_path / "broker") as own:
        (tmp_path / "page").mkdir()
        printed = test_readme.run_pages({page.name: shown}, tmp_path / "page", own.address)
    assert [one.strip() for one in printed] == [(one.output or "").strip() for one in shown]


def test_the_rights_on_the_page_are_enough_and_each_of_them_is_needed(
    kafka: Kafka, tmp_path: Path
) -> None:
    page = (test_readme.DOCS / "exactly-once.md").read_text(encoding="utf-8")
    commands = re.findall(r"^kafka-acls.sh (.*?) \\\n +(.*)$", page, re.MULTILINE)
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    listener = Listener(
        "SASL",
        "SASL_PLAINTEXT",
        {
            "sasl.enabled.mechanisms": "PLAIN",
            "plain.sasl.jaas.config": f'{login} user_spark="secret";',
        },
    )
    with Broker(
        kafka,
        tmp_path / "broker",
        listeners=[listener],
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS",
    ) as own:
        own.create_topic("orders", partitions=2)
        driver = Driver(
            own.addresses["SASL"],
            topic="orders",
            **{
                "transactional.id.prefix": "shop-to-orders",
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": f'{login} username="spark" password="secret";',
            },
        )
        checkpoint = SparkCheckpoint(tmp_path / "checkpoint")
        for given, more in commands:
            with pytest.raises(KBatchError):
                driver.micro_batch(checkpoint, 10)
            words = given.replace("broker-1:9092", own.address)
            words = words.replace("--command-config admin.properties ", "")
            kafka.run("org.apache.kafka.tools.AclCommand", *f"{words} {more}".split())
        for end in (10, 10, 20):
            driver.micro_batch(checkpoint, end)
        with spark_kbatch.connect(own.address) as cluster:
            found = cluster.read("orders", columns=["value"], text=True).read_all()
    assert sorted(map(int, found["value"].to_pylist())) == [*range(20)]
