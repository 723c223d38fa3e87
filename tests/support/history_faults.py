"""Faults of the product that are put in on purpose into the processes of a history, which has to show each of them.

Each takes effect in the process that calls it, for good. Those of the store are in `tests.support.rough_store`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spark_kbatch.bucket import batch_stream
from spark_kbatch.bucket.garbage import GarbageCollector
from spark_kbatch.bucket.job import BucketJob
from spark_kbatch.bucket.ledger import Ledger
from spark_kbatch.bucket.objects import CreateAnswer, ObjectInfo
from spark_kbatch.bucket.placement import PlacedExtent
from spark_kbatch.bucket.transport import BucketTransport
from spark_kbatch.errors import CommitError
from spark_kbatch.ledger.entries import Content, LedgerCommit, encode
from spark_kbatch.ledger.names import NUMBER_MAX, entry_name
from spark_kbatch.ledger.state import LedgerState
from spark_kbatch.record.header import BatchHeader
from spark_kbatch.store.commits import NOTHING_VISIBLE
from spark_kbatch.store.job import StagedRows


def _put(owner: Any, name: str, value: Any) -> Any:
    """Put something in place of an attribute, which there has to be, and return what it was."""
    was = getattr(owner, name)
    setattr(owner, name, value)
    return was


def acknowledge_without_an_entry() -> None:
    """Take a create without an answer for one that was done."""

    def ask(self: Ledger, name: str, data: bytes) -> CreateAnswer:
        answer: CreateAnswer = was(self, name, data)
        return CreateAnswer.CREATED if answer is CreateAnswer.UNKNOWN else answer

    was = _put(Ledger, "_ask_to_create", ask)


def propose_again_while_one_is_unknown() -> None:
    """Take a create without an answer for a lost race."""

    def create(self: Ledger, entry: Any, deadline_ms: int) -> bool:
        del deadline_ms
        answer = self._ask_to_create(entry_name(entry.number), encode(entry))
        return answer is CreateAnswer.CREATED

    _put(Ledger, "_create", create)


def deny_what_is_unknown() -> None:
    """Say that nothing is visible where no answer came."""

    def ask(self: Ledger, name: str, data: bytes) -> CreateAnswer:
        answer: CreateAnswer = was(self, name, data)
        if answer is CreateAnswer.UNKNOWN:
            raise CommitError(NOTHING_VISIBLE, "there was no answer")
        return answer

    was = _put(Ledger, "_ask_to_create", ask)


def _forget(what: str) -> None:
    def forget(self: LedgerState, content: Content) -> None:
        was(self, content)
        if isinstance(content, LedgerCommit):
            getattr(self, what).clear()

    was = _put(LedgerState, "_change", forget)


def forget_sequences() -> None:
    """Forget what each producer has written last."""
    _forget("producers")


def forget_micro_batches() -> None:
    """Forget what each query has written last."""
    _forget("queries")


def commit_each_task_by_itself() -> None:
    """Write an entry for each task of a job."""

    def commit(self: BucketJob, staged: Sequence[StagedRows]) -> None:
        for one in staged:
            was(self, [one])

    was = _put(BucketJob, "commit_batch", commit)


def collect_beyond_the_horizon() -> None:
    """Delete what no entry refers to, though it may be committed yet."""

    def named(self: GarbageCollector, prefix: str, _number: int) -> Iterator[ObjectInfo]:
        found: Iterator[ObjectInfo] = was(self, prefix, NUMBER_MAX)
        return found

    was = _put(GarbageCollector, "_named_below", named)
    _put(GarbageCollector, "_is_done", lambda *_: False)


def acknowledge_wrong_offsets() -> None:
    """Tell a producer offsets that are one too high."""

    def committed(self: BucketTransport, *arguments: Any) -> Any:
        answer = was(self, *arguments)
        return {
            tp: one._replace(base_offset=one.base_offset + 1) if one.error is None else one
            for tp, one in answer.items()
        }

    was = _put(BucketTransport, "_committed", committed)


def forget_bases_of_batches() -> None:
    """Begin each batch of an extent with the extent's own offset."""

    def final(header: BatchHeader, placed: PlacedExtent, *arguments: Any) -> BatchHeader:
        found: BatchHeader = was(header, placed, *arguments)
        return found.with_base_offset(placed.base_offset, found.partition_leader_epoch)

    was = _put(batch_stream, "_final", final)


FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault
    for fault in (
        acknowledge_without_an_entry,
        propose_again_while_one_is_unknown,
        deny_what_is_unknown,
        forget_sequences,
        forget_micro_batches,
        commit_each_task_by_itself,
        collect_beyond_the_horizon,
        acknowledge_wrong_offsets,
        forget_bases_of_batches,
    )
}
