"""Any schedule of a bucket's processes loses nothing, and faults put in on purpose are found by some schedule.

300 schedules by default, 4,000 with `make soak`; `tests.support.bucket_schedules` has the claims, `tests.support.draws`
more schedules, and how to repeat one. Of the faults known, the one that takes most is found by the 1,042nd: an outcome
that is unknown if the last answer was lost, though not if an earlier one was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

import pytest

from spark_kbatch.bucket import checkpoints
from spark_kbatch.bucket.checkpoints import LedgerCheckpoints
from spark_kbatch.bucket.garbage import GarbageCollector, References
from spark_kbatch.bucket.ledger import Ledger
from spark_kbatch.bucket.objects import CreateAnswer
from spark_kbatch.errors import CommitError, OutcomeUnknownError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.checkpoint_format import Root, unpack_heads
from spark_kbatch.ledger.checksummed_json import sum_of
from spark_kbatch.ledger.entries import (
    NO_ENTRY_ID,
    CommittedGroupOffset,
    Content,
    Entry,
    Replacement,
    decode,
    encode,
)
from spark_kbatch.ledger.extents import PartitionAppend
from spark_kbatch.ledger.state import LedgerState, PartRef, TopicExtents
from spark_kbatch.store.commits import NOTHING_VISIBLE
from tests.support.bucket_schedules import Process, Writer, run_model, run_models
from tests.support.simulated_bucket import ProcessObjects

QUICK, MANY = 100, 4000
SCHEDULES_MAX = 500  # in which a fault has to show

Fault: TypeAlias = Callable[[pytest.MonkeyPatch], object]


def _skip_the_look_after_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take an entry that exists for another's."""
    monkeypatch.setattr(Ledger, "_winner", lambda *_: NO_ENTRY_ID)


def _take_the_next_number_while_one_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(self: Ledger, entry: Entry, deadline_ms: int) -> bool:
        answer = self._ask_to_create(names.entry_name(entry.number), encode(entry))
        if answer is CreateAnswer.UNKNOWN:
            later = entry._replace(number=entry.number + 1, before=entry.entry_id)
            return real(self, later, deadline_ms)
        return answer is CreateAnswer.CREATED or real(self, entry, deadline_ms)

    real = Ledger._create
    monkeypatch.setattr(Ledger, "_create", create)


def _abort_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete what a job has staged when its commit fails."""

    def abort(self: Writer, process: Process, placed: dict[str, list[PartitionAppend]]) -> None:
        staged = [one for of_topic in placed.values() for one in of_topic]
        process.ledger.objects.delete([name for one in staged for name in one.objects])

    monkeypatch.setattr(Writer, "abort", abort)


def _read_a_checkpoint_without_a_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the newest parts for a checkpoint, whether a root names them or not."""

    def newest(self: LedgerCheckpoints, hinted: int = -1) -> LedgerState | None:
        heads = [one.name for one in self._objects.list(names.PARTS) if one.name.endswith("/heads")]
        data = self._objects.get(max(heads)) if heads else None
        if data is None:
            return None
        folder = max(heads).rpartition("/")[0]
        state = unpack_heads(data, folder)
        number = int(folder.removeprefix(names.PARTS).partition("-")[0])
        entry_name = names.entry_name(number)
        entry = decode(self._objects.get(entry_name) or b"", entry_name)
        state.number, state.entry_id, state.time_ms = entry.number, entry.entry_id, entry.time_ms
        state.checkpoint = number
        state.extents = {topic_id: TopicExtents() for topic_id in state.topics}
        for topic_id in state.topics:
            name = f"{folder}/extents-{topic_id}"
            part = self._objects.get(name)
            if part is not None:
                state.extents[topic_id].parts = (PartRef(name, len(part), sum_of(part)),)
        return state

    monkeypatch.setattr(LedgerCheckpoints, "newest", newest)


def _fold_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let expire by the process's clock."""

    def is_expired(self: LedgerState, limit: str, time_ms: int) -> bool:
        most_ms = self.limits.get(limit, 0)
        return most_ms > 0 and ProcessObjects.current().timing.now_ms() - time_ms >= most_ms

    monkeypatch.setattr(LedgerState, "_is_expired", is_expired)


def _fold_by_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let expire by a limit that is the process's own."""

    def is_expired(self: LedgerState, limit: str, time_ms: int) -> bool:
        most_ms = 1000 if ProcessObjects.current().skew_ms else 10**12
        return self.time_ms - time_ms >= most_ms

    monkeypatch.setattr(LedgerState, "_is_expired", is_expired)


def _believe_the_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the checkpoint that the hint names for the newest one."""

    def numbers(self: LedgerCheckpoints, hinted: int = -1) -> list[int]:
        return [hinted] if hinted > 0 else real(self)

    real = LedgerCheckpoints.numbers
    monkeypatch.setattr(LedgerCheckpoints, "numbers", numbers)


def _do_not_check_the_number_in_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what began before the horizon commit."""
    monkeypatch.setattr(LedgerState, "_check_objects", lambda *_: None)


def _free_a_name_of_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete entries in place of leaving tombstones."""

    def bury(self: GarbageCollector, first: int, last: int) -> None:
        self._objects.delete([*map(names.entry_name, range(first, last + 1))])

    monkeypatch.setattr(GarbageCollector, "_bury", bury)


def _collect_before_the_horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete what no entry refers to, with no horizon that keeps writers from committing it."""

    def collect(self: GarbageCollector, now_ms: int) -> object:
        state = self._ledger.follow()
        gc_boundary, state.gc_boundary = state.gc_boundary, state.number
        try:
            return real(self, now_ms)
        finally:
            state.gc_boundary = gc_boundary

    real = GarbageCollector.collect
    monkeypatch.setattr(GarbageCollector, "collect", collect)


def _forget_what_came_after_the_horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what the state at the horizon refers to for all that is referred to."""

    def references(self: GarbageCollector, root: Root, horizon: int, _last: int) -> object:
        return real(self, root, horizon, horizon)

    real = GarbageCollector._references
    monkeypatch.setattr(GarbageCollector, "_references", references)


def _forget_what_indexes_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what entries name for all that is referred to."""

    def add(self: References, append: PartitionAppend) -> None:
        self._names.update(append.objects)

    monkeypatch.setattr(References, "add", add)


def _collect_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete all that is old."""
    monkeypatch.setattr(References, "__contains__", lambda *_: False)


def _deny_what_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say that nothing is visible where no answer came."""

    def create(self: Ledger, entry: Entry, deadline_ms: int) -> bool:
        try:
            return real(self, entry, deadline_ms)
        except OutcomeUnknownError as error:
            raise CommitError(NOTHING_VISIBLE, str(error)) from None

    real = Ledger._create
    monkeypatch.setattr(Ledger, "_create", create)


def _propose_again_while_one_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a lost answer for a lost race."""

    def create(self: Ledger, entry: Entry, deadline_ms: int) -> bool:
        answer = self._ask_to_create(names.entry_name(entry.number), encode(entry))
        return answer is CreateAnswer.CREATED

    monkeypatch.setattr(Ledger, "_create", create)


def _let_two_mirrors_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take each step of a mirror, whatever its progress was before."""
    monkeypatch.setattr(LedgerState, "_check_mirror", lambda *_: None)


def _replace_by_what_may_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a merge that began before the horizon replace what is there."""

    def check(self: LedgerState, content: Replacement) -> None:
        with pytest.MonkeyPatch.context() as unchecked:
            unchecked.setattr(LedgerState, "_check_objects", lambda *_: None)
            real(self, content)

    real = LedgerState._check_replacement
    monkeypatch.setattr(LedgerState, "_check_replacement", check)


def _let_a_merge_bring_back_what_retention_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a partition where what replaces its extents does."""

    def change(self: LedgerState, content: Content) -> None:
        real(self, content)
        if isinstance(content, Replacement):
            for topic_id, ranges in content.ranges.items():
                for one in ranges:
                    head = self.partition(topic_id, one.partition)
                    start_offset = min(head.start_offset, one.start_offset)
                    self.heads[topic_id][one.partition] = head._replace(start_offset=start_offset)

    real = LedgerState._change
    monkeypatch.setattr(LedgerState, "_change", change)


def _leave_groups_out_of_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    def pack_heads(state: LedgerState) -> bytes:
        return real(replace(state, groups={}))

    real = checkpoints.pack_heads
    monkeypatch.setattr(checkpoints, "pack_heads", pack_heads)


def _keep_the_greatest_offset_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_offsets(self: LedgerState, group: str, offsets: Iterable[CommittedGroupOffset]) -> None:
        held = self.groups.get(group, {})
        later = [
            one
            for one in offsets
            if one.offset is None or one[:2] not in held or one.offset > held[one[:2]].offset
        ]
        real(self, group, later)

    real = LedgerState._set_offsets
    monkeypatch.setattr(LedgerState, "_set_offsets", set_offsets)


FAULTS: list[Fault] = [
    _skip_the_look_after_exists,
    _take_the_next_number_while_one_is_unknown,
    _abort_deletes,
    _read_a_checkpoint_without_a_root,
    _fold_by_the_clock,
    _fold_by_an_option,
    _believe_the_hint,
    _do_not_check_the_number_in_names,
    _free_a_name_of_the_ledger,
    _collect_before_the_horizon,
    _forget_what_came_after_the_horizon,
    _forget_what_indexes_list,
    _collect_by_age,
    _deny_what_is_unknown,
    _propose_again_while_one_is_unknown,
    _let_two_mirrors_go_on,
    _replace_by_what_may_be_deleted,
    _let_a_merge_bring_back_what_retention_dropped,
    _leave_groups_out_of_checkpoints,
    _keep_the_greatest_offset_of_a_group,
]
# Each takes a hundred schedules or more.
FOUND_LATE = [_replace_by_what_may_be_deleted, _let_a_merge_bring_back_what_retention_dropped]


def test_a_few_schedules_lose_nothing() -> None:
    run_models(QUICK)


@pytest.mark.slow
def test_many_schedules_lose_nothing() -> None:
    run_models(MANY)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            one, id=one.__name__.strip("_"), marks=[pytest.mark.slow] * (one in FOUND_LATE)
        )
        for one in FAULTS
    ],
)
def test_a_fault_put_in_on_purpose_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)

    assert any(_fails(seed) for seed in range(SCHEDULES_MAX))


def _fails(seed: int) -> bool:
    try:
        run_model(seed)
    except Exception:  # noqa: BLE001  whatever it is found by
        return True
    return False


def test_a_schedule_is_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[list[tuple[str, float]]] = []

    def wait(self: ProcessObjects) -> None:
        real(self)
        runs[-1].append((self.rng.random().hex(), self.simulation.now_ms))

    real = ProcessObjects._wait
    monkeypatch.setattr(ProcessObjects, "_wait", wait)
    for _ in range(2):
        runs.append([])
        run_model(7)

    assert runs[0] == runs[1]
    assert len(runs[0]) > 100
