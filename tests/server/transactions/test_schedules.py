"""Transactions, time-outs, jobs and restarts in every order, and in orders that are drawn by seed.

Another process holds a partition's lock for a while, as a job does that commits: then what was asked for meanwhile is
done in the order in which it came, and a Produce counts only if its transaction is still open.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.groups import read_groups
from spark_kbatch.model import TopicPartition
from spark_kbatch.server.server import Server
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from tests.support import builders, draws
from tests.support.disk import Disk, DiskFiles
from tests.support.raw_clients import RawClient, produce, produced, request
from tests.support.raw_transactions import EVENTS, OTHER, RawProducer, stable_offset, values
from tests.support.recorded_server import IN, PATH, commit_job, made_disk
from tests.support.reference import Record, encode_batch
from tests.support.soundness import ensure_sound
from tests.support.store import store_of
from tests.support.waiting import until

BOTH = (EVENTS, OTHER)
OK, FENCED = ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


class Serving:
    """A server on a disk in memory, and clients of it; started again on the same disk, or on a copy of it."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self.cluster = Cluster(PATH, files=DiskFiles(self.disk))
        self.server: Server = self._open.enter_context(self.cluster.serve())
        self.client = self._open.enter_context(RawClient(self.server, timeout_s=60))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def restart(self, *, killed: bool) -> None:
        """Start it again, as after a kill, or stop it before."""
        left = self.disk.copy() if killed else self.disk
        self._open.close()
        self.disk = left
        self.__enter__()

    @contextmanager
    def locked(self, topic_partition: TopicPartition = EVENTS) -> Iterator[None]:
        """Hold a partition's lock, as another process."""
        other = Cluster(PATH, files=DiskFiles(self.disk))
        with store_of(other).manager.locks.partitions([topic_partition]):
            yield

    def time_out(self, transactional_id: str) -> None:
        """Let the time of an id's transaction be up."""
        coordinator = self.server._transactions
        with coordinator._mutex:
            coordinator._deadlines[transactional_id] = 0
        coordinator.tick()

    def until_nothing_is_open(self) -> None:
        coordinator = self.server._transactions
        until(lambda: not coordinator._active, "nothing is open")

    def ensure_stable(self) -> None:
        for tp in BOTH:
            state = store_of(self.cluster).manager.replica(tp).state
            assert state.last_stable_offset == state.log_end_offset
            ensure_sound(store_of(self.cluster).manager.log(tp))


class Waiting:
    """A Produce on a connection of its own, whose answer is waited for later."""

    def __init__(self, server: Server, producer: RawProducer, tp: TopicPartition, value: bytes):
        self._client = RawClient(server, timeout_s=60)
        asked = produce(
            producer.batch(tp, value=value), *tp, transactional_id=producer.transactional_id
        )
        self._client.send(request(ApiKey.PRODUCE, 11, asked))

    def answer(self) -> ErrorCode:
        with self._client:
            return ErrorCode(produced(self._client.receive(ApiKey.PRODUCE, 11)).error_code)


# Every order.

STEPS = ("produce", "time-out", "job", "marker")
ORDERS = [*itertools.permutations(STEPS)]


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with Serving(made_disk()) as serving:
        yield serving


@pytest.mark.parametrize("held", [False, True], ids=["free", "locked"])
@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
def test_in_every_order_a_late_batch_is_in_no_transaction_and_all_else_is_visible(
    serving: Serving, order: tuple[str, ...], held: bool
) -> None:
    label = f"{order} {held}".encode()
    late, ended = (RawProducer(serving.client, f"{one} {order} {held}") for one in ("late", "end"))
    late.start().write(EVENTS, value=b"late " + label)
    ended.start().write(EVENTS, value=b"ended " + label)
    jobs, waiting = list[threading.Thread](), list[Waiting]()
    before = Counter(values(serving.cluster, EVENTS))

    def job() -> None:
        other = Cluster(PATH, files=DiskFiles(serving.disk))
        commit_job(other, b"job %d %d" % (ORDERS.index(order), held))

    with ExitStack() as lock:
        if held:
            lock.enter_context(serving.locked())
        for step in order:
            match step:
                case "produce":
                    waiting.append(Waiting(serving.server, late, EVENTS, b"late " + label))
                    if not held:
                        answer = waiting[0].answer()
                case "time-out":
                    serving.time_out(late.transactional_id)
                case "job":
                    jobs.append(threading.Thread(target=job))
                    jobs[0].start()
                    if not held:
                        jobs[0].join()
                case "marker":
                    ended.end(commit=True)
    if held:
        answer = waiting[0].answer()
    jobs[0].join()
    serving.until_nothing_is_open()

    in_time = not held and order.index("produce") < order.index("time-out")
    assert answer is (OK if in_time else FENCED)
    more = Counter(values(serving.cluster, EVENTS)) - before
    named = {value.split()[0]: count for value, count in more.items()}
    assert named == {b"ended": 1, b"job": 1}
    written = Counter(values(serving.cluster, EVENTS, committed=False))
    assert written[b"late " + label] == 1 + in_time
    serving.ensure_stable()


# Offsets of groups.


def test_pending_offsets_are_not_stable_before_a_server_has_loaded_its_transactions() -> None:
    with Serving(made_disk()) as serving:
        producer = RawProducer(serving.client).start()
        assert producer.add_group("g") is OK
        assert producer.commit_offsets("g", {IN: 5}) == [OK]
        coordinator = serving.server._transactions
        with coordinator._mutex:  # as after the start, until the first tick
            coordinator._loaded_in = None
            coordinator._active, coordinator._owners, coordinator._deadlines = {}, {}, {}
            coordinator._pending = {}

        assert stable_offset(serving.client, "g", IN) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        producer.end(commit=True)
        assert stable_offset(serving.client, "g", IN) == (OK, 5)


# By seed.


class Schedule:
    """One seed's run: three producers, jobs, plain records, restarts, and a model of what is to be seen."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log: list[str] = []
        self._serving = Serving(made_disk())
        self._numbers = itertools.count()
        self._open: dict[str, dict[TopicPartition, list[bytes]]] = {}  # by producer
        self._pending: dict[str, int] = {}  # offsets of groups, by producer
        self._visible: dict[TopicPartition, Counter[bytes]] = {tp: Counter([b"old"]) for tp in BOTH}
        self._offsets: dict[str, int] = {}
        self._producers: dict[str, RawProducer] = {}

    def run(self, count: int) -> None:
        steps: list[Callable[[], object]] = [
            *[self.write] * 6, *[self.end] * 4, *[self.offsets] * 2, self.late, self.late, self.time_out,
            self.start, self.job, self.plain, self.stop, self.kill,
        ]  # fmt: skip
        with self._serving as self.serving:
            for name in "abc":
                self._started(name)
            for _ in range(count):
                step = self.rng.choice(steps)
                self.log.append(step.__name__)
                step()
                self._look()
            self._finish()

    # Steps.

    def _drawn(self) -> RawProducer:
        name = self.rng.choice("abc")
        self.log[-1] += f" {name}"
        return self._producers[name]

    def _value(self) -> bytes:
        return b"%d" % next(self._numbers)

    def _started(self, name: str, *, goes_on: bool = False) -> None:
        producer = self._producers.get(name)
        if producer is None or not goes_on:
            producer = self._producers[name] = RawProducer(self.serving.client, name)
        producer.start(goes_on=goes_on)
        self._drop(name)

    def start(self) -> None:
        producer = self._drawn()
        # Goes on as a producer does after it has aborted; what is open is aborted by a new one.
        name = producer.transactional_id
        self._started(name, goes_on=self.rng.random() < 0.5 and name not in self._open)

    def _drop(self, name: str) -> None:
        self._open.pop(name, None)
        self._pending.pop(name, None)

    def write(self) -> None:
        producer, tp, value = self._drawn(), self.rng.choice(BOTH), self._value()
        producer.write(tp, value=value)
        self._open.setdefault(producer.transactional_id, {}).setdefault(tp, []).append(value)

    def offsets(self) -> None:
        producer, offset = self._drawn(), next(self._numbers)
        name = producer.transactional_id
        until(lambda: producer.retried(producer.add_group(name)) is OK)
        assert producer.commit_offsets(name, {IN: offset}) == [OK]
        self._open.setdefault(name, {})
        self._pending[name] = offset

    def end(self) -> None:
        producer, commit = self._drawn(), self.rng.random() < 0.7
        self.log[-1] += f" commit={commit}"
        name = producer.transactional_id
        if name not in self._open:
            assert producer.ask_to_end(commit=commit) is not None
            return
        producer.end(commit=commit)
        self._ended(name, commit=commit)

    def _ended(self, name: str, *, commit: bool) -> None:
        if commit:
            for tp, written in self._open[name].items():
                self._visible[tp].update(written)
            if name in self._pending:
                self._offsets[name] = self._pending[name]
        self._drop(name)

    def late(self) -> None:
        """Send a batch while the partition is locked; then its transaction ends, or another one does."""
        producer, name_of_other = self._drawn(), self.rng.choice("abc")
        name, value = producer.transactional_id, self._value()
        producer.add(EVENTS)
        self._open.setdefault(name, {}).setdefault(EVENTS, [])
        how = self.rng.choice(("commit", "abort", "time-out"))
        self.log[-1] += f" while {how} of {name_of_other}"
        with self.serving.locked():
            waiting = Waiting(self.serving.server, producer, EVENTS, value)
            if name_of_other not in self._open:
                pass
            elif how == "time-out":
                self.serving.time_out(name_of_other)
                self._drop(name_of_other)
            else:
                self._producers[name_of_other].end(commit=how == "commit")
                self._ended(name_of_other, commit=how == "commit")
        answer = waiting.answer()
        if name in self._open:
            assert answer is OK
            self._open[name][EVENTS].append(value)
        else:
            assert answer in (ErrorCode.INVALID_TXN_STATE, FENCED)
            # Its batch has a sequence that is not used: a client starts anew after such an error.
            self._started(name, goes_on=how != "time-out")
        if how == "time-out" and name_of_other not in self._open and name_of_other != name:
            self._started(name_of_other)

    def time_out(self) -> None:
        producer = self._drawn()
        name = producer.transactional_id
        if name in self._open:
            self.serving.time_out(name)
            assert producer.ask_to_end(commit=True) is ErrorCode.PRODUCER_FENCED
            self._started(name)

    def job(self) -> None:
        value = b"job %d" % next(self._numbers)
        commit_job(Cluster(PATH, files=DiskFiles(self.serving.disk)), value)
        for tp in BOTH:
            self._visible[tp][value] += 1

    def plain(self) -> None:
        tp, value = self.rng.choice(BOTH), self._value()
        batch = encode_batch([Record(0, builders.FIRST_TIMESTAMP_MS, None, value)])
        answer = self.serving.client.ask(ApiKey.PRODUCE, 9, produce(batch, *tp))
        assert produced(answer).error_code == 0
        self._visible[tp][value] += 1

    def stop(self) -> None:
        self._restart(killed=False)

    def kill(self) -> None:
        self._restart(killed=True)

    def _restart(self, *, killed: bool) -> None:
        self.serving.restart(killed=killed)
        for producer in self._producers.values():
            producer._client = self.serving.client

    # What must hold.

    def _look(self) -> None:
        """Look as a reader: what is there is committed, and of groups what is stable is right."""
        for tp, expected in self._visible.items():
            found = Counter(values(self.serving.cluster, tp))
            assert found <= expected, f"{tp}: {found - expected}"
        for group in "abc":
            error, offset = stable_offset(self.serving.client, group, IN)
            if error is OK:
                assert group not in self._pending
                assert offset == self._offsets.get(group, -1)
            elif error is ErrorCode.UNSTABLE_OFFSET_COMMIT:
                assert offset == -1
            else:
                assert error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error

    def _finish(self) -> None:
        for name in [*self._open]:
            self.serving.time_out(name)
            self._drop(name)
        self.serving.until_nothing_is_open()
        for tp, expected in self._visible.items():
            assert Counter(values(self.serving.cluster, tp)) == expected
        groups = read_groups(store_of(self.serving.cluster))
        found = {one.group_id: one.offsets[IN].committed_offset for one in groups if one.offsets}
        assert found == self._offsets
        self.serving.ensure_stable()


@pytest.mark.more_in_soak
def test_in_orders_by_seed_each_transaction_is_seen_once_or_never() -> None:
    for seed in draws.seeds(10):
        schedule = Schedule(seed)
        try:
            schedule.run(60)
        except BaseException as error:
            error.add_note(f"seed {seed}: {draws.again(seed)}; " + "; ".join(schedule.log))
            raise
