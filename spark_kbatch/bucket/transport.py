"""Transport of a plain producer to a bucket: one object and one entry for each request, of all partitions.

    1 put      the batches of a request, sorted by partition, in an object
    2 check    each partition, against the state: its topic is the same, and sequences go on
    3 entry    offsets and sequences; again from 2 with another state, if another entry was first

What a partition's check refuses is answered with its error; the others are written. A run that the ledger has
already, as an earlier answer was lost, is answered with its offsets: sequences are in entries, so it does not matter
which process wrote them.

Several requests may be put at once. Their entries are written one after the other, in the order in which they were
sent, by one thread. If one fails, so do all that are sent until the sender has its answer, and nothing of them is
written: what is sent again keeps its order, also where the ledger does not know the producer yet and would take any
sequence for its first. For that the sender's thread takes all answers, in `poll`. Without sequences a batch that is
sent again may come behind later ones, as in Kafka.

Now and then, after as many entries as make a merge worth it, another thread merges for a short
while. Where the first time is is left to chance: so producers of a few entries each merge as often
as one that writes as many.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeAlias

from spark_kbatch.bucket.merging import RUN_EXTENTS
from spark_kbatch.bucket.shared_ledger import SharedLedger
from spark_kbatch.bucket.staging import DataObjects, StagedExtents, WriterJob, append_of
from spark_kbatch.clock import monotonic_ms
from spark_kbatch.errors import (
    ClosedError,
    CommitError,
    KBatchError,
    ObjectStoreError,
    OutcomeUnknownError,
    RefusedEntryError,
)
from spark_kbatch.ledger.entries import Content, LedgerCommit, ProducedBatch
from spark_kbatch.ledger.extents import PartitionAppend
from spark_kbatch.ledger.state import LedgerState, ProducerHead, RememberedBatch
from spark_kbatch.model import AppendResult, TopicPartition
from spark_kbatch.options.topic import ensure_record_fits
from spark_kbatch.producer.sender import OneNode
from spark_kbatch.record.header import (
    NO_PRODUCER_ID,
    SEQUENCE_MAX,
    BatchHeader,
    ensure_follow,
    increment_sequence,
    unpack,
)
from spark_kbatch.store.transport import Answer, ProduceBatch, SendRequest

Maintain: TypeAlias = Callable[[Iterable[str]], object]

_WRITER = "producer"  # as which entries name it, and then its client.id
# Names of objects say at which entry their job began, which must not be long ago.
_PARTITIONS_OF_ENTRY = 1000
_JOB_AGE_MAX_MS = 60_000


class _RunToWrite(NamedTuple):
    """The batches of one partition in a request, with sequences that follow each other."""

    topic_id: str
    topic_partition: TopicPartition
    batches: Sequence[ProduceBatch]
    first: BatchHeader
    last: BatchHeader

    @property
    def has_sequence(self) -> bool:
        return self.first.producer_id != NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        return increment_sequence(self.last.base_sequence, self.last.records_count - 1)

    def produced(self, base_offset: int) -> ProducedBatch:
        """Return what an entry says of it."""
        return ProducedBatch(
            self.first.producer_id,
            self.first.producer_epoch,
            self.topic_id,
            self.topic_partition.partition,
            self.first.base_sequence,
            self.last_sequence,
            base_offset,
        )


class _Failure:
    """A request that failed; others fail with it."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.told: int | None = None  # how many requests had been sent when the sender was told

    def covers(self, number: int) -> bool:
        """Return whether a request was sent before the sender was told."""
        return self.told is None or number <= self.told


_Done: TypeAlias = tuple[Callable[[Answer], None], Answer, _Failure | None]


class BucketTransport(OneNode):
    """Transport of a plain producer, and the one node that it sends to; it takes runs."""

    def __init__(
        self,
        ledger: SharedLedger,
        maintain: Maintain | None = None,
        *,
        at_once: int = 1,
        client_id: str = "",
    ) -> None:
        """Set up.

        Args:
            ledger: of the cluster.
            maintain: called in a thread of its own, with the ids of topics, once in RUN_EXTENTS
                entries.
            at_once: how many requests are put at a time; with 1 by the thread that sends, which waits for it.
            client_id: of the producer, for its entries.
        """
        super().__init__()
        self._ledger, self._maintain = ledger, maintain
        self._by = f"{_WRITER} {client_id}".rstrip()
        self._puts = self._commits = None
        if at_once > 1:
            self._puts = ThreadPoolExecutor(at_once, "kbatch-put")
            self._commits = ThreadPoolExecutor(1, "kbatch-commit")
        self._sent = 0  # requests that are put beside others
        self._failure: _Failure | None = None  # the last one; of the thread that commits
        self._done: deque[_Done] = deque()  # answers that the sender has not taken yet
        self._job: WriterJob | None = None
        self._began_ms = 0
        self._written = set[str]()  # ids of topics, since `maintain` was called last
        # Entries since then. It begins anywhere, so that of many producers that end after a few
        # entries one in so many merges what all have left.
        self._entries = ledger.rng.randrange(RUN_EXTENTS)
        self._maintaining: threading.Thread | None = None

    def send(self, request: SendRequest, on_answer: Callable[[Answer], None]) -> None:
        """Write the batches of a request by one entry; each partition gets an answer of its own.

        An error is raised, or is every partition's answer if several requests are put at once:

            ObjectStoreError      nothing is written; or it is not known, and sequences will tell
            OutcomeUnknownError   it is not known, and there are no sequences
        """
        answer = dict[TopicPartition, AppendResult]()
        runs = [run for run in _runs(request.batches) if self._is_accepted(run, answer)]
        if not runs:
            on_answer(answer)
            return
        if self._job is None or monotonic_ms() - self._began_ms >= _JOB_AGE_MAX_MS:
            self._begin()
            assert self._job is not None
        if self._puts is None or self._commits is None:
            staged = self._stage(runs, self._job)
            try:
                self._commit(runs, staged, request.timeout_ms, answer)
            except Exception as error:
                if not any(run.topic_partition in answer for run in runs):
                    raise
                _fail(runs, error, answer)
            on_answer(answer)
        else:
            self._sent += 1
            staging = self._puts.submit(self._stage, runs, self._job)
            self._commits.submit(
                self._finish, self._sent, runs, staging, request.timeout_ms, answer, on_answer
            )

    def poll(self, timeout_ms: int) -> None:
        """Pass on answers; wait for one, or to be woken, if there is none."""
        super().poll(0 if self._done else timeout_ms)
        while self._done:
            on_answer, answer, failure = self._done.popleft()
            if failure is not None and failure.told is None:
                failure.told = self._sent
            on_answer(answer)

    def close(self) -> None:
        """Let go of the threads, once they have answered."""
        for executor in (self._puts, self._commits):
            if executor is not None:
                executor.shutdown(wait=False)

    def _finish(
        self,
        number: int,
        runs: Sequence[_RunToWrite],
        staging: Future[StagedExtents],
        timeout_ms: int,
        answer: dict[TopicPartition, AppendResult],
        on_answer: Callable[[Answer], None],
    ) -> None:
        """Commit the request with this number, in the thread for that."""
        if self._failure is not None and not self._failure.covers(number):
            self._failure = None
        try:
            extents = staging.result()
            if self._failure is None:
                self._commit(runs, extents, timeout_ms, answer)
        except Exception as error:  # noqa: BLE001  any error is the answer
            self._failure = _Failure(error)  # the sender has to see it before others go on
        if self._failure is not None:
            _fail(runs, self._failure.error, answer)
        self._done.append((on_answer, answer, self._failure))
        self.wake_up()

    def _is_accepted(self, run: _RunToWrite, answer: dict[TopicPartition, AppendResult]) -> bool:
        try:
            ensure_follow(run.topic_partition, [unpack(batch.data) for batch in run.batches])
            for batch in run.batches:
                ensure_record_fits(batch.topic, len(batch.data))
        except KBatchError as error:
            answer[run.topic_partition] = AppendResult(error=error)
            return False
        return True

    def _begin(self) -> None:
        """Begin a job for what is staged next, at the last entry that is known."""
        self._job, self._began_ms = self._ledger.begin_job(), monotonic_ms()

    def _stage(self, runs: Sequence[_RunToWrite], job: WriterJob) -> StagedExtents:
        """Put the batches of a request into an object."""
        data = DataObjects(self._ledger.objects, job, self._ledger.rng)
        for run in runs:
            for batch in run.batches:
                data.send(run.topic_id, run.topic_partition.partition, batch.data)
        return data.finish()

    def _commit(
        self,
        runs: Sequence[_RunToWrite],
        extents: StagedExtents,
        timeout_ms: int,
        answer: dict[TopicPartition, AppendResult],
    ) -> None:
        """Write the entry of a request, or several if one cannot hold it, and complete its answer; raises as `send`.

        After an error the answer has the partitions that were written before.
        """
        for start in range(0, len(runs), _PARTITIONS_OF_ENTRY):
            some = runs[start : start + _PARTITIONS_OF_ENTRY]
            answer |= self._committed(some, extents, timeout_ms)
            self._maybe_maintain(some)

    def _committed(
        self, runs: Sequence[_RunToWrite], extents: StagedExtents, timeout_ms: int
    ) -> dict[TopicPartition, AppendResult]:
        """Write one entry, and return the answer."""
        answer = dict[TopicPartition, AppendResult]()

        def propose(state: LedgerState) -> Content | None:
            appends: dict[str, list[PartitionAppend]] = {}
            produced = []
            for run in runs:
                found = _looked_up(state, run)
                if found is None:
                    partition = run.topic_partition.partition
                    staged = append_of(partition, extents[run.topic_id, partition])
                    append = state.following(run.topic_id, staged)
                    appends.setdefault(run.topic_id, []).append(append)
                    found = AppendResult(append.base_offset)
                    if run.has_sequence:
                        produced.append(run.produced(append.base_offset))
                answer[run.topic_partition] = found
            return LedgerCommit(appends, produced=tuple(produced)) if appends else None

        try:
            self._ledger.commit(propose, by=self._by, timeout_ms=timeout_ms)
        except CommitError as error:
            if isinstance(error, OutcomeUnknownError) and not all(run.has_sequence for run in runs):
                raise
            # An entry that lands late is found by the next writer of that number, before it writes anything else.
            raise ObjectStoreError("create", "the next entry", error.reason) from None
        except RefusedEntryError:
            # It may be older than the GC boundary: begin another one.
            self._began_ms = -_JOB_AGE_MAX_MS
            raise
        # The records are written: nothing from here on may be their error.
        with contextlib.suppress(ClosedError):
            self._begin()
        return answer

    def _maybe_maintain(self, runs: Sequence[_RunToWrite]) -> None:
        if self._maintain is None:
            return
        self._written.update(run.topic_id for run in runs)
        self._entries += 1
        is_busy = self._maintaining is not None and self._maintaining.is_alive()
        if self._entries < RUN_EXTENTS or is_busy:
            return
        written, self._written, self._entries = self._written, set(), 0
        # The process ends after the thread, which no one else waits for.
        maintaining = threading.Thread(
            target=self._maintain, args=(written,), name="kbatch-maintain"
        )
        with contextlib.suppress(RuntimeError):  # the process is ending
            maintaining.start()
            self._maintaining = maintaining


def _fail(
    runs: Sequence[_RunToWrite], error: Exception, answer: dict[TopicPartition, AppendResult]
) -> None:
    """Answer with an error for partitions that have no answer yet."""
    for run in runs:
        answer.setdefault(run.topic_partition, AppendResult(error=error))


def _runs(batches: Sequence[ProduceBatch]) -> Iterator[_RunToWrite]:
    by_partition: dict[TopicPartition, list[ProduceBatch]] = {}
    for batch in batches:
        by_partition.setdefault(batch.topic_partition, []).append(batch)
    for topic_partition, found in by_partition.items():
        first, last = unpack(found[0].data), unpack(found[-1].data)
        yield _RunToWrite(found[0].topic.topic_id, topic_partition, found, first, last)


def _looked_up(state: LedgerState, run: _RunToWrite) -> AppendResult | None:
    """Return the answer for a run that is not to be written; None if it is."""
    try:
        state.partition(run.topic_id, run.topic_partition.partition)
        key = run.first.producer_id, run.topic_id, run.topic_partition.partition
        head = state.producers.get(key) if run.has_sequence else None
        if head is None:
            return None
        offset = _offset_of(run, head)
        if offset is None:
            state.check_follows(run.produced(0), head)
        return None if offset is None else AppendResult(offset)
    except KBatchError as error:
        return AppendResult(error=error)


def _offset_of(run: _RunToWrite, head: ProducerHead) -> int | None:
    """Return the offset of a run that was written before; None if it was not."""
    first = run.first
    if first.producer_epoch == head.producer_epoch:
        for written in head.batches:
            if _has(written, first.base_sequence) and _has(written, run.last_sequence):
                return written.base_offset + _after(written, first.base_sequence)
    return None


def _has(written: RememberedBatch, sequence: int) -> bool:
    return (
        _after(written, sequence) <= (written.last_sequence - written.first_sequence) & SEQUENCE_MAX
    )


def _after(written: RememberedBatch, sequence: int) -> int:
    """Return how many sequence numbers one lies after the first of a run; they wrap around."""
    return (sequence - written.first_sequence) & SEQUENCE_MAX
