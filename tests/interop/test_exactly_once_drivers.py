"""Exactly once from Spark into a real broker: drivers that are one too many, frozen, late, or of an older checkpoint."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_kbatch
from spark_kbatch.remote.client import close_idle_clients
from tests.support.committed_reader import CommittedReader
from tests.support.held_streams import HeldStreams, fill, hold, release, started, topic_of
from tests.support.kafka import Broker, Kafka
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PARTITIONS = 2
ROWS = range(100)  # of which a micro-batch has 40
LATE_MS = 5000
# What becomes of a query, and where it is held in its second micro-batch.
TWINS = {f"twin-{step}": step for step in ("task", "before-commit", "sent", "offsets-added")}
FROZEN = {f"frozen-{step}": step for step in ("before-commit", "progress-known", "partly-sent", "offsets-added")}  # fmt: skip
LATE = {f"late-{step}": step for step in ("partly-sent", "sent", "offsets-added")}


@pytest.fixture(scope="module")
def broker(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that soon aborts what takes too long."""
    with Broker(
        kafka,
        tmp_path_factory.mktemp("broker"),
        transaction_abort_timed_out_transaction_cleanup_interval_ms=200,
    ) as broker:
        yield broker
        close_idle_clients()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams")


@pytest.fixture(scope="module")
def reader(broker: Broker) -> Iterator[CommittedReader]:
    """A reader of all that the first driver writes."""
    topics = dict.fromkeys(map(topic_of, [*TWINS, *FROZEN, *LATE]), PARTITIONS)
    for topic in topics:
        broker.create_topic(topic, partitions=PARTITIONS)
    with CommittedReader(broker.address, topics) as reader:
        yield reader


@pytest.fixture(scope="module")
def first(broker: Broker, folder: Path, reader: CommittedReader) -> Iterator[HeldStreams]:
    """A driver whose queries are held in their second micro-batch."""
    fill(folder, ROWS)
    for name, step in (TWINS | FROZEN).items():
        hold(folder, name, step, 1)
    for name in LATE:
        hold(folder, name, "progress-known", 1)
        (folder / f"{name}.json").write_text(json.dumps({"transaction.timeout.ms": LATE_MS}))
    names = [*TWINS, *FROZEN, *LATE]
    with HeldStreams(folder, broker.address, *names) as streams:
        for name in names:
            assert streams.holds(name), streams.ended(name)
        yield streams


def run(spark: SparkSession, folder: Path, broker: Broker, name: str, **options: Any) -> None:
    """Run a query in this process, as another driver; raises its error."""
    spark_kbatch.register(spark)
    query = started(spark, folder, broker.address, name, **options)
    assert query.awaitTermination(300)


def test_driver_is_fenced_by_a_twin_that_is_started_while_it_runs(
    spark: SparkSession, broker: Broker, folder: Path, reader: CommittedReader, first: HeldStreams
) -> None:
    for name in TWINS:
        run(spark, folder, broker, name)
        reader.ensure(topic_of(name), ROWS)
    release(folder, *TWINS)
    for name, step in TWINS.items():
        assert_refused(first.ended(name))
        reader.ensure(topic_of(name), ROWS)
        assert (reader.aborted(topic_of(name)) > 0) == (step in {"sent", "offsets-added"})


def test_driver_that_was_frozen_after_its_tasks_is_fenced_by_the_one_that_took_its_place(
    spark: SparkSession, broker: Broker, folder: Path, reader: CommittedReader, first: HeldStreams
) -> None:
    first.freeze()
    for name in FROZEN:
        run(spark, folder, broker, name)
    first.go_on()
    release(folder, *FROZEN)
    for name in FROZEN:
        assert_refused(first.ended(name))
        reader.ensure(topic_of(name), ROWS)


def assert_refused(error: str) -> None:
    """Check the error of a driver of which nothing is there; its micro-batch may be, by the one that took its place."""
    wanted = (
        "nothing is visible: .*(has taken over the prefix|is no repetition|did not write a batch within)",
        "its rows are visible, once: a newer driver has gone on from it",
    )
    assert re.search("|".join(wanted), error), error


def test_transaction_that_times_out_while_its_driver_is_frozen_is_aborted_and_repeated(
    spark: SparkSession, broker: Broker, folder: Path, reader: CommittedReader, first: HeldStreams
) -> None:
    for name, step in LATE.items():
        hold(folder, name, step, 1)
        release(folder, name)
    assert all(first.holds(name) for name in LATE)
    first.freeze()
    time.sleep(LATE_MS / 1000 + 1)
    until(lambda: all(is_decided(broker, topic_of(name)) for name in LATE))
    first.go_on()
    release(folder, *LATE)
    for name in LATE:
        error = first.ended(name)
        assert re.search(rf"(?s)nothing is visible.*transaction\.timeout\.ms={LATE_MS}", error), (
            error
        )
        run(spark, folder, broker, name)
        reader.ensure(topic_of(name), ROWS)
    assert all(reader.aborted(topic_of(name)) > 0 for name in ("late-sent", "late-offsets-added"))


def is_decided(broker: Broker, topic: str) -> bool:
    """Whether no transaction is open in a topic."""
    wanted = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(PARTITIONS)}
    client = broker.admin()
    stable, written = (
        [one.result(60).offset for one in client.list_offsets(wanted, isolation_level=isolation).values()]
        for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    )  # fmt: skip
    return stable == written


# Checkpoints


def test_restored_checkpoint_is_refused_until_the_user_decides(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic, checkpoint, copy = topic_of("restored"), tmp_path / "restored", tmp_path / "copy"
    broker.create_topic(topic, partitions=PARTITIONS)
    with CommittedReader(broker.address, {topic: PARTITIONS}) as reader:
        run_beyond_a_copy(spark, tmp_path, broker, "restored")
        restore(copy, checkpoint)
        name = query_id(checkpoint)
        refused(
            spark, tmp_path, broker, "restored",
            error=f"micro-batch 1 of {name} is no repetition.*Committed is 1: 10 rows.*this has 10 rows",
        )  # fmt: skip
        reader.ensure(topic, range(20))
        # The user knows that no rows came.
        run(spark, tmp_path, broker, "restored", **{"resolve.micro.batch": f"skip {name} 1"})
        fill(tmp_path, range(20, 30))
        run(spark, tmp_path, broker, "restored")
        reader.ensure(topic, range(30))

        restore(copy, checkpoint)
        fill(tmp_path, range(30, 40))
        refused(
            spark, tmp_path, broker, "restored",
            error=f"micro-batch 1 of {name} is no repetition.*Committed is 2: 10 rows.*this has 30 rows",
        )  # fmt: skip
        reader.ensure(topic, range(30))


def test_new_checkpoint_goes_on_where_the_restored_one_would_double(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic, checkpoint = topic_of("renewed"), tmp_path / "renewed"
    broker.create_topic(topic, partitions=PARTITIONS)
    with CommittedReader(broker.address, {topic: PARTITIONS}) as reader:
        run_beyond_a_copy(spark, tmp_path, broker, "renewed")
        restore(tmp_path / "copy", checkpoint)
        fill(tmp_path, range(20, 30))
        error = refused(spark, tmp_path, broker, "renewed", error="this has 20 rows")
        ends = re.search(r"from where 1 ended: (\{.*\})\. See", error)
        assert ends is not None, error
        options = {"startingOffsets": ends[1], "checkpoint": "new"}
        error = refused(
            spark, tmp_path, broker, "renewed", **options,
            error=f"the last commit is 1 of {query_id(checkpoint)}.*A prefix belongs to one query",
        )  # fmt: skip
        name = query_id(tmp_path / "new")
        assert f"micro-batch 0 of {name} is refused" in error
        reader.ensure(topic, range(20))
        run(
            spark, tmp_path, broker, "renewed", **options,
            **{"resolve.micro.batch": f"write {name} 0"},
        )  # fmt: skip
        fill(tmp_path, range(30, 40))
        run(spark, tmp_path, broker, "renewed", **options)
        reader.ensure(topic, range(40))


def test_copied_checkpoint_is_refused_and_goes_on_under_a_prefix_of_its_own(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topics = first, second = topic_of("copied"), topic_of("copied-anew")
    for topic in topics:
        broker.create_topic(topic, partitions=PARTITIONS)
    with CommittedReader(broker.address, dict.fromkeys(topics, PARTITIONS)) as reader:
        run_beyond_a_copy(spark, tmp_path, broker, "copied")
        name, options = query_id(tmp_path / "copy"), {"checkpoint": "copy", "topic": second}
        refused(
            spark, tmp_path, broker, "copied", **options,
            error=f"{name} is no repetition.*Committed is 1: 10 rows to {first} .*this has 10 rows to {second} ",
        )  # fmt: skip
        options["transactional.id.prefix"] = second
        refused(
            spark, tmp_path, broker, "copied", **options,
            error=f"micro-batch 1 of {name} is refused: under the prefix '{second}' no earlier one is known",
        )  # fmt: skip
        reader.ensure(first, range(20))
        reader.ensure(second, [])
        run(
            spark, tmp_path, broker, "copied", **options,
            **{"resolve.micro.batch": f"write {name} 1"},
        )  # fmt: skip
        fill(tmp_path, range(20, 30))
        run(spark, tmp_path, broker, "copied", **options)
        run(spark, tmp_path, broker, "copied")
        reader.ensure(first, range(30))
        reader.ensure(second, range(10, 30))


def run_beyond_a_copy(spark: SparkSession, folder: Path, broker: Broker, name: str) -> None:
    """Run a query for ten rows, copy its checkpoint to `copy`, and run it for ten rows more."""
    fill(folder, range(10))
    run(spark, folder, broker, name)
    shutil.copytree(folder / name, folder / "copy")
    fill(folder, range(10, 20))
    run(spark, folder, broker, name)


def restore(copy: Path, checkpoint: Path) -> None:
    """Put a copy of a checkpoint in its place."""
    shutil.rmtree(checkpoint)
    shutil.copytree(copy, checkpoint)


def refused(
    spark: SparkSession, folder: Path, broker: Broker, name: str, *, error: str, **options: Any
) -> str:
    """Run a query that is refused; return its error, of which nothing is visible."""
    with pytest.raises(PySparkException, match=f"(?s){error}") as raised:
        run(spark, folder, broker, name, **options)
    assert "nothing is visible" in str(raised.value)
    return str(raised.value)


def query_id(checkpoint: Path) -> str:
    return str(json.loads((checkpoint / "metadata").read_text())["id"])
