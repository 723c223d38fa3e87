"""A mirror into a real cluster: exactly once through lost answers, moved coordinators and dead processes."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.errors import (
    ConfigError,
    KBatchError,
    MirrorFencedError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    RequestTimedOutError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.mirroring import into_cluster
from spark_kbatch.mirroring.batches import MirroredBatch
from spark_kbatch.mirroring.copying import MirrorProgress
from spark_kbatch.mirroring.into_cluster import ClusterTarget
from spark_kbatch.mirroring.progress import Progress
from spark_kbatch.mirroring.target import EndOffsets
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.remote import parse_cluster_options
from spark_kbatch.remote import batch_producer
from spark_kbatch.wire.connections import Node
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey, Request
from tests.support import builders, draws
from tests.support.mirrors import (
    MIRROR,
    as_mirrored,
    ensure_goes_on_after_aborted_records,
    mirrored,
)
from tests.support.transactional_cluster import Faults, TransactionalCluster


@pytest.fixture
def source(tmp_path: Path) -> Cluster:
    cluster = builders.a_cluster(tmp_path / "source", topics={"events": 3})
    write(cluster)
    return cluster


@pytest.fixture
def brokers() -> Iterator[TransactionalCluster]:
    with TransactionalCluster() as cluster:
        yield cluster


def write(cluster: Cluster, *, batches: int = 4) -> None:
    for seed in range(batches):
        for partition in range(3):
            batch = builders.batch(n=2 + partition, seed=seed, compression="lz4")
            builders.append_records(cluster, {("events", partition): batch})


def target(brokers: TransactionalCluster, name: str = MIRROR, **options: Any) -> ClusterTarget:
    quick = {"retry.backoff.ms": 1, "reconnect.backoff.ms": 1, "reconnect.backoff.max.ms": 5}
    given = {"bootstrap.servers": brokers.address, **quick, **options}
    return ClusterTarget(parse_cluster_options(given, alone=True), name)


def run(
    source: Cluster, brokers: TransactionalCluster, name: str = MIRROR, **settings: Any
) -> MirrorProgress:
    """Mirror in a process of its own."""
    process = target(brokers, name)
    try:
        return mirrored(source.path, process, name=name, **settings)
    finally:
        process.close()


def a_batch() -> MirroredBatch:
    return MirroredBatch(bytearray(builders.batch(n=1)), 0, 1, is_kept=True)


def rest(brokers: TransactionalCluster, source: Cluster) -> None:
    """Check that consumers of committed records see what the source has, in order."""
    wanted = as_mirrored(source.path)
    found = [[record[1:] for record in records] for records in brokers.committed("events")]
    assert found == [
        [record[1:] for record in wanted[TopicPartition("events", partition)]]
        for partition in range(3)
    ]
    assert not brokers.has_open_transaction


def rest_or_nothing(brokers: TransactionalCluster, source: Cluster) -> None:
    if any(brokers.committed("events")):
        rest(brokers, source)


def test_a_topic_is_made_and_filled_in_transactions(
    source: Cluster, brokers: TransactionalCluster
) -> None:
    done = run(source, brokers, unit_bytes=1)

    rest(brokers, source)
    assert len(brokers.topics["events"]) == 3
    assert (done.topics_created, done.records_count, done.units) == (("events",), 36, 3)
    assert (done.batches_kept, done.batches_encoded) == (12, 0)
    assert len(brokers.ended) == 4  # the first one has offsets alone
    write(source)
    assert run(source, brokers).records_count == 36
    rest(brokers, source)


def test_progress_is_stored_with_the_ids_of_the_topics(
    source: Cluster, brokers: TransactionalCluster
) -> None:
    run(source, brokers)

    offset, metadata = brokers.offsets[MIRROR]["events", 2]
    assert offset == 16
    assert brokers.leader_epochs[MIRROR, "events", 2] == 0
    assert source.topic("events").topic_id in metadata


def test_progress_is_stored_where_a_source_had_only_aborted_records(
    brokers: TransactionalCluster, tmp_path: Path
) -> None:
    broker = tmp_path / "broker"

    def run_again() -> MirrorProgress:
        with contextlib.closing(target(brokers)) as process:
            return mirrored(broker, process)

    ensure_goes_on_after_aborted_records(broker, run_again)

    assert [record.value for record in brokers.committed("events")[0]] == [b"0", b"1", b"6"]
    assert not brokers.has_open_transaction


def test_batches_above_the_topics_limit_are_divided(
    source: Cluster, brokers: TransactionalCluster
) -> None:
    brokers.max_message_bytes = 300
    builders.append_records(source, {("events", 0): builders.batch(n=20)})

    assert run(source, brokers).batches_encoded > 3

    rest(brokers, source)


def test_a_topic_with_records_and_no_progress_is_refused(
    source: Cluster, brokers: TransactionalCluster
) -> None:
    run(source, brokers)

    with pytest.raises(ConfigError, match=r"events-0 of .* is not empty"):
        run(source, brokers, "another")

    rest(brokers, source)


class Two:
    """Two mirrors in two threads that begin together, and may commit together."""

    def __init__(
        self, source: Cluster, brokers: TransactionalCluster, *, commit_together: bool
    ) -> None:
        self._source, self._brokers, self._commit_together = source, brokers, commit_together
        self._barrier = threading.Barrier(2, timeout=20)
        self.refused: list[str] = []  # names of mirrors

    def run(self) -> None:
        threads = [threading.Thread(target=self._run, args=(name,)) for name in (MIRROR, "another")]
        for one in threads:
            one.start()
        for one in threads:
            one.join()

    def _run(self, name: str) -> None:
        process = target(self._brokers, name)
        start, check = process.start, process._ensure_no_other_wrote

        def start_together(progress: Progress) -> None:
            start(progress)
            self._barrier.wait()

        def check_together(first: EndOffsets) -> None:
            if self._commit_together:
                self._barrier.wait()
            check(first)

        process.start = start_together  # type: ignore[method-assign]
        process._ensure_no_other_wrote = check_together  # type: ignore[method-assign]
        with contextlib.closing(process), contextlib.suppress(ConfigError):
            self.refused.append(name)
            mirrored(self._source.path, process, name=name)
            self.refused.remove(name)


def test_of_two_mirrors_that_begin_together_one_at_most_is_done(
    source: Cluster, brokers: TransactionalCluster
) -> None:
    two = Two(source, brokers, commit_together=False)
    two.run()

    assert two.refused
    if len(two.refused) == 1:
        rest(brokers, source)
        with pytest.raises(ConfigError, match=r"has records, and mirror .* has not written any"):
            run(source, brokers, two.refused[0])
    rest_or_nothing(brokers, source)


def test_mirrors_that_stopped_each_other_can_be_run_one_by_one(
    source: Cluster, brokers: TransactionalCluster
) -> None:
    two = Two(source, brokers, commit_together=True)
    two.run()
    assert sorted(two.refused) == sorted([MIRROR, "another"])
    assert not any(brokers.committed("events"))

    run(source, brokers)
    with pytest.raises(ConfigError, match="has records, and mirror 'another' has not written any"):
        run(source, brokers, "another")

    rest(brokers, source)


def test_an_open_transaction_counts_as_records_of_another(
    source: Cluster, brokers: TransactionalCluster
) -> None:
    two = Two(source, brokers, commit_together=True)
    two.run()
    begun = target(brokers)
    begun.take_over()
    begun.topic("events")
    begun.send(TopicPartition("events", 0), [a_batch()])
    begun._producer.flush()

    with pytest.raises(ConfigError, match="has records, and mirror 'another' has not written any"):
        run(source, brokers, "another")

    begun.close()


def test_a_group_of_consumers_is_not_taken_for_a_mirror(
    source: Cluster, brokers: TransactionalCluster
) -> None:
    brokers.offsets[MIRROR]["events", 0] = (7, "")
    brokers.leader_epochs[MIRROR, "events", 0] = -1

    with pytest.raises(ConfigError, match="has offsets that no mirror committed"):
        run(source, brokers)


def test_a_cluster_that_lets_no_transactions_be_written_is_told(
    source: Cluster, brokers: TransactionalCluster
) -> None:
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    brokers.refusals[ApiKey.INIT_PRODUCER_ID] = code

    with pytest.raises(ConfigError, match="allow it to write and describe"):
        run(source, brokers)


def test_another_process_of_the_name_fences_the_first(
    source: Cluster, brokers: TransactionalCluster
) -> None:
    first = target(brokers)

    def another(_done: MirrorProgress) -> None:
        run(source, brokers)

    with pytest.raises(MirrorFencedError, match="taken over by another process"):
        mirrored(source.path, first, on_progress=another)

    first.close()
    rest(brokers, source)


@pytest.mark.parametrize(
    ("code", "kind", "told"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, KBatchError, "AUTHORIZATION_FAILED.* for events-0"),
        (ErrorCode.MESSAGE_TOO_LARGE, RecordTooLargeError, "of 2 records.*max.message.bytes"),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, OutOfOrderSequenceError, "events-0.*was lost"),
        (ErrorCode.UNKNOWN_PRODUCER_ID, UnknownProducerIdError, "events-0"),
        (ErrorCode.INVALID_PRODUCER_EPOCH, MirrorFencedError, "taken over by another process"),
    ],
    ids=["forbidden", "too-large-by-now", "out-of-order", "forgotten", "fenced"],
)
def test_a_refused_batch_aborts_the_unit_at_once(
    source: Cluster,
    brokers: TransactionalCluster,
    code: ErrorCode,
    kind: type[KBatchError],
    told: str,
) -> None:
    brokers.refusals[ApiKey.PRODUCE] = code

    with pytest.raises(kind, match=told):
        run(source, brokers)

    assert not brokers.has_open_transaction
    assert list(brokers.ended.values()) == [True, False]  # the first one has offsets alone
    brokers.refusals.clear()
    run(source, brokers)
    rest(brokers, source)


@pytest.mark.parametrize("most_bytes", [0, 1 << 20], ids=["when-too-much-waits", "at-the-commit"])
def test_a_cluster_that_never_writes_ends_the_mirror(
    source: Cluster,
    brokers: TransactionalCluster,
    monkeypatch: pytest.MonkeyPatch,
    most_bytes: int,
) -> None:
    monkeypatch.setattr(into_cluster, "TRANSACTION_TIMEOUT_MS", 300)
    monkeypatch.setattr(batch_producer, "_MOST_BYTES", most_bytes)
    brokers.refusals[ApiKey.PRODUCE] = ErrorCode.NOT_ENOUGH_REPLICAS
    steps: list[MirrorProgress] = []

    with (
        contextlib.closing(target(brokers)) as process,
        pytest.raises(
            RequestTimedOutError, match=r"transaction's 300 ms: .*NOT_ENOUGH_REPLICAS.*events-\d"
        ),
    ):
        mirrored(source.path, process, on_progress=steps.append)

    assert most_bytes or not steps


def test_a_leader_that_cannot_be_reached_is_named(
    source: Cluster, brokers: TransactionalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(into_cluster, "TRANSACTION_TIMEOUT_MS", 500)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gone = Node(2, "127.0.0.1", taken.getsockname()[1])

    def move(_done: MirrorProgress) -> None:
        brokers.leaders = [gone]

    brokers.refusals[ApiKey.PRODUCE] = (
        ErrorCode.NOT_LEADER_OR_FOLLOWER
    )  # so nothing is written before
    with (
        contextlib.closing(target(brokers)) as process,
        pytest.raises(RequestTimedOutError, match=f"events-0 .*{gone.port}"),
    ):
        mirrored(source.path, process, on_progress=move, unit_bytes=1 << 30)


@pytest.mark.parametrize(
    ("is_made_again", "told"),
    [(False, "'events' does not exist in"), (True, "deleted and created again")],
)
def test_a_topic_that_is_deleted_meanwhile_ends_the_mirror(
    source: Cluster, brokers: TransactionalCluster, *, is_made_again: bool, told: str
) -> None:
    def delete(_done: MirrorProgress) -> None:
        brokers.topics.pop("events", None)
        if is_made_again:
            brokers.create_topic("events", 3)
            brokers.refusals[ApiKey.PRODUCE] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with (
        contextlib.closing(target(brokers)) as process,
        pytest.raises(UnknownTopicOrPartitionError, match=told),
    ):
        mirrored(source.path, process, on_progress=delete)


def test_an_abort_waits_for_the_answers_to_what_was_sent(brokers: TransactionalCluster) -> None:
    """Or else a batch could be written after the end of its transaction, and belong to none."""
    arrived = threading.Event()

    def be_slow(request: Request) -> None:
        if request.api_key == ApiKey.PRODUCE:
            arrived.set()
            time.sleep(0.3)

    brokers.create_topic("events", 1)
    brokers.on_request = be_slow
    with contextlib.closing(target(brokers)) as process:
        process.take_over()
        process.topic("events")
        process.send(TopicPartition("events", 0), [a_batch()])
        process._producer._sender.run_until(arrived.is_set)
        process.abandon()

    first, *_, marker = brokers.topics["events"][0].batches
    assert (first.is_marker, marker.is_marker) == (False, True)
    assert first.transaction == marker.transaction


def test_all_progress_is_committed_again_once_a_day(
    source: Cluster, brokers: TransactionalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = target(brokers)
    mirrored(source.path, process)
    progress = process.take_over()
    process.start(progress)
    brokers.offsets.clear()  # as if all had expired
    now_ms = into_cluster.monotonic_ms()
    assert not process.is_due()

    monkeypatch.setattr(into_cluster, "monotonic_ms", lambda: now_ms + 86_400_000)
    assert process.is_due()
    process.commit(progress, {})

    assert {offset for offset, _ in brokers.offsets[MIRROR].values()} == {8, 12, 16}
    assert not process.is_due()
    process.close()


class Died(BaseException):
    """The process is killed."""


def run_until_it_dies(
    source: Cluster, brokers: TransactionalCluster, after: int, *, unit_bytes: int = 1
) -> bool:
    """Mirror in a process that dies after some steps; return True if it was done before."""
    process, left = target(brokers), [after]

    def die(_done: MirrorProgress) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Died

    process.abandon = lambda: None  # type: ignore[method-assign]  a dead process aborts nothing
    try:
        mirrored(source.path, process, on_progress=die, unit_bytes=unit_bytes)
    except Died:
        return False
    finally:
        process._client.close()
    return True


SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in draws.seeds(8, after=2))]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_record_is_there_once_whatever_is_lost_and_whatever_dies(
    source: Cluster, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    rng = random.Random(seed)
    with TransactionalCluster(faults=Faults(seed=seed, share=0.15)) as brokers:
        for _ in range(6):
            unit_bytes = rng.choice([1, 1 << 20])
            run_until_it_dies(source, brokers, rng.randrange(8), unit_bytes=unit_bytes)
            write(source, batches=rng.choice([0, 2, 12]))
        while not run_until_it_dies(source, brokers, 20):
            pass
        brokers.faults = Faults()
        run(source, brokers)
        rest(brokers, source)
