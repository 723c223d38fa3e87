"""Exactly once into a real cluster, step by step as Spark calls it: a broker in memory, with faults."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from spark_kbatch.errors import CommitError, ConfigError, KBatchError
from spark_kbatch.opening.stores import begin_job
from spark_kbatch.remote import exactly_once
from spark_kbatch.remote.transactions import Transactions
from spark_kbatch.spark.writer import KBatchWriter, TaskMessage
from spark_kbatch.store.repetitions import Evidence
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey, Request
from tests.support import draws
from tests.support.exactly_once_driver import PREFIX, Driver
from tests.support.spark_streams import SparkCheckpoint
from tests.support.transactional_cluster import HANG_UP, READ, WRITE, Faults, TransactionalCluster


@pytest.fixture
def brokers() -> Iterator[TransactionalCluster]:
    exactly_once._answered.clear()
    with TransactionalCluster() as cluster:
        cluster.create_topic("shipped", 2)
        yield cluster


@pytest.fixture
def checkpoint(tmp_path: Path) -> SparkCheckpoint:
    return SparkCheckpoint(tmp_path / "checkpoint")


def shipped(brokers: TransactionalCluster, topic: str = "shipped") -> list[int]:
    """Return what a consumer of committed records sees."""
    found = [record.value for of in brokers.committed(topic) for record in of]
    return sorted(int(value or b"") for value in found)


# What is written.


def test_micro_batches_are_transactions_with_their_progress(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint
) -> None:
    driver = Driver(brokers.address, compression_type="zstd")
    for end in (10, 11, 30):
        driver.micro_batch(checkpoint, end)
    assert shipped(brokers) == [*range(30)]
    assert list(brokers.ended.values()) == [True] * 3
    offset, metadata = brokers.offsets[PREFIX]["shipped", 0]
    assert offset == 3
    assert checkpoint.query_id in metadata


def test_repeated_micro_batch_is_skipped_with_a_new_driver(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint
) -> None:
    Driver(brokers.address).micro_batch(checkpoint, 10, is_noted=False)
    Driver(brokers.address).micro_batch(checkpoint, 10)
    Driver(brokers.address).micro_batch(checkpoint, 20)
    assert shipped(brokers) == [*range(20)]


def test_restored_checkpoint_is_refused_and_an_option_decides(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint, tmp_path: Path
) -> None:
    Driver(brokers.address).micro_batch(checkpoint, 10)
    copy = checkpoint.copied_to(tmp_path / "copy")
    Driver(brokers.address).micro_batch(checkpoint, 20)
    with pytest.raises(CommitError, match=f"micro-batch 1 of {copy.query_id} is no repetition"):
        Driver(brokers.address).micro_batch(copy, 30)
    assert shipped(brokers) == [*range(20)]
    Driver(brokers.address, resolve_micro_batch=f"skip {copy.query_id} 1").micro_batch(copy, 30)
    Driver(brokers.address).micro_batch(copy, 40)
    assert shipped(brokers) == [*range(20), *range(30, 40)]


def test_first_micro_batch_is_noted_even_without_rows(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint
) -> None:
    driver = Driver(brokers.address)
    for end in (0, 0, 5, 5, 9):
        driver.micro_batch(checkpoint, end)
    assert shipped(brokers) == [*range(9)]
    assert brokers.offsets[PREFIX]["shipped", 0][0] == 5
    assert len(brokers.ended) == 3


def test_micro_batch_above_0_without_progress_is_refused_and_an_option_decides(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint
) -> None:
    driver, query = Driver(brokers.address), checkpoint.query_id
    driver.micro_batch(checkpoint, 10)
    brokers.offsets.clear()  # offsets.retention.minutes
    said = rf"micro-batch 1 of {query} is refused: under the prefix '{PREFIX}' no earlier one"
    with pytest.raises(CommitError, match=said):
        driver.micro_batch(checkpoint, 20)
    Driver(brokers.address, resolve_micro_batch=f"skip {query} 1").micro_batch(checkpoint, 20)
    driver.micro_batch(checkpoint, 30)
    assert shipped(brokers) == [*range(10), *range(20, 30)]


def test_other_query_under_a_prefix_is_refused_and_an_option_decides(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint, tmp_path: Path
) -> None:
    driver, other = Driver(brokers.address), SparkCheckpoint(tmp_path / "other")
    driver.micro_batch(checkpoint, 10)
    with pytest.raises(CommitError) as error:
        driver.micro_batch(other, 20)
    for one in (checkpoint.query_id, other.query_id, PREFIX, f"write {other.query_id} 0"):
        assert one in str(error.value)
    Driver(brokers.address, resolve_micro_batch=f"write {other.query_id} 0").micro_batch(other, 20)
    driver.micro_batch(other, 30)
    assert shipped(brokers) == sorted([*range(10), *range(30)])
    with pytest.raises(CommitError, match="A prefix belongs to one query"):
        driver.micro_batch(checkpoint, 50)


def test_rows_that_name_their_topics_keep_one_progress(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint
) -> None:
    brokers.create_topic("other", 1)
    driver = Driver(brokers.address, topic=None)

    def micro_batch(number: int, topics: dict[str, str]) -> None:
        staged = driver.staged(driver.planned(), [*topics], "query", [*topics.values()])
        driver.commit([staged], number)

    micro_batch(0, {"1": "shipped", "2": "other"})
    micro_batch(0, {"1": "shipped", "2": "other"})
    micro_batch(1, {"3": "shipped"})
    micro_batch(1, {"3": "shipped"})
    micro_batch(2, {"4": "other"})
    assert (shipped(brokers), shipped(brokers, "other")) == ([1, 3], [2, 4])
    with pytest.raises(CommitError, match="micro-batch 1 of query is no repetition"):
        micro_batch(1, {"3": "shipped"})


def test_progress_stays_in_one_place_whichever_topics_rows_name(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint, tmp_path: Path
) -> None:
    for topic in ("a", "b"):
        brokers.create_topic(topic, 1)

    def write(checkpoint: SparkCheckpoint, end: int, topic: str, **options: Any) -> None:
        driver, plan = Driver(brokers.address, topic=None, **options), checkpoint.plan(end)
        values = [str(number) for number in range(plan.start, plan.end)]
        topics = [topic] * len(values)
        staged = driver.staged(driver.planned(), values, checkpoint.query_id, topics)
        driver.commit([staged], plan.number, str(checkpoint.folder))

    write(checkpoint, 10, "b")
    checkpoint.note(0)
    restored = checkpoint.copied_to(tmp_path / "restored")
    for number, end, topic in ((1, 20, "a"), (2, 30, "b")):
        write(checkpoint, end, topic)
        checkpoint.note(number)
    assert {at: offset for at, (offset, _) in brokers.offsets[PREFIX].items()} == {("b", 0): 3}

    with pytest.raises(CommitError, match=r"micro-batch 1 .* is no repetition"):
        write(restored, 20, "a")
    write(restored, 20, "a", resolve_micro_batch=f"write {restored.query_id} 1")
    # The driver died before it noted that.
    write(restored, 20, "a", resolve_micro_batch=f"write {restored.query_id} 1")
    restored.note(1)
    write(restored, 25, "a")
    assert shipped(brokers, "a") == sorted([*range(10, 20)] * 2 + [*range(20, 25)])

    # What is known of a query goes with the topic where its progress is, and with no other one.
    restored.note(2)
    brokers.offsets.clear()
    with pytest.raises(CommitError, match="no earlier one is known"):
        write(restored, 40, "b")
    write(restored, 40, "b", resolve_micro_batch=f"skip {restored.query_id} 3")
    assert brokers.offsets[PREFIX]["b", 0][0] == 4
    assert shipped(brokers, "b") == [*range(10), *range(20, 30)]


def test_batch_job_without_rows_and_without_the_option_topic_notes_nothing(
    brokers: TransactionalCluster,
) -> None:
    driver = Driver(brokers.address, topic=None, txnAppId="job", txnVersion=1)
    job = pickle.loads(driver.planned(is_micro_batch=False))
    message = TaskMessage(job.stage([]))
    KBatchWriter(job).commit([message])
    assert not brokers.offsets[PREFIX]


def test_query_without_rows_is_refused_under_a_prefix_of_another_one(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint, tmp_path: Path
) -> None:
    Driver(brokers.address).micro_batch(checkpoint, 10)
    for topic in ("shipped", None):
        other = SparkCheckpoint(tmp_path / f"{topic}")
        with pytest.raises(CommitError, match="A prefix belongs to one query"):
            Driver(brokers.address, topic=topic).micro_batch(other, 0)


def test_batch_jobs_write_each_version_of_a_name_once(brokers: TransactionalCluster) -> None:
    for version in (7, 7, 8, 3):
        Driver(brokers.address, txnAppId="job", txnVersion=version).batch([str(version)])
    assert shipped(brokers) == [7, 8]
    brokers.create_topic("other", 1)
    Driver(brokers.address, txnAppId="job", txnVersion=1, topic="other").batch(["1"])
    assert shipped(brokers, "other") == [1]
    with pytest.raises(CommitError, match="version 9 of new@shipped is refused"):
        Driver(brokers.address, txnAppId="new", txnVersion=9).batch(["9"])


def test_batch_job_without_a_name_is_one_transaction(brokers: TransactionalCluster) -> None:
    Driver(brokers.address).batch(["1", "2", "3"])
    Driver(brokers.address).batch([])
    assert shipped(brokers) == [1, 2, 3]
    assert list(brokers.ended.values()) == [True]
    assert not brokers.offsets[PREFIX]


def test_batches_that_a_topic_would_refuse_are_divided_by_the_task(
    brokers: TransactionalCluster,
) -> None:
    brokers.max_message_bytes = 500
    Driver(brokers.address).batch([str(number) for number in range(1000)])
    assert shipped(brokers) == [*range(1000)]


def test_missing_topic_is_created_by_the_first_rows(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint
) -> None:
    Driver(brokers.address, topic="new", num_partitions=3).micro_batch(checkpoint, 10)
    assert len(brokers.topics["new"]) == 3
    assert shipped(brokers, "new") == [*range(10)]


def test_topic_that_was_recreated_while_tasks_ran_is_refused(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint
) -> None:
    driver = Driver(brokers.address)
    message = driver.staged(driver.planned(), ["1"], "query")
    brokers.create_topic("shipped", 2)
    with pytest.raises(CommitError, match=r"'shipped' .* was deleted while the job ran"):
        driver.commit([message], 0)
    assert shipped(brokers) == []
    assert not brokers.has_open_transaction


def test_topic_that_was_recreated_since_an_earlier_job_of_the_process_is_written(
    brokers: TransactionalCluster,
) -> None:
    driver = Driver(brokers.address)
    driver.batch(["1"])
    brokers.create_topic("shipped", 3)
    driver.batch([str(number) for number in range(2, 100)])
    assert shipped(brokers) == [*range(2, 100)]


# Sizes.


def test_task_above_the_drivers_bytes_fails_at_once_and_so_does_their_sum(
    brokers: TransactionalCluster,
) -> None:
    driver = Driver(brokers.address, exactly_once_driver_bytes=3000, batch_size=500)
    job = driver.planned()
    with pytest.raises(CommitError, match="a task has 3") as error:
        driver.staged(job, ["x" * 100] * 1000, "query")
    message = driver.staged(job, ["1" * 100] * 15, "query")
    with pytest.raises(CommitError, match="a job or micro-batch has") as of_sum:
        driver.commit([message, message], 0)
    for said in (str(error.value), str(of_sum.value)):
        for word in ("maxOffsetsPerTrigger", "exactly.once.driver.bytes", "kbatch mirror", "3000"):
            assert word in said
    driver.commit([message], 0)
    assert len(brokers.committed("shipped")[0] + brokers.committed("shipped")[1]) == 15


def test_metadata_of_progress_stays_below_the_brokers_limit(
    brokers: TransactionalCluster,
) -> None:
    names = [f"{number}{'t' * 240}" for number in range(8)]
    for name in names:
        brokers.create_topic(name, 1)
    driver = Driver(brokers.address, topic=None, txnAppId="ü" * 999, txnVersion=1)
    rows = [pa.record_batch({"topic": names, "value": ["1"] * 8})]
    for _ in range(2):
        job = driver.planned(is_micro_batch=False)
        KBatchWriter(pickle.loads(job)).commit([TaskMessage(pickle.loads(job).stage(rows))])
    ((_, metadata),) = brokers.offsets[PREFIX].values()
    assert len(metadata) <= 4096
    assert [shipped(brokers, name) for name in names] == [[1]] * 8


# Other drivers.


def test_take_over_happens_once_a_writer_and_not_in_the_commits(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint
) -> None:
    asked: list[int] = []
    brokers.on_request = lambda request: asked.append(request.api_key)
    driver = Driver(brokers.address)
    job = begin_job(driver.options, is_micro_batch=True)
    assert ApiKey.INIT_PRODUCER_ID not in asked
    first, second = pickle.dumps(job), pickle.dumps(job)
    messages = [driver.staged(one, ["1"], "query") for one in (first, second)]
    driver.commit(messages, 0)
    assert asked.count(ApiKey.INIT_PRODUCER_ID) == 1
    assert shipped(brokers) == [1, 1]


def test_zombie_driver_is_fenced_by_the_epoch_of_its_rows(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint
) -> None:
    zombie, driver = Driver(brokers.address), Driver(brokers.address)
    driver.micro_batch(checkpoint, 10)
    message = zombie.staged(zombie.planned(), ["10"], checkpoint.query_id)
    driver.planned()
    with pytest.raises(CommitError, match=f"newer driver.* has taken over the prefix '{PREFIX}'"):
        zombie.commit([message], 1)
    assert shipped(brokers) == [*range(10)]
    driver.micro_batch(checkpoint, 20)
    assert shipped(brokers) == [*range(20)]


def test_messages_of_two_writers_are_refused(brokers: TransactionalCluster) -> None:
    driver = Driver(brokers.address)
    messages = [driver.staged(driver.planned(), ["1"], "query") for _ in range(2)]
    with pytest.raises(CommitError, match="another driver has run the same micro-batch"):
        driver.commit(messages, 0)
    assert shipped(brokers) == []


# What is refused when a query starts.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            lambda brokers: brokers.rights.update({PREFIX: 0}), "read consumer group", id="group"
        ),
        pytest.param(
            lambda brokers: brokers.rights.update(shipped=WRITE), "read topic 'shipped'", id="read"
        ),
        pytest.param(
            lambda brokers: brokers.rights.update(shipped=READ), "write topic 'shipped'", id="write"
        ),
        pytest.param(
            lambda brokers: brokers.refusals.update(
                {ApiKey.FIND_COORDINATOR: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
            ),
            f"to write and describe the transactional id '{PREFIX}'",
            id="transactional-id",
        ),
        pytest.param(
            lambda brokers: brokers.refusals.update(
                {ApiKey.OFFSET_FETCH: ErrorCode.GROUP_AUTHORIZATION_FAILED}
            ),
            "to read the consumer group",
            id="group-unseen",
        ),
    ],
)
def test_missing_right_is_refused_by_name_before_anything_is_changed(
    brokers: TransactionalCluster, change: Callable[[TransactionalCluster], None], said: str
) -> None:
    change(brokers)
    asked: list[int] = []
    brokers.on_request = lambda request: asked.append(request.api_key)
    with pytest.raises(ConfigError, match=said):
        begin_job(Driver(brokers.address).options, is_micro_batch=True)
    assert ApiKey.INIT_PRODUCER_ID not in asked


def test_time_out_above_the_brokers_is_refused_with_both_names(
    brokers: TransactionalCluster,
) -> None:
    brokers.max_timeout_ms = 30_000
    with pytest.raises(ConfigError, match=r"'transaction\.timeout\.ms' is 60000, .*max\.timeout"):
        Driver(brokers.address).planned()
    Driver(brokers.address, transaction_timeout_ms=30_000).planned()


@pytest.mark.parametrize(
    "options",
    [{"acks": "1"}, {"kafka.enable.idempotence": "false"}, {"kafka.retries": "0"}],
    ids=lambda options: str(*options),
)
def test_options_that_contradict_exactly_once_are_refused(
    brokers: TransactionalCluster, options: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match="'exactly-once', which needs acks=all"):
        begin_job(Driver(brokers.address, **options).options)


def test_group_that_something_else_uses_is_refused(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint
) -> None:
    for metadata in ("", "{}", "[1]"):
        brokers.offsets[PREFIX] = {("shipped", 0): (3, metadata)}
        brokers.leader_epochs[PREFIX, "shipped", 0] = -1
        with pytest.raises(ConfigError, match="offsets that no write has committed"):
            Driver(brokers.address).micro_batch(checkpoint, 10)


# Answers that are lost.


def lose(brokers: TransactionalCluster, api_key: ApiKey, then: Callable[[], Any]) -> None:
    """Lose the answer to the first request of a kind, after it was executed; call `then` first."""
    whole, is_lost = brokers._server._answer, False

    def answer(request: Request) -> Any:
        nonlocal is_lost
        found = whole(request)
        if request.api_key != api_key or is_lost:
            return found
        is_lost = True
        then()
        return HANG_UP

    brokers._server._answer = answer


def test_commit_whose_answer_is_lost_while_another_driver_takes_over_is_found(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint
) -> None:
    driver, other = Driver(brokers.address), Driver(brokers.address)
    driver.micro_batch(checkpoint, 10)
    lose(brokers, ApiKey.END_TXN, lambda: other.planned())
    driver.micro_batch(checkpoint, 20, is_noted=False)
    assert shipped(brokers) == [*range(20)]
    other.micro_batch(checkpoint, 20)
    assert shipped(brokers) == [*range(20)]


def test_commit_whose_answer_is_lost_while_another_driver_goes_on_says_that_it_is_visible(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint, tmp_path: Path
) -> None:
    checkpoint.plan(10)
    copy = checkpoint.copied_to(tmp_path / "copy")

    def go_on() -> None:
        Driver(brokers.address).micro_batch(copy, 10)
        Driver(brokers.address).micro_batch(copy, 20)

    lose(brokers, ApiKey.END_TXN, go_on)
    with pytest.raises(CommitError, match="its rows are visible, once: a newer driver"):
        Driver(brokers.address).micro_batch(checkpoint, 10)
    assert shipped(brokers) == [*range(20)]


def test_query_starts_at_once_while_the_transaction_of_a_dead_driver_is_open(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "end", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Driver(brokers.address).micro_batch(checkpoint, 10)
    assert brokers.has_open_transaction
    exactly_once._answered.clear()
    asked: list[int] = []
    brokers.on_request = lambda request: asked.append(request.api_key)
    Driver(brokers.address).micro_batch(checkpoint, 10)
    before = asked[: asked.index(ApiKey.INIT_PRODUCER_ID)]
    assert before.count(ApiKey.OFFSET_FETCH) == 1
    assert shipped(brokers) == [*range(10)]


def test_commit_with_long_sources_whose_answer_is_lost_is_found(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Driver(brokers.address)
    lose(brokers, ApiKey.END_TXN, other.planned)
    monkeypatch.setattr(exactly_once, "_METADATA_MAX", 600)
    whole = Evidence.of_tasks.__func__

    def with_sources(kind: type[Evidence], *args: Any) -> Evidence:
        return whole(kind, *args)._replace(sources="x" * 500)

    monkeypatch.setattr(Evidence, "of_tasks", classmethod(with_sources))
    Driver(brokers.address).micro_batch(checkpoint, 10)
    ((_, metadata),) = brokers.offsets[PREFIX].values()
    assert "xxx" not in metadata
    assert shipped(brokers) == [*range(10)]


def test_resolved_transaction_that_the_cluster_has_aborted_is_not_called_visible(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint, tmp_path: Path
) -> None:
    Driver(brokers.address).micro_batch(checkpoint, 10)
    copy = checkpoint.copied_to(tmp_path / "copy")
    for end in (20, 30):
        Driver(brokers.address).micro_batch(checkpoint, end)
    other = Driver(brokers.address)
    driver = Driver(brokers.address, resolve_micro_batch=f"write {copy.query_id} 1")

    def take_over_first(request: Request) -> None:
        if request.api_key == ApiKey.END_TXN:
            brokers.on_request = lambda request: None
            other.planned()

    brokers.on_request = take_over_first
    with pytest.raises(CommitError, match=r"nothing is visible: .* has taken over the prefix"):
        driver.micro_batch(copy, 20)
    assert shipped(brokers) == [*range(30)]


def test_batch_job_without_a_name_says_that_its_outcome_is_unknown(
    brokers: TransactionalCluster,
) -> None:
    driver, other = Driver(brokers.address), Driver(brokers.address)
    lose(brokers, ApiKey.END_TXN, lambda: other.planned())
    with pytest.raises(CommitError, match=r"it is not known whether it is visible: .*txnAppId"):
        driver.batch(["1"])
    assert shipped(brokers) == [1]


def test_commit_that_is_not_answered_in_time_aborts_nothing_and_is_found_later(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint
) -> None:
    driver = Driver(brokers.address, **{"kafka.default.api.timeout.ms": 300})
    is_down = False
    whole = brokers._server._answer

    def answer(request: Request) -> Any:
        nonlocal is_down
        found = HANG_UP if is_down else whole(request)
        if request.api_key == ApiKey.END_TXN:
            is_down = True
            return HANG_UP
        return found

    brokers._server._answer = answer
    with pytest.raises(CommitError, match=r"it is not known whether it is visible.*it is skipped"):
        driver.micro_batch(checkpoint, 10)
    brokers._server._answer = whole
    Driver(brokers.address).micro_batch(checkpoint, 10)
    assert shipped(brokers) == [*range(10)]
    assert list(brokers.ended.values()) == [True]


@pytest.mark.parametrize("seed", draws.seeds(6))
def test_rows_are_there_once_whatever_requests_and_drivers_are_lost(
    brokers: TransactionalCluster, checkpoint: SparkCheckpoint, seed: int
) -> None:
    rng = random.Random(seed)
    brokers.faults = Faults(seed=seed, share=0.15)
    end = 0
    for _ in range(25):
        end += rng.randrange(1, 20)
        driver = Driver(brokers.address, **{"kafka.default.api.timeout.ms": 3000})
        for is_noted in (*[False] * rng.randrange(2), True):
            try:
                driver.micro_batch(checkpoint, end, is_noted=is_noted)
            except KBatchError:
                end = checkpoint.plan(end).end  # it is repeated as it was planned
        committed = shipped(brokers)
        assert committed == [*range(len(committed))]
    brokers.faults = Faults()
    planned = checkpoint.plan(end)
    Driver(brokers.address).micro_batch(checkpoint, max(end, planned.end))
    if planned.end < end:
        Driver(brokers.address).micro_batch(checkpoint, end)
    assert shipped(brokers) == [*range(end)]
    assert not brokers.has_open_transaction
