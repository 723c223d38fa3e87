"""Fetches of several partitions: when they are answered, and how."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.errors import (
    FencedLeaderEpochError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import AbortedTransaction, AppendOrigin, IsolationLevel, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.replica import delayed_fetch
from spark_kbatch.replica.delayed_fetch import (
    DelayedFetch,
    Fetch,
    FetchInfo,
    FetchParams,
    FetchPurgatory,
    FetchResult,
    Moment,
)
from tests.support import builders
from tests.support.builders import append_records, batch
from tests.support.faults import FaultyFiles
from tests.support.garbage import garbage_of
from tests.support.log_histories import data_batch, marker_batch
from tests.support.store import store_of

EVENTS, OTHERS = TopicPartition("events", 0), TopicPartition("others", 0)
SMALL, LARGE = batch(n=1, value_bytes=10), batch(n=1, value_bytes=5000)


class Answer:
    """Records a fetch's answer, and when it came."""

    def __init__(self) -> None:
        self.results: dict[TopicPartition, FetchResult] = {}
        self.count = 0
        self.came = threading.Event()

    def __call__(self, results: Mapping[TopicPartition, FetchResult]) -> None:
        self.results, self.count = dict(results), self.count + 1
        self.came.set()

    @property
    def sizes(self) -> list[int]:
        return [len(result.read.data) for result in self.results.values()]


def fetch(
    cluster: Cluster, infos: Mapping[TopicPartition, FetchInfo | int], **options: Any
) -> Answer:
    answer = Answer()
    wanted = {
        tp: FetchInfo(info, 1 << 20) if isinstance(info, int) else info
        for tp, info in infos.items()
    }
    params = FetchParams(**{"max_wait_ms": 60_000} | options)
    parts = store_of(cluster)
    parts.manager.fetch_messages(params, wanted, answer, replicas=parts.snapshots.replicas)
    return answer


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    topics = {"events": 2, "others": 1}
    return builders.a_cluster(tmp_path, topics=topics, files=FaultyFiles())  # waits for no disk


# Answers at once.


def test_enough_bytes_are_answered_at_once(cluster: Cluster) -> None:
    append_records(cluster, {EVENTS: SMALL})
    append_records(cluster, {EVENTS: LARGE})
    answer = fetch(cluster, {EVENTS: 0, OTHERS: 0}, min_bytes=5000)

    assert answer.count == 1
    assert answer.sizes == [len(SMALL) + len(LARGE), 0]
    read, offsets, diverging, error = answer.results[EVENTS]
    assert [header.base_offset for _, header in read.batches] == [0, 1]
    assert (offsets, diverging, error) == ((0, 2, 2, 2), None, None)
    assert answer.results[OTHERS].offsets == (0, 0, 0, 0)


@pytest.mark.parametrize("max_wait_ms", [0, -1])
def test_a_fetch_that_may_not_wait_is_answered_with_nothing(
    cluster: Cluster, max_wait_ms: int
) -> None:
    assert fetch(cluster, {EVENTS: 0}, max_wait_ms=max_wait_ms).sizes == [0]


def test_a_fetch_of_nothing_is_answered(cluster: Cluster) -> None:
    assert fetch(cluster, {}).count == 1


REFUSED = [
    pytest.param(EVENTS, FetchInfo(2, 100), OffsetOutOfRangeError, id="above the end"),
    pytest.param(
        TopicPartition("events", 2), FetchInfo(0, 100), UnknownTopicOrPartitionError,
        id="no such partition",
    ),
    pytest.param(
        TopicPartition("none", 0), FetchInfo(0, 100), UnknownTopicOrPartitionError,
        id="no such topic",
    ),
    pytest.param(
        EVENTS, FetchInfo(0, 100, current_leader_epoch=1), UnknownLeaderEpochError,
        id="a newer leader epoch",
    ),
    pytest.param(
        EVENTS, FetchInfo(0, 100, last_fetched_epoch=1), OffsetOutOfRangeError,
        id="batches of an epoch that is not known here",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("topic_partition", "info", "error"), REFUSED)
def test_an_error_is_answered_at_once_beside_the_others_batches(
    cluster: Cluster, topic_partition: TopicPartition, info: FetchInfo, error: type[Exception]
) -> None:
    append_records(cluster, {EVENTS: SMALL, OTHERS: SMALL})
    answer = fetch(cluster, {topic_partition: info, OTHERS: 0}, min_bytes=10**6)

    assert type(answer.results[topic_partition].error) is error
    assert answer.sizes == [0, len(SMALL)]


@pytest.mark.parametrize(("topic_partition", "info", "error"), REFUSED)
def test_an_answer_with_an_error_is_gone_with_its_last_reference(
    cluster: Cluster, topic_partition: TopicPartition, info: FetchInfo, error: type[Exception]
) -> None:
    append_records(cluster, {OTHERS: LARGE})

    def found() -> type[Exception]:
        return type(
            fetch(cluster, {OTHERS: 0, topic_partition: info}).results[topic_partition].error
        )

    assert found() is error  # and what is made once is made
    assert garbage_of(found) == 0  # else the batches of others would wait for the collector, too


def test_an_older_leader_epoch_is_fenced_and_a_log_that_went_another_way_is_told_where(
    cluster: Cluster,
) -> None:
    log = store_of(cluster).manager.log(EVENTS)
    append_records(cluster, {EVENTS: SMALL})
    append_records(cluster, {EVENTS: SMALL})
    log.write_state(log.state()._replace(leader_epoch=3, sequence=9), flush=False)
    (log.directory / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 2\n")
    append_records(cluster, {EVENTS: SMALL})

    fenced = fetch(cluster, {EVENTS: FetchInfo(0, 100, current_leader_epoch=2)})
    assert type(fenced.results[EVENTS].error) is FencedLeaderEpochError
    assert fetch(cluster, {EVENTS: FetchInfo(0, 100, 3, 0)}).sizes == [len(SMALL)]
    # Its epoch 2 is unknown here: epoch 0 ends at 2. Its epoch 0 went on to 3.
    for offset, epoch in ((3, 2), (3, 0)):
        info = FetchInfo(offset, 100, 3, epoch)
        diverging = fetch(cluster, {EVENTS: info}).results[EVENTS]
        assert diverging.diverging == (0, 2)
        assert (len(diverging.read.data), diverging.error) == (0, None)


# Limits.


def test_the_first_batch_is_whole_and_others_only_where_they_fit(cluster: Cluster) -> None:
    for topic_partition in (EVENTS, OTHERS):
        append_records(cluster, {topic_partition: LARGE})
        append_records(cluster, {topic_partition: SMALL})
    wanted = {EVENTS: FetchInfo(0, 100), OTHERS: FetchInfo(0, 100)}
    small = len(SMALL)

    assert fetch(cluster, wanted).sizes == [len(LARGE), 0]
    # The first partition has nothing: the next one may return a whole batch.
    assert fetch(cluster, {EVENTS: 2, OTHERS: 0}, max_bytes=1).sizes == [0, len(LARGE)]
    assert fetch(cluster, {EVENTS: 1, OTHERS: 1}, max_bytes=small).sizes == [small, 0]
    assert fetch(cluster, {EVENTS: 1, OTHERS: 1}, max_bytes=2 * small).sizes == [small, small]


# Waits.


def test_a_fetch_waits_for_its_bytes_and_is_answered_by_the_append_that_brings_them(
    cluster: Cluster,
) -> None:
    answer = fetch(cluster, {EVENTS: 0, OTHERS: 0}, min_bytes=len(SMALL) + 1)
    assert answer.count == 0
    append_records(cluster, {EVENTS: SMALL})
    assert answer.count == 0
    append_records(cluster, {OTHERS: SMALL})

    assert (answer.count, answer.sizes) == (1, [len(SMALL)] * 2)
    assert len(store_of(cluster).manager.delayed_fetches) == 0


def test_a_fetch_is_answered_when_its_time_is_over(cluster: Cluster) -> None:
    append_records(cluster, {EVENTS: SMALL})
    answer = fetch(cluster, {EVENTS: 0}, min_bytes=10**6, max_wait_ms=1)

    assert answer.came.wait(10)
    assert answer.sizes == [len(SMALL)]


def test_a_fetch_sees_what_another_process_appends(cluster: Cluster) -> None:
    answer = fetch(cluster, {EVENTS: 0})
    append_records(Cluster(str(cluster.path), files=FaultyFiles()), {EVENTS: SMALL})

    assert answer.came.wait(10)
    assert answer.sizes == [len(SMALL)]


def test_a_fetch_sees_what_a_job_commits(cluster: Cluster) -> None:
    answer = fetch(cluster, {EVENTS: 0, OTHERS: 0})
    builders.write(cluster, {("events", 0): [SMALL], ("others", 0): [SMALL]})

    assert answer.came.wait(10)
    assert answer.sizes == [len(SMALL)] * 2


@pytest.mark.parametrize("max_wait_ms", [0, 60_000], ids=["at once", "waiting"])
@pytest.mark.parametrize("looks", range(1, 3))
def test_a_fetch_sees_a_commit_in_all_partitions_or_in_none(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, looks: int, max_wait_ms: int
) -> None:
    other = Cluster(str(cluster.path), files=FaultyFiles())
    look, left = store_of(cluster).snapshots.replicas, looks

    def commit_after_some(*arguments: Any) -> Any:
        nonlocal left
        found, left = look(*arguments), left - 1
        if left == 0:
            builders.write(other, {("events", 0): [SMALL], ("others", 0): [SMALL]})
        return found

    monkeypatch.setattr(store_of(cluster).snapshots, "replicas", commit_after_some)
    answer = fetch(cluster, {EVENTS: 0, OTHERS: 0}, max_wait_ms=max_wait_ms)

    assert answer.came.wait(10)
    assert answer.sizes in ([0, 0], [len(SMALL)] * 2)
    assert answer.sizes != [0, 0] or max_wait_ms == 0


def test_a_fetch_that_looks_before_a_change_and_waits_after_it_was_found_is_answered(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Cluster(str(cluster.path), files=FaultyFiles())
    purgatory = store_of(cluster).manager.delayed_fetches
    monkeypatch.setattr(purgatory, "_has_thread", False)
    append_records(other, {EVENTS: SMALL})
    fetch(cluster, {EVENTS: 0}, min_bytes=10**6)
    purgatory.look()
    append_records(other, {EVENTS: SMALL})
    look, watch = delayed_fetch.look_at, purgatory.try_complete_else_watch
    late: list[Any] = []
    answers: list[Answer] = []

    def look_late(*arguments: Any) -> Any:
        """Have a fetch look, but not wait yet, and another process append; then look."""
        monkeypatch.setattr(delayed_fetch, "look_at", look)
        monkeypatch.setattr(purgatory, "try_complete_else_watch", lambda *given: late.append(given))
        answers.append(fetch(cluster, {EVENTS: 2}))
        append_records(other, {EVENTS: SMALL})
        return look(*arguments)

    monkeypatch.setattr(delayed_fetch, "look_at", look_late)
    purgatory.look()
    watch(*late[0])

    assert answers[0].sizes == [len(SMALL)]


def test_a_forked_child_appends_though_the_lock_of_waiting_fetches_was_held(
    cluster: Cluster,
) -> None:
    purgatory = store_of(cluster).manager.delayed_fetches
    with purgatory._mutex:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            append_records(cluster, {EVENTS: SMALL})
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_fetch_looks_at_all_partitions_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_records(cluster, {EVENTS: SMALL, OTHERS: SMALL})
    look, looks = store_of(cluster).snapshots.replicas, []

    def count(topic_partitions: Iterable[TopicPartition], *rest: Any) -> Any:
        looks.append([*topic_partitions])
        return look(looks[-1], *rest)

    monkeypatch.setattr(store_of(cluster).snapshots, "replicas", count)
    fetch(cluster, {EVENTS: 0, OTHERS: 0})

    assert looks == [[EVENTS, OTHERS]]


def test_a_roll_answers_a_fetch_that_waits_in_the_segment_before(tmp_path: Path) -> None:
    cluster = builders.a_cluster(
        tmp_path, config=TopicConfig(segment_bytes=1150), files=FaultyFiles()
    )
    append_records(cluster, {EVENTS: SMALL})
    answer = fetch(cluster, {EVENTS: 0}, min_bytes=10**6)
    assert answer.count == 0
    append_records(cluster, {EVENTS: batch(n=1, value_bytes=1000)})

    assert (answer.count, answer.sizes) == (1, [len(SMALL)])


def test_a_log_that_is_cut_below_the_offset_answers_a_fetch(cluster: Cluster) -> None:
    log = store_of(cluster).manager.log(EVENTS)
    before = log.state()
    append_records(cluster, {EVENTS: SMALL})
    answer = fetch(cluster, {EVENTS: 1})
    log.write_state(before._replace(sequence=9), flush=False)

    assert answer.came.wait(10)
    assert isinstance(answer.results[EVENTS].error, OffsetOutOfRangeError)


def test_many_fetches_beside_appends_are_each_answered_once(cluster: Cluster) -> None:
    answers: list[Answer] = []

    def work() -> None:
        for _ in range(20):
            answers.append(fetch(cluster, {EVENTS: 0}, min_bytes=20 * len(SMALL)))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        append_records(cluster, {EVENTS: SMALL})
    for thread in threads:
        thread.join()

    assert all(answer.came.wait(10) for answer in answers)
    assert [answer.count for answer in answers] == [1] * 40
    assert {*(answer.sizes[0] for answer in answers)} == {20 * len(SMALL)}


# What each may see.


@pytest.mark.parametrize(
    ("options", "ends_at", "aborted"),
    [
        pytest.param({"isolation": IsolationLevel.READ_COMMITTED}, 3, [(7, 0)], id="committed"),
        pytest.param({"isolation": IsolationLevel.READ_UNCOMMITTED}, 4, [], id="uncommitted"),
    ],
)
def test_each_sees_as_far_as_it_may(
    cluster: Cluster, options: dict[str, Any], ends_at: int, aborted: list[tuple[int, int]]
) -> None:
    def transactional(producer_id: int) -> bytes:
        return data_batch(base_offset=0, producer_id=producer_id, transactional=True)

    marker = marker_batch(base_offset=0, producer_id=7, abort=True)
    for data in (transactional(7), marker, SMALL, transactional(8), SMALL):
        append_records(cluster, {EVENTS: data}, origin=AppendOrigin.COORDINATOR)
    log = store_of(cluster).manager.log(EVENTS)
    state = log.state()
    log.write_state(state._replace(high_watermark=4, sequence=99), flush=False)
    (result,) = fetch(cluster, {EVENTS: 0}, **options).results.values()

    assert result.offsets == (0, 4, 3, 5)
    assert result.read.batches[-1][1].next_offset == ends_at
    found = [(a.producer_id, a.first_offset) for a in result.read.aborted]
    assert found == aborted
    assert all(isinstance(a, AbortedTransaction) for a in result.read.aborted)


# Topics that are recreated meanwhile.


def recreate(cluster: Cluster) -> None:
    other = Cluster(str(cluster.path))
    other.delete_topic("events")
    other.create_topic("events")
    append_records(other, {EVENTS: SMALL})


@pytest.mark.parametrize("offset", [0, 2], ids=["that the new topic has", "that it lacks"])
def test_a_topic_that_is_recreated_between_look_and_read_is_not_mixed_with_the_old_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    for _ in range(3):
        append_records(cluster, {EVENTS: LARGE})
    read = Fetch._read_one

    def read_late(*arguments: Any) -> FetchResult:
        monkeypatch.undo()
        recreate(cluster)
        return read(*arguments)

    monkeypatch.setattr(Fetch, "_read_one", read_late)
    result = fetch(cluster, {EVENTS: offset}, max_wait_ms=0).results[EVENTS]

    assert isinstance(result.error, UnknownTopicOrPartitionError)
    assert "'events' was deleted and created again" in str(result.error)
    assert not result.read.data


def test_a_fetch_by_topic_id_refuses_another_topic_of_the_name(cluster: Cluster) -> None:
    old = FetchInfo(5, 1 << 20, topic_id=cluster.topic("events").topic_id)
    recreate(cluster)
    new = FetchInfo(0, 1 << 20, topic_id=cluster.topic("events").topic_id)

    assert isinstance(
        fetch(cluster, {EVENTS: old}).results[EVENTS].error, UnknownTopicOrPartitionError
    )
    assert fetch(cluster, {EVENTS: new}).sizes == [len(SMALL)]


# Long polls.


@pytest.fixture
def other(cluster: Cluster) -> Cluster:
    """The same cluster as another process has it."""
    return Cluster(str(cluster.path), files=FaultyFiles())


@pytest.fixture
def purgatory(cluster: Cluster) -> FetchPurgatory:
    """Its fetches, which no thread looks at: tests call `look`."""
    found = store_of(cluster).manager.delayed_fetches
    found._has_thread = False
    return found


@pytest.fixture
def looks(
    cluster: Cluster, purgatory: FetchPurgatory, monkeypatch: pytest.MonkeyPatch
) -> list[list[TopicPartition]]:
    """The partitions of each look at several of them together."""
    look, found = store_of(cluster).snapshots.replicas, list[list[TopicPartition]]()

    def count(topic_partitions: Iterable[TopicPartition], *rest: Any) -> Any:
        found.append([*topic_partitions])
        return look(found[-1], *rest)

    monkeypatch.setattr(store_of(cluster).snapshots, "replicas", count)
    return found


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[TopicPartition]]:
    """The partitions of each fetch that is tried."""
    found = list[frozenset[TopicPartition]]()
    is_satisfied_at = DelayedFetch.is_satisfied_at

    def count(self: DelayedFetch, moment: Moment) -> bool:
        found.append(frozenset(self.fetch.partitions))
        return is_satisfied_at(self, moment)

    monkeypatch.setattr(DelayedFetch, "is_satisfied_at", count)
    return found


@pytest.mark.parametrize("max_wait_ms", [0, 60_000], ids=["at once", "waiting"])
@pytest.mark.parametrize("reads", range(1, 5))
def test_a_commit_between_the_reads_of_a_fetch_is_seen_in_all_partitions_or_in_none(
    cluster: Cluster, other: Cluster, monkeypatch: pytest.MonkeyPatch, reads: int, max_wait_ms: int
) -> None:
    read, left = Fetch._read_one, reads

    def commit_after_some(*arguments: Any) -> FetchResult:
        nonlocal left
        found, left = read(*arguments), left - 1
        if left == 0:
            builders.write(other, {("events", 0): [SMALL], ("others", 0): [SMALL]})
        return found

    monkeypatch.setattr(Fetch, "_read_one", commit_after_some)
    answer = fetch(cluster, {EVENTS: 0, OTHERS: 0}, max_wait_ms=max_wait_ms)
    if left > 0:
        builders.write(other, {("events", 0): [SMALL], ("others", 0): [SMALL]})

    assert answer.came.wait(10)
    assert answer.sizes in ([0, 0], [len(SMALL)] * 2)
    assert answer.sizes != [0, 0] or max_wait_ms == 0


def test_an_idle_look_reads_the_states_of_each_partition_once_and_tries_nothing(
    cluster: Cluster,
    purgatory: FetchPurgatory,
    looks: list[list[TopicPartition]],
    tried: list[frozenset[TopicPartition]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = threading.active_count()
    answers = [fetch(cluster, infos) for infos in ({EVENTS: 0}, {EVENTS: 0, OTHERS: 0}) * 20]
    purgatory.look()  # at what is waited for since the last one
    looks.clear()
    tried.clear()
    files, read = store_of(cluster).files, list[str]()
    read_each = files.read_each

    def count(paths: Iterable[str], size: int) -> Iterator[bytes]:
        wanted = [*paths]
        read.extend(wanted)
        return read_each(wanted, size)

    monkeypatch.setattr(files, "read_each", count)
    for _ in range(3):
        purgatory.look()

    directories = [Path(path).parent.name for path in read]
    assert sorted(directories) == sorted(["__transaction_state-0", "events-0", "others-0"] * 3)
    assert (looks, tried) == ([], [])
    assert not any(answer.count for answer in answers)
    assert threading.active_count() == threads


def test_only_fetches_whose_end_moved_are_tried_all_with_one_look(
    cluster: Cluster,
    other: Cluster,
    purgatory: FetchPurgatory,
    looks: list[list[TopicPartition]],
    tried: list[frozenset[TopicPartition]],
) -> None:
    waiting = [fetch(cluster, {OTHERS: 0}) for _ in range(3)]
    moved = [fetch(cluster, {EVENTS: 0}) for _ in range(3)]
    purgatory.look()
    append_records(other, {EVENTS: SMALL})
    looks.clear()
    tried.clear()
    purgatory.look()

    assert [answer.sizes for answer in moved] == [[len(SMALL)]] * 3
    assert not any(answer.count for answer in waiting)
    assert (looks, tried) == ([[EVENTS]], [{EVENTS}] * 3)


def test_a_commit_elsewhere_costs_one_look_and_tries_nothing(
    cluster: Cluster,
    other: Cluster,
    purgatory: FetchPurgatory,
    looks: list[list[TopicPartition]],
    tried: list[frozenset[TopicPartition]],
) -> None:
    answers = [fetch(cluster, {EVENTS: 0}) for _ in range(3)]
    purgatory.look()
    builders.write(other, {("others", 0): [SMALL]})
    looks.clear()
    tried.clear()
    purgatory.look()

    assert not any(answer.count for answer in answers)
    assert (looks, tried) == ([[EVENTS]], [])


def test_an_append_of_this_process_answers_all_that_wait_with_one_look(
    cluster: Cluster, looks: list[list[TopicPartition]]
) -> None:
    answers = [fetch(cluster, {EVENTS: 0}) for _ in range(20)]
    looks.clear()
    append_records(cluster, {EVENTS: SMALL})

    assert [answer.sizes for answer in answers] == [[len(SMALL)]] * 20
    assert looks == [[EVENTS]]


def test_a_fetch_that_is_newer_than_a_look_is_not_judged_by_it(
    cluster: Cluster, other: Cluster, purgatory: FetchPurgatory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the older look, its offset would be past the end."""
    early, late = fetch(cluster, {EVENTS: 0}, min_bytes=10**6), list[Answer]()
    purgatory.look()
    look = store_of(cluster).snapshots.replicas

    def fetch_after(*arguments: Any) -> Any:
        found = look(*arguments)
        monkeypatch.undo()
        append_records(other, {EVENTS: SMALL})
        late.append(fetch(cluster, {EVENTS: 2}))
        return found

    append_records(other, {EVENTS: SMALL})
    monkeypatch.setattr(store_of(cluster).snapshots, "replicas", fetch_after)
    for one in purgatory._waiting:
        monkeypatch.setattr(one.fetch, "replicas", fetch_after)
    purgatory.look()
    assert (early.count, late[0].count) == (0, 0)
    append_records(other, {EVENTS: SMALL})
    purgatory.look()
    assert late[0].sizes == [len(SMALL)]


@pytest.mark.parametrize("recreated", [False, True])
def test_a_topic_that_goes_elsewhere_is_answered_at_the_next_look(
    cluster: Cluster, other: Cluster, purgatory: FetchPurgatory, recreated: bool
) -> None:
    """Though the new one ends where the old one did."""
    gone, stays = fetch(cluster, {EVENTS: 0, OTHERS: 0}), fetch(cluster, {OTHERS: 0})
    purgatory.look()
    other.delete_topic("events")
    if recreated:
        other.create_topic("events", partitions=2)
    purgatory.look()

    assert isinstance(gone.results[EVENTS].error, UnknownTopicOrPartitionError)
    assert gone.results[OTHERS].error is None
    assert stays.count == 0


def test_many_fetches_whose_time_is_up_are_answered_with_what_was_last_seen(
    cluster: Cluster, purgatory: FetchPurgatory, looks: list[list[TopicPartition]]
) -> None:
    append_records(cluster, {EVENTS: SMALL})
    answers = [
        fetch(cluster, {EVENTS: 0, OTHERS: 0}, min_bytes=10**6, max_wait_ms=1) for _ in range(200)
    ]
    purgatory.look()
    looks.clear()
    time.sleep(0.002)
    purgatory.look()

    assert [answer.count for answer in answers] == [1] * 200
    assert {tuple(answer.sizes) for answer in answers} == {(len(SMALL), 0)}
    assert (looks, len(purgatory)) == ([], 0)


def test_an_append_elsewhere_to_a_replicated_topic_is_found(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    cluster = Cluster(str(tmp_path / "cluster"), create=True, log_dirs=dirs, files=FaultyFiles())
    cluster.create_topic("events", replication_factor=2)
    purgatory = store_of(cluster).manager.delayed_fetches
    purgatory._has_thread = False
    answer = fetch(cluster, {EVENTS: 0})
    purgatory.look()
    purgatory.look()
    assert answer.count == 0
    append_records(Cluster(str(cluster.path), files=FaultyFiles()), {EVENTS: SMALL})
    purgatory.look()
    assert answer.sizes == [len(SMALL)]


# What a fetch of much costs.


def test_partitions_that_do_not_exist_are_found_with_one_look_at_their_topic(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = store_of(cluster).metadata.topics
    looks, find = list[str](), topics.find

    def counted(name: str) -> Any:
        looks.append(name)
        return find(name)

    monkeypatch.setattr(topics, "find", counted)
    wanted = {TopicPartition(topic, n): 0 for topic in ("events", "none") for n in range(2, 1000)}
    answer = fetch(cluster, wanted)

    assert answer.count == 1
    assert {type(one.error) for one in answer.results.values()} == {UnknownTopicOrPartitionError}
    assert [name for name in looks if name in ("events", "none")] == ["events", "none"]


def test_a_fetch_that_waits_is_read_again_only_when_there_can_be_enough(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = [0], Fetch.read

    def counted(one: Fetch, *arguments: Any) -> dict[TopicPartition, FetchResult]:
        reads[0] += 1
        return read(one, *arguments)

    monkeypatch.setattr(Fetch, "read", counted)
    answer = fetch(cluster, {EVENTS: 0, OTHERS: 0}, min_bytes=20 * len(SMALL))
    for _ in range(19):
        append_records(cluster, {EVENTS: SMALL})
    assert not answer.count
    assert reads[0] == 2  # at the start, and at the first append
    append_records(cluster, {EVENTS: SMALL})

    assert answer.came.wait(5)
    assert sum(answer.sizes) == 20 * len(SMALL)


def test_an_append_leaves_fetches_of_many_partitions_to_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.replica.delayed_fetch._TRIED_AT_ONCE_MAX", 2)
    with builders.a_cluster(tmp_path / "many", topics={"events": 4}) as cluster:
        everywhere = {TopicPartition("events", number): 0 for number in range(4)}
        large, small = fetch(cluster, everywhere), fetch(cluster, {EVENTS: 0})
        completed = store_of(cluster).manager.delayed_fetches
        assert len(completed) == 2
        append_records(cluster, {EVENTS: SMALL})

        assert small.came.is_set()
        assert large.came.wait(5)
        assert sum(large.sizes) == len(SMALL)
