"""Maintenance of a cluster in a bucket, a round of it in this order.

    retention   start offsets are moved, by one entry
    merge       small extents become segments, some partitions at a time
    GC boundary is moved, if an entry is old enough
    collect     all that nothing refers to any more is deleted

An object that is lost, cut or damaged is reported, and all else is done. As long as a part of a
checkpoint is lost that the collection goes by, nothing is deleted: what it told of may be needed
yet.

Writers may do a little of it after their commits, as much of the merge as fits into `maintain.ms`.

It can be stopped anywhere and run anywhere, also several times at once. A partition whose merge fails, because
its topic is deleted or because someone else has merged it, is left for the next time.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kbatch.bucket.batch_stream import MissingObjectError
from spark_kbatch.bucket.garbage import Collected, GarbageCollector, References
from spark_kbatch.bucket.ledger import Timing
from spark_kbatch.bucket.merging import (
    RUN_EXTENTS,
    Merger,
    MergeRun,
    is_small,
    runs_in,
    small_runs,
    together,
)
from spark_kbatch.bucket.placement import PlacedExtent, Placements
from spark_kbatch.bucket.urls import checked, ledger_at
from spark_kbatch.clock import monotonic_ms
from spark_kbatch.errors import (
    CorruptLedgerError,
    CorruptRecordError,
    KBatchError,
    RefusedEntryError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.ledger import names
from spark_kbatch.ledger.entries import Rewrite, StartOffsets, StartOffsetsByTopic, TopicDeletion
from spark_kbatch.ledger.extents import NO_TIME, Change, DataExtent, IndexRange
from spark_kbatch.ledger.state import LedgerState
from spark_kbatch.model import LONG_MAX, TopicPartition
from spark_kbatch.options.object_store import NO_STORE_OPTIONS, StoreOptions
from spark_kbatch.options.topic import NO_LIMIT, TopicConfig

if TYPE_CHECKING:
    from spark_kbatch.bucket.objects import Objects
    from spark_kbatch.bucket.shared_ledger import SharedLedger

logger = logging.getLogger(__name__)

# What a merge is expected to take at first: of each object a request, and its bytes twice.
_OBJECT_MS = 10
_BYTES_A_MS = 20_000
_ERASE_ATTEMPTS = 20
_STARTS_OF_ENTRY = 5000


class Merged(NamedTuple):
    """Counts of merges: done, or to be done."""

    segments: int = 0
    extents: int = 0  # that these replace
    size_in_bytes: int = 0

    def plus(self, run: MergeRun) -> Merged:
        """Return the same with one more run."""
        return Merged(
            self.segments + 1,
            self.extents + len(run.extents),
            self.size_in_bytes + run.size_in_bytes,
        )

    def with_others(self, other: Merged) -> Merged:
        """Return the same with those of other runs."""
        return Merged(*map(sum, zip(self, other, strict=True)))


class Maintained(NamedTuple):
    """One round of maintenance: done, or to be done."""

    starts: Mapping[TopicPartition, int]  # offsets to which retention has moved partitions' starts
    merged: Merged
    collected: Collected
    damaged: tuple[str, ...] = ()  # sentences: what is lost or damaged, and was left as it is


class Stored(NamedTuple):
    """Some objects."""

    objects: int = 0
    size_in_bytes: int = 0


class LedgerDescription(NamedTuple):
    """The ledger of a cluster in a bucket at one moment: what of a description costs few requests."""

    entries: int
    last_entry_ms: int
    entries_since_checkpoint: int
    unmaintained_since_ms: int  # these as in BucketDescription
    clock_ahead_ms: int


class BucketDescription(NamedTuple):
    """A cluster in a bucket as it is at one moment."""

    cluster_id: str
    entries: int  # of the ledger
    last_entry_ms: int
    checkpoint: int  # the entry of the newest one; -1 for none
    horizon: int  # what began before that entry commits no more
    topics: int
    partitions: int
    referenced: Stored  # data that readers see
    waiting: Stored  # data that was replaced, deleted or never committed, or is being written
    ledger: Stored  # entries, checkpoints and all else
    most_small: TopicPartition | None  # the partition with the most small pieces
    small_extents: int  # that it has
    unmaintained_since_ms: int  # the store's time of the first entry after the GC boundary
    clock_ahead_ms: int  # of the last writer, beside the store's

    @property
    def entries_since_checkpoint(self) -> int:
        """How many entries a machine reads one by one that opens the cluster for the first time."""
        return self.entries - 1 - self.checkpoint


class Maintenance:
    """Maintenance of the cluster at one URL. Not thread-safe."""

    def __init__(
        self,
        url: str,
        options: StoreOptions = NO_STORE_OPTIONS,
        *,
        timing: Timing | None = None,
    ) -> None:
        """Open the cluster; raises as `BucketStore`.

        Args:
            url: of the bucket.
            options: of the store that it is in.
            timing: clocks and chance; for tests.
        """
        self.address = checked(url)
        self._ledger = ledger_at(self.address, options, timing)
        self._timing = timing = self._ledger.timing
        self._placements = Placements(self._ledger.objects)
        self._merger = Merger(self._ledger, timing)
        self._collector = GarbageCollector(self._ledger)
        # By sentence, since the last round began.
        self.damaged: dict[str, KBatchError] = self._collector.damaged

    def run(
        self,
        *,
        dry_run: bool = False,
        run_extents: int = RUN_EXTENTS,
        on_progress: Callable[[Merged, int], object] = lambda _done, _total_bytes: None,
    ) -> Maintained:
        """Do one round.

        Args:
            dry_run: whether to change nothing, and to return what would be done.
            run_extents: how many small extents of a partition are worth a merge.
            on_progress: called with what is merged, and how many bytes are to be.

        Raises:
            ObjectStoreError, ObjectAccessDeniedError: the store fails, or the right to write or delete is missing.
            CorruptLedgerError, UnsupportedLedgerError: the ledger cannot be read.
        """
        self.damaged.clear()
        starts = self.retain(dry_run=dry_run)
        runs, merged = self.runs(run_extents=run_extents), Merged()
        if dry_run:
            for run in runs:
                merged = merged.plus(run)
        else:
            merged = self._merge(runs, on_progress)
        collected = Collected(self._ledger.state.gc_boundary)
        with self._noting():
            collected = self.collect(dry_run=dry_run)
        return Maintained(starts, merged, collected, tuple(self.damaged))

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Note what is lost or damaged, and go on after it."""
        try:
            yield
        except CorruptRecordError as error:
            self.damaged[str(error)] = error
        except CorruptLedgerError as error:
            self.damaged[f"{error.name}: {error.reason}"] = error

    def retain(self, *, dry_run: bool = False) -> dict[TopicPartition, int]:
        """Move start offsets as the topics' settings say, and return where they are moved to.

        Ages go by this machine's clock or the store's, whichever is behind.
        """
        self._ledger.follow()
        time_ms = 0
        starts: dict[str, dict[int, int]] = {}
        # At which topic, by its id, and with which settings.
        looked_at: dict[str, tuple[int, Mapping[str, str]]] = {}
        moved: dict[TopicPartition, int] = {}
        for topic in [*self._ledger.state.topics.values()]:
            config = topic.settings
            if not config.has_retention:
                continue
            time_ms = time_ms or min(self._ledger.store_now_ms(), self._timing.now_ms())
            looked_at[topic.topic_id] = topic.created, dict(topic.config)
            for partition, changes in self._changes(topic.topic_id).items():
                head = self._ledger.state.partition(topic.topic_id, partition)
                start = head.start_offset
                with self._noting():
                    self._placements.load_indexes(changes)
                    extents = self._placements.of(changes, start, head.next_offset)
                    start = retained_from(extents, config, start, time_ms)
                if start > head.start_offset:
                    starts.setdefault(topic.topic_id, {})[partition] = start
                    moved[TopicPartition(topic.name, partition)] = start
        if not dry_run:
            for some in _entries_of(starts):
                self._ledger.commit(
                    functools.partial(_still_to_move, starts=some, looked_at=looked_at),
                    by="maintain",
                )
        return moved

    def _changes(self, topic_id: str) -> dict[int, list[Change]]:
        with self._noting(), contextlib.suppress(UnknownTopicOrPartitionError):  # deleted meanwhile
            return self._ledger.changes(topic_id)
        return {}

    def runs(
        self, topic_ids: Iterable[str] | None = None, *, run_extents: int = RUN_EXTENTS
    ) -> list[MergeRun]:
        """Return what is worth a merge in some topics, by default in all."""
        topics = self._ledger.follow().topics
        wanted, found = [*topics] if topic_ids is None else [*topic_ids], list[MergeRun]()
        choose = functools.partial(small_runs, run_extents=run_extents)
        for topic_id in sorted(topics.keys() & wanted):
            with self._noting():
                found += self._merger.runs(topic_id, choose, self._noting)
        return found

    def shares(self) -> list[list[MergeRun]]:
        """Return what is worth a merge, by what is merged together: work for one process each."""
        return [*together(self.runs())]

    def merge(
        self,
        runs: Iterable[MergeRun],
        *,
        on_progress: Callable[[Merged, int], object] = lambda _done, _total_bytes: None,
    ) -> Merged:
        """Merge runs; raises as `run`, and what was damaged, when all else is done."""
        merged = self._merge(runs, on_progress)
        for error in self.damaged.values():
            raise error
        return merged

    def _merge(
        self, runs: Iterable[MergeRun], on_progress: Callable[[Merged, int], object]
    ) -> Merged:
        merged, wanted = Merged(), [*runs]
        total_bytes = sum(run.size_in_bytes for run in wanted)
        for some in together(wanted):
            for run in self._merged_of(some):
                merged = merged.plus(run)
                on_progress(merged, total_bytes)
        return merged

    def _merged_of(self, runs: Sequence[MergeRun]) -> list[MergeRun]:
        """Merge runs of one topic, and return those that are merged; others are for the next time."""
        done = list[tuple[MergeRun, Rewrite]]()
        with self._merger.held(runs) as objects:
            for run in runs:
                with self._noting():
                    try:
                        done.append((run, self._merger.merge(run, objects)))
                    except MissingObjectError as error:
                        self._ensure_not_read(run, str(error))
                        logger.info("%s is gone: another merge was first", error)
        try:
            self._merger.commit(runs[0].topic_id, [replaced for _, replaced in done])
        except (RefusedEntryError, UnknownTopicOrPartitionError) as error:
            logger.info("topic %s is not merged this time: %s", runs[0].topic_id, error)
            return []
        return [run for run, _ in done]

    def _ensure_not_read(self, run: MergeRun, name: str) -> None:
        """Check that what a run was to read from a missing object is read from elsewhere by now.

        Raises:
            CorruptRecordError: it is not, so the object is lost.
        """
        self._ledger.follow()
        changes = self._changes(run.topic_id).get(run.partition, [])
        extents = self._placements.of(changes, run.start_offset, run.next_offset)
        if any(one.extent.name == name for one in extents):
            raise CorruptRecordError("the object is missing", path=name)

    def erase(self, topic: str, **progress: Any) -> Merged:
        """Rewrite what other topics have in the same objects as a topic, so that these can go, and delete the topic.

        The objects go with the GC boundary, as all that is not referred to: about
        staging.timeout.ms later. If it is stopped before the topic is deleted, it may be called
        again.

        Args:
            topic: its name.
            progress: as of `merge`.

        Raises:
            UnknownTopicOrPartitionError: it does not exist.
            RefusedEntryError: others write to its objects all the time, or what they have cannot be rewritten.
            Other errors, as `run`.
        """
        topic_id, merged = self._ledger.follow().topic(topic).topic_id, Merged()
        for _ in range(_ERASE_ATTEMPTS):
            objects = self._merger.objects_of(topic_id)
            looked_at = self._ledger.state.number
            others = sorted({*self._ledger.state.topics} - {topic_id})
            choose = functools.partial(runs_in, objects=objects)
            runs = [run for other in others for run in self._merger.runs(other, choose)]
            if runs:
                merged = merged.with_others(self.merge(runs, **progress))
                self._ledger.follow()
            elif self._delete(topic_id, looked_at):
                return merged
        raise RefusedEntryError(
            f"topic {topic!r} is not erased: other topics have records in its objects still; stop those who write "
            "to it, and do it again"
        )

    def _delete(self, topic_id: str, looked_at: int) -> bool:
        """Delete a topic if nothing was written after an entry; return False if something was."""
        may_delete = True

        def content(state: LedgerState) -> TopicDeletion | None:
            nonlocal may_delete
            may_delete = state.number == looked_at
            return TopicDeletion(topic_id) if may_delete and topic_id in state.topics else None

        self._ledger.commit(content, by="maintain")
        return may_delete

    def collect(self, *, dry_run: bool = False) -> Collected:
        """Move the GC boundary if that is due, and delete what it allows; raises as `run`."""
        time_ms = self._ledger.store_now_ms()
        due = self._collector.due_gc_boundary(time_ms)
        if due is not None and not dry_run:
            self._collector.move_gc_boundary(due)
        return self._collector.collect(time_ms, dry_run=dry_run, gc_boundary=due)


def describe(ledger: SharedLedger) -> BucketDescription:
    """Return the length of a cluster's ledger, what it refers to, and what it does not.

    Everything is listed, so it takes a request for each thousand objects.

    Raises as `Ledger` and `Objects.list`.
    """
    placements = Placements(ledger.objects)
    references, small = References(), Counter[TopicPartition]()
    with ledger.state() as state:
        for topic in [*state.topics.values()]:
            for partition, changes in ledger.changes(topic.topic_id).items():
                placements.load_indexes(changes)
                for change in changes:
                    references.add(change.append)
                small[TopicPartition(topic.name, partition)] = sum(
                    map(is_small, placements.of(changes, 0, LONG_MAX))
                )
        partitions = sum(topic.partitions for topic in state.topics.values())
        referenced, waiting, others = Counter[str](), Counter[str](), Counter[str]()
        for one in ledger.objects.list(""):
            found = others
            if one.name.startswith((names.DATA, names.SEGMENTS)):
                found = referenced if one.name in references else waiting
            found.update(objects=1, size_in_bytes=one.size_in_bytes)
        most = max(small, key=small.__getitem__, default=None)
        return BucketDescription(
            ledger.cluster_id,
            state.number + 1,
            state.time_ms,
            state.checkpoint,
            state.gc_boundary,
            len(state.topics),
            partitions,
            Stored(**referenced),
            Stored(**waiting),
            Stored(**others),
            most,
            small[most] if most else 0,
            *ledger_ages_ms(ledger.objects, state),
        )


def ledger_ages_ms(objects: Objects, state: LedgerState) -> tuple[int, int]:
    """Return the store's time of the first entry after the GC boundary, and how far the last writer's clock is ahead.

    That takes two lists of a page each. Raises as `Objects.list`.
    """
    first_ms, last_ms = (
        next(
            (one.modified_ms for one in objects.list(names.LEDGER, names.entry_name(at))),
            state.time_ms,
        )
        for at in (state.gc_boundary, state.number - 1)
    )
    return first_ms, state.time_ms - last_ms


def describe_ledger(ledger: SharedLedger) -> LedgerDescription:
    """Return the length and age of a cluster's ledger, by a read of what is new and three lists of a page each.

    Raises as `Ledger.follow` and `Objects.list`.
    """
    with ledger.state() as state:
        # The state goes on from the checkpoint that was opened, after which others may have made some.
        later = ledger.objects.list(names.CHECKPOINTS, names.root_name(state.checkpoint))
        newest = max((names.number_of(one.name) for one in later), default=state.checkpoint)
        return LedgerDescription(
            state.number + 1,
            state.time_ms,
            max(state.number - newest, 0),
            *ledger_ages_ms(ledger.objects, state),
        )


def told_objects(ledger: SharedLedger, topics: Iterable[str]) -> tuple[int, Stored]:
    """Return from how many objects some topics are read, and others that the ledger still names and that wait.

    Nothing is listed. An index counts as one object, with all that it lists. Of those that wait to be deleted,
    some are known to no entry, and to no checkpoint any more. They are not among these, and if `topics` are not
    all, some of these may be read for another one.

    Raises as `SharedLedger.changes`.
    """
    read, recorded = set[str](), set[DataExtent]()
    with ledger.state() as state:
        for topic_id in {state.topic_ids[name] for name in topics if name in state.topic_ids}:
            read.update(
                name
                for changes in ledger.changes(topic_id).values()
                for one in changes
                for name in one.append.objects
            )
            recorded.update(
                extent
                for one in ledger.recorded(topic_id)
                if not isinstance(one.append.placed, IndexRange)
                for extent in one.append.placed
            )
        waiting = [
            one
            for one in recorded
            if one.name not in read and names.start_entry(one.name) >= state.gc_boundary
        ]
    return len(read), Stored(
        len({one.name for one in waiting}), sum(one.size_in_bytes for one in waiting)
    )


def retained_from(
    extents: Iterable[PlacedExtent], config: TopicConfig, start_offset: int, now_ms: int
) -> int:
    """Return the offset from which on a partition is kept, by its topic's settings.

    Whole extents go, oldest first, as a log's segments do:

        retention.ms      while all records of the oldest extent are older
        retention.bytes   while what is left has still so many bytes

    An extent whose records have no time is kept by the first, with all that comes after it.

    Args:
        extents: from the start offset on, in order.
        config: of the topic.
        start_offset: where the partition starts now.
        now_ms: since 1970.
    """
    found = [*extents]
    left = sum(one.extent.size_in_bytes for one in found)
    for one in found:
        last_ms = one.extent.last_ms
        is_old = (
            config.retention_ms != NO_LIMIT and NO_TIME < last_ms < now_ms - config.retention_ms
        )
        left -= one.extent.size_in_bytes
        is_over = config.retention_bytes != NO_LIMIT and left >= config.retention_bytes
        if not (is_old or is_over):
            break
        start_offset = one.next_offset
    return start_offset


def merge_within(
    url: str, options: StoreOptions, budget_ms: int, topic_ids: Iterable[str]
) -> Merged:
    """Merge what can be in a short time, after a commit, which stands whatever happens here.

    Runs that would take too long are cut. What fails is logged, and left for the next time.

    Args:
        url: of the bucket.
        options: of the store that it is in.
        budget_ms: how long it may take, about.
        topic_ids: of the topics that are looked at.
    """
    deadline_ms, merged = monotonic_ms() + budget_ms, Merged()
    try:
        maintenance = Maintenance(url, options)
        slowness = 1.0  # of the store, by what was expected of it
        for share in together(maintenance.runs(topic_ids)):
            began_ms = monotonic_ms()
            some = within(share, (deadline_ms - began_ms) / slowness)
            if not some:
                break
            merged_now = maintenance.merge(some)
            slowness = max((monotonic_ms() - began_ms) / _expected_ms(some), 0.1)
            merged = merged.with_others(merged_now)
    except (KBatchError, RuntimeError) as error:  # the latter where the process ends meanwhile
        logger.info("small objects of %s are left for the next time: %s", url, error)
    return merged


def within(runs: Sequence[MergeRun], left_ms: float) -> list[MergeRun]:
    """Return as much of runs that are merged together as is done in a time; nothing if too little is worth it.

    That is the first ones of them; or less of each, where commits left several partitions in the same objects.
    """
    first = list[MergeRun]()
    for run in runs:
        if _expected_ms([*first, run]) > left_ms:
            break
        first.append(run)
    choices = first, _cut(runs, left_ms), _cut(runs[:1], left_ms)
    return max(choices, key=lambda some: sum(len(run.extents) for run in some))


def _cut(runs: Sequence[MergeRun], left_ms: float) -> list[MergeRun]:
    """Return the first half of each run, or a quarter and so on, that can be merged in a time."""
    some = [*runs]
    while some and _expected_ms(some) > left_ms:
        halves = (run._replace(extents=run.extents[: len(run.extents) // 2]) for run in some)
        some = [run for run in halves if len(run.extents) >= RUN_EXTENTS // 2]
    return some


def _expected_ms(runs: Sequence[MergeRun]) -> float:
    extents = [one.extent for run in runs for one in run.extents]
    size = sum(one.size_in_bytes for one in extents)
    return len({one.name for one in extents}) * _OBJECT_MS + size / _BYTES_A_MS


def _entries_of(starts: StartOffsetsByTopic) -> Iterator[dict[str, dict[int, int]]]:
    """Yield as many start offsets as fit into one entry."""
    every = [(topic_id, *one) for topic_id, found in starts.items() for one in found.items()]
    for first in range(0, len(every), _STARTS_OF_ENTRY):
        by_topic: dict[str, dict[int, int]] = {}
        for topic_id, partition, offset in every[first : first + _STARTS_OF_ENTRY]:
            by_topic.setdefault(topic_id, {})[partition] = offset
        yield by_topic


def _still_to_move(
    state: LedgerState,
    starts: StartOffsetsByTopic,
    looked_at: Mapping[str, tuple[int, Mapping[str, str]]],
) -> StartOffsets | None:
    """Return the entry that moves start offsets, without those that are there by now.

    Topics that are gone, or have other settings, since they were looked at are left for the next time.
    """
    left = {
        topic_id: {
            partition: offset
            for partition, offset in of_topic.items()
            if state.heads[topic_id][partition].start_offset < offset
        }
        for topic_id, of_topic in starts.items()
        if topic_id in state.topics
        and (state.topics[topic_id].created, state.topics[topic_id].config) == looked_at[topic_id]
    }
    left = {topic_id: of_topic for topic_id, of_topic in left.items() if of_topic}
    return StartOffsets(left) if left else None
