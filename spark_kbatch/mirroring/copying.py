"""`spark_kbatch.mirror`: fetch from the source, send to the target, commit batches with the progress.

Source and target are at paths, real clusters or buckets. What a run does:

    1. take over     what the target has stored of the mirror's progress; end what a dead process started
    2. compare       topics, ids, partition counts; make topics that are missing
    3. start         progress is stored before the first record, where that matters
    4. copy          partition by partition in turn, a fetch at a time; a unit ends when it is large or
                     old enough, and with it the progress is stored, even if what was read has no record
                     to send: the source may delete it before the next run

Where a source's partition is damaged, or records are missing from it, or its files or objects cannot be
read, all before that is copied, and so are other partitions; this is committed, and then the run fails.

Before a partition is copied on, its source is asked for the batch that was copied last. By the first unit
with records of a topic, that topic has to be as it was found.

A crash at any moment leaves units that are whole, with their progress, or are not there. So the next
run goes on where the last unit ended. A partition is read in order of its offsets by one process, and
units follow one another, so the order is kept.

A mirror can keep offsets and the ids of topics, in a folder or a bucket: a topic is created with both, and offsets
that have no record there are filled. Then who knows an offset of the source goes on in the target. By the id a run
knows that a topic was begun so, and has to go on so.

What cannot be mirrored exactly once is refused: a target that has records of which no progress is known, or
gets them from another mirror at the same time; a topic that was created again on either side; a source
that lost records which were copied; and, unless asked for, one that deleted records before they were copied.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from spark_kbatch.clock import monotonic_ms
from spark_kbatch.consumer.reading import FETCH_BYTES
from spark_kbatch.errors import (
    UNREADABLE,
    ConfigError,
    CorruptRecordError,
    DataLossError,
    KBatchError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    going_on,
)
from spark_kbatch.mirroring.batches import MirroredBatch, batches, gap
from spark_kbatch.mirroring.into_path import PathTarget
from spark_kbatch.mirroring.progress import NOTHING, LastBatch, Progress, TopicIds
from spark_kbatch.mirroring.target import KeptTopic, Target, TargetTopic
from spark_kbatch.model import (
    INT_MAX,
    IsolationLevel,
    LogOffsets,
    OffsetRange,
    ReadRange,
    TopicPartition,
)
from spark_kbatch.opening.stores import is_of_real_cluster, open_bucket, open_store
from spark_kbatch.options import arguments
from spark_kbatch.options.option import MiB
from spark_kbatch.options.paths import StrPath, bucket_scheme
from spark_kbatch.options.remote import parse_client_options
from spark_kbatch.options.topic import Topic, partitions_of, settings_to_keep
from spark_kbatch.record.header import NO_LEADER_EPOCH, LogRead
from spark_kbatch.store.source import Fetcher, Source

logger = logging.getLogger(__name__)

_TURN_BYTES = 64 * MiB  # of one partition, before the next one
_POLL_S = 0.2  # between looks at a source that has nothing new
_ISOLATION = IsolationLevel.READ_COMMITTED
_NAME_MAX = 200


class MirrorProgress(NamedTuple):
    """Records that a mirror has copied since it was started, and those that are left."""

    records_count: int  #: sent, in units that are committed or not
    size_in_bytes: int
    units: int  #: committed
    batches_kept: int  #: whose records were copied as they are
    batches_encoded: int  #: that had to be encoded again
    offsets_left: int  #: to the source's ends, as far as they were looked up
    topics_created: tuple[str, ...]


OnProgress = Callable[[MirrorProgress], object]


class _UnreadableError(Exception):
    """A partition of the source cannot be read on. Its argument says why; the target has had no such error."""


class Settings(NamedTuple):
    """Settings of one mirror, such as its name and how often it commits."""

    mirror: str  # its name
    source: str  # for people
    follow: bool
    unit_bytes: int
    unit_ms: int
    fail_on_data_loss: bool
    keep_offsets: bool = False  # and ids of topics


def mirror(
    source: StrPath,
    target: StrPath,
    topics: str | Iterable[str],
    *,
    name: str | None,
    follow: bool,
    unit_bytes: int,
    unit_seconds: float,
    fail_on_data_loss: bool,
    keep_offsets: bool,
    foreign_end: str | None,
    source_config: Mapping[str, Any] | None,
    target_config: Mapping[str, Any] | None,
    on_progress: OnProgress | None,
    stop: threading.Event | None,
) -> MirrorProgress:
    """Copy topics from a source to a target, exactly once, as `spark_kbatch.mirror` describes."""
    names = arguments.topic_names("topics", topics)
    if not names:
        arguments.refuse("topics", topics, "topic names")
    if name is not None and not 0 < len(arguments.text("name", name)) <= _NAME_MAX:
        arguments.refuse("name", name, f"1 to {_NAME_MAX} characters")
    settings = Settings(
        mirror=name or "",
        source="",
        follow=arguments.boolean("follow", follow),
        unit_bytes=arguments.whole_number("unit_bytes", unit_bytes, 1, INT_MAX),
        unit_ms=int(arguments.seconds("unit_seconds", unit_seconds) * 1000),
        fail_on_data_loss=arguments.boolean("fail_on_data_loss", fail_on_data_loss),
        keep_offsets=arguments.boolean("keep_offsets", keep_offsets),
    )
    _ensure_takes("source", source, source_config)
    origin = open_store(source, client=source_config, foreign_end=foreign_end)
    for topic in names:
        origin.source.topic(topic)  # before a target is made for nothing
    source_id = origin.cluster_id
    mirror_name = name or f"kbatch-mirror-{source_id or _of_path(origin.address)}"
    settings = settings._replace(mirror=mirror_name, source=origin.address)
    with contextlib.closing(_target(target, target_config, mirror_name)) as into:
        is_copy = origin.catalog is None  # of a broker's logs
        if not is_copy and source_id and source_id == into.cluster_id:
            raise ConfigError(
                f"{origin.address} and {into.name} are one cluster, {source_id}: a mirror keeps the "
                "names of topics, so it needs another one"
            )
        run = Mirror(
            origin.source,
            into,
            settings,
            on_progress or (lambda _progress: None),
            stop=stop,
        )
        return run.run(dict.fromkeys(names))


class Mirror:
    """One run of a mirror, which copies topics from a source to a target.

    Not thread-safe, but for `stop`.
    """

    def __init__(
        self,
        source: Source,
        target: Target,
        settings: Settings,
        on_progress: OnProgress = lambda _progress: None,
        *,
        stop: threading.Event | None = None,
    ) -> None:
        """Set up a run, without reading or writing anything yet.

        Args:
            source: to read from.
            target: to write to.
            settings: of the mirror.
            on_progress: called after each fetch and each commit; what it raises ends the mirror.
            stop: set by another thread, it ends the mirror after the unit that is being read.
        """
        self._source, self._target, self._settings = source, target, settings
        self._on_progress = on_progress
        self._stop = stop or threading.Event()
        self._topics: dict[str, Topic] = {}  # of the source
        self._target_topics: dict[str, TargetTopic] = {}
        self._stored: Progress = NOTHING
        self._ids: dict[str, TopicIds] = {}
        self._offsets: dict[TopicPartition, int] = {}
        # Where the target ends, with what was sent and without it; if offsets are kept.
        self._target_ends: dict[TopicPartition, int] = {}
        self._committed_ends: dict[TopicPartition, int] = {}
        self._last_batches: dict[TopicPartition, LastBatch] = {}  # before these offsets
        self._unchecked: set[TopicPartition] = set()  # whose last batch is of an earlier run
        self._unwritten: dict[str, Mapping[int, int]] = {}  # topics, with the target's end offsets
        self._unit_topics: set[str] = set()  # that the unit has records of
        self._ends: Mapping[TopicPartition, int] = {}
        self._done = MirrorProgress(0, 0, 0, 0, 0, 0, ())
        self._unit_bytes = 0
        self._unit_began_ms: int | None = None  # when it was first read for; None before that
        self._buffer = bytearray(FETCH_BYTES)

    def run(self, topics: Iterable[str]) -> MirrorProgress:
        """Copy these topics up to their ends, or until stopped; return how much was copied.

        Raises:
            ConfigError: the target has records of which no progress is known, another number of
                partitions, or another topic of the name.
            DataLossError: the source does not hold records that were not copied yet.
            MirrorFencedError: another process mirrors under the same name.
            RecordTooLargeError: the target takes no batch that large.
            CorruptRecordError, CorruptLedgerError, KafkaStorageError: records of the source cannot be
                read. What precedes them, and all other partitions, are copied.
        """
        try:
            self._begin(list(topics))
            while True:
                self._look_up_ends()
                self._copy()
                if not self._settings.follow or self._stop.is_set():
                    break
                self._maybe_commit()
                self._stop.wait(_POLL_S)
            self._commit()
        except BaseException:
            self._target.abandon()
            raise
        return self._done

    # Before the first record.

    def _begin(self, names: list[str]) -> None:
        self._topics = {name: self._source.topic(name) for name in names}
        for topic in self._topics.values():
            self._ensure_whole(topic)
        views = self._source.views(self._partitions())
        starts = {tp: view.offsets.log_start_offset for tp, view in views.items()}
        self._stored = self._target.take_over()
        missing = [name for name in names if not self._find_in_target(name)]
        for name in missing:
            topic = self._topics[name]
            kept = _kept(topic, starts) if self._settings.keep_offsets else None
            self._target_topics[name] = self._target.create_topic(name, topic.partitions, kept)
            # Another mirror may have found it missing, too.
            self._ensure_empty_without_progress(name)
        self._ids = {
            name: TopicIds(topic.topic_id, self._target_topics[name].topic_id)
            for name, topic in self._topics.items()
        }
        for topic_partition, start in starts.items():
            stored = self._stored.offsets.get(topic_partition)
            self._offsets[topic_partition] = start if stored is None else stored
            if topic_partition in self._stored.last_batches:
                self._last_batches[topic_partition] = self._stored.last_batches[topic_partition]
        self._unchecked = set(self._last_batches)
        if self._settings.keep_offsets:
            self._look_up_target()
        self._done = self._done._replace(topics_created=tuple(missing))
        self._target.start(self._progress())

    def _look_up_target(self) -> None:
        """Look up where the target ends, and check that it can go on there with the source's offsets."""
        for name, ids in self._ids.items():
            if ids.source_topic_id and ids.source_topic_id != ids.target_topic_id:
                raise ConfigError(
                    f"topic {name!r} has the id {ids.target_topic_id} in {self._target.name}, and "
                    f"{ids.source_topic_id} in {self._settings.source}; a mirror that keeps offsets keeps ids too, "
                    "and creates the topic itself: delete it there, or give another target"
                )
            for number, end in self._target.end_offsets(name).items():
                tp = TopicPartition(name, number)
                # Until something was copied, the source may have lost what was there when the topic was made.
                is_short = end < self._offsets[tp] and tp in self._stored.last_batches
                if end > self._offsets[tp] or is_short:
                    why = (
                        "records are missing there"
                        if is_short
                        else "someone else has written to it"
                    )
                    raise ConfigError(
                        f"partition {tp} of {self._target.name} ends at {end}, and was copied up to "
                        f"{self._offsets[tp]}: {why}, so offsets cannot be kept; mirror to another target"
                    )
                self._target_ends[tp] = self._committed_ends[tp] = end

    def _partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(name, number)
            for name, topic in self._topics.items()
            for number in range(topic.partitions)
        ]

    def _ensure_whole(self, topic: Topic) -> None:
        """Check that the source has all partitions of a topic, as a broker's log dir may have only some."""
        found = [tp.partition for tp in self._source.partitions(topic.name)]
        if found != list(range(len(found))):
            raise ConfigError(
                f"of topic {topic.name!r}, {self._settings.source} has the partitions "
                f"{', '.join(map(str, found))}; a mirror needs all, from 0 on: mirror from the cluster"
            )

    def _find_in_target(self, name: str) -> bool:
        """Return True if the target has a topic that can be mirrored to; False if it is to be made."""
        mirror, target = self._settings.mirror, self._target.name
        found, stored_ids = self._target.topic(name), self._stored.ids.get(name)
        source = self._topics[name]
        if found is None:
            if stored_ids is None:
                return False
            raise ConfigError(
                f"topic {name!r} was deleted in {target} after mirror {mirror!r} wrote to it; to copy "
                "it again from the start, give the mirror another name"
            )
        if found.partitions != source.partitions:
            raise ConfigError(
                f"topic {name!r} has {source.partitions} partitions in {self._settings.source} and "
                f"{found.partitions} in {target}; they must be equal: add partitions to the one that "
                "has fewer, or mirror to a target where the topic does not exist"
            )
        differing = stored_ids and stored_ids.differ_from(TopicIds(source.topic_id, found.topic_id))
        if differing:
            recreated_in = self._settings.source if differing == "source" else target
            raise ConfigError(
                f"topic {name!r} was deleted and created again in {recreated_in} after mirror {mirror!r} last "
                f"ran; delete it in {target}, and give the mirror another name to copy it from the "
                "start"
            )
        # Only a mirror that keeps offsets makes a topic with the source's id.
        is_kept = source.topic_id and source.topic_id == found.topic_id
        if is_kept and not self._settings.keep_offsets:
            raise ConfigError(
                f"topic {name!r} of {target} has the id and the offsets that it has in "
                f"{self._settings.source}, and this run would give records other offsets; keep them as before, by "
                "keep_offsets=True (--keep-offsets)"
            )
        self._target_topics[name] = found
        self._ensure_empty_without_progress(name)
        return True

    def _ensure_empty_without_progress(self, name: str) -> None:
        known = {tp.partition for tp in self._stored.offsets if tp.topic == name}
        is_written = bool(known) and name not in self._stored.unwritten
        if is_written and known.issuperset(range(self._topics[name].partitions)):
            return
        mirror, target = self._settings.mirror, self._target.name
        ends = self._target.end_offsets(name)
        if not is_written:
            self._unwritten[name] = ends
        if known and not is_written and any(ends.values()) and self._target.has_records(name):
            raise ConfigError(
                f"topic {name!r} of {target} has records, and mirror {mirror!r} has not written any of "
                "them. Run the mirror that did, or delete the topic there to copy it again"
            )
        if self._settings.keep_offsets and not self._target.has_records(name):
            return  # it may begin at any offset
        for partition, end in ends.items():
            if end > 0 and partition not in known:
                raise ConfigError(
                    f"partition {name}-{partition} of {target} is not empty, it ends at offset {end}, and "
                    f"no progress of mirror {mirror!r} is stored there, so what was copied into it is "
                    f"unknown. Delete the topic in {target} to copy it again, or give the name of the "
                    "mirror that wrote it"
                )

    # Copying.

    def _look_up_ends(self) -> None:
        """Look up the source's end offsets, and check that its topics were not recreated or extended."""
        views = self._source.views(self._offsets)
        for name, topic in self._topics.items():
            self._ensure_same(name)
            found = self._source.topic(name).partitions
            if found != topic.partitions:
                raise ConfigError(
                    f"topic {name!r} has {found} partitions in {self._settings.source} by now, and "
                    f"{topic.partitions} in {self._target.name}: add partitions to it there, and run "
                    "the mirror again"
                )
        self._ends = {tp: view.offsets.end_offset(_ISOLATION) for tp, view in views.items()}
        for topic_partition, end in self._ends.items():
            if self._offsets[topic_partition] > end:
                raise self._ends_too_early(topic_partition, self._offsets[topic_partition], end)

    def _ends_too_early(self, tp: TopicPartition, offset: int, end: int) -> DataLossError:
        return DataLossError(
            f"offset {offset} of {tp} of {self._settings.source}", f"offsets up to {end}",
            "the source ends before what was copied from it, or was there to be copied; it has lost records, "
            "or is another one: mirror it to another target",
        )  # fmt: skip

    def _copy(self) -> None:
        """Copy all partitions up to the end offsets last looked up, or until stopped.

        Raises:
            CorruptRecordError, CorruptLedgerError, KafkaStorageError: the first that a partition had, once
                all others are copied.
        """
        unreadable: KBatchError | None = None
        left = deque(tp for tp, end in self._ends.items() if self._offsets[tp] < end)
        while left and not self._stop.is_set():
            topic_partition = left.popleft()
            try:
                self._copy_turn(topic_partition)
            except UnknownTopicOrPartitionError:
                self._ensure_same(topic_partition.topic)  # says more
                raise
            except _UnreadableError as error:
                why = going_on(error.args[0], topic_partition, "a read from offset {1} on".format)
                unreadable = unreadable or why
                continue
            if self._offsets[topic_partition] < self._ends[topic_partition]:
                left.append(topic_partition)
        if unreadable is not None:
            self._commit()
            raise unreadable

    def _copy_turn(self, tp: TopicPartition) -> None:
        """Copy one partition up to its end offset, or until it is another partition's turn."""
        self._maybe_check_last_batch(tp)
        wanted = OffsetRange(tp, self._offsets[tp], self._ends[tp])
        last = self._last_batches.get(tp)
        epoch = NO_LEADER_EPOCH if last is None else last.leader_epoch
        stop_at = self._done.size_in_bytes + _TURN_BYTES
        with self._source.fetcher(wanted, self._topics[tp.topic].topic_id, epoch) as fetcher:
            while (
                self._offsets[tp] < wanted.end
                and self._done.size_in_bytes < stop_at
                and not self._stop.is_set()
            ):
                self._copy_some(fetcher, tp)
                self._report()
                self._maybe_commit()

    def _maybe_check_last_batch(self, tp: TopicPartition) -> None:
        """Check that the source still has the batch that an earlier run copied last, before going on.

        Raises:
            DataLossError: it has another one in its place.
        """
        if tp not in self._unchecked:
            return
        self._unchecked.discard(tp)
        offset, last = self._offsets[tp], self._last_batches[tp]
        try:
            read, _ = _fetched(self._source.fetch, tp, ReadRange(offset - 1, 1, _ISOLATION))
        except OffsetOutOfRangeError:
            return  # it was deleted since, or the next fetch fails, too
        if read.batches and not last.may_be(read.batches[0][1], offset):
            raise DataLossError(
                f"offset {offset - 1} of {tp} of {self._settings.source}", "another record in its place",
                "the source has lost records that were copied from it, and got others; mirror it to another "
                "target",
            )  # fmt: skip

    def _copy_some(self, fetcher: Fetcher, topic_partition: TopicPartition) -> None:
        if self._unit_began_ms is None:
            self._unit_began_ms = monotonic_ms()
        offset, end = self._offsets[topic_partition], self._ends[topic_partition]
        asked = ReadRange(offset, FETCH_BYTES, _ISOLATION, buffer=self._buffer)
        try:
            read, edges = _fetched(fetcher.fetch, topic_partition, asked)
        except OffsetOutOfRangeError as error:
            self._skip_lost(topic_partition, error)
            return
        if not read.batches and edges.end_offset(_ISOLATION) < end:
            raise self._ends_too_early(topic_partition, end, edges.end_offset(_ISOLATION))
        read = read.below(end)
        if not read.batches:  # compaction left nothing up to the end
            self._fill(topic_partition, end)
            self._go_on_from(topic_partition, end, None)
            return
        try:
            self._send(topic_partition, read, offset)
        except CorruptRecordError as error:  # before anything of it is sent
            sound = [
                one
                for at, one in read.batches
                if read.position + at + one.size_in_bytes <= error.position
            ]
            if not sound:
                raise _UnreadableError(error) from None
            read = read.below(sound[-1].next_offset)
            self._send(topic_partition, read, offset)
        header = read.batches[-1][1]
        self._fill(topic_partition, header.next_offset)
        self._go_on_from(topic_partition, header.next_offset, LastBatch.of(header))

    def _go_on_from(self, tp: TopicPartition, offset: int, last: LastBatch | None) -> None:
        self._offsets[tp] = offset
        if last is None:
            self._last_batches.pop(tp, None)
        else:
            self._last_batches[tp] = last

    def _fill(self, topic_partition: TopicPartition, next_offset: int) -> None:
        """Let the target end at an offset of the source, if offsets are kept."""
        if self._settings.keep_offsets:
            end = self._target_ends[topic_partition]
            self._send_batches(topic_partition, list(gap(end, next_offset)))

    def _send(self, topic_partition: TopicPartition, read: LogRead, offset: int) -> None:
        max_bytes = self._target_topics[topic_partition.topic].max_message_bytes
        end = self._target_ends[topic_partition] if self._settings.keep_offsets else None
        found = batches(
            topic_partition, read, start_offset=offset, max_bytes=max_bytes, next_offset=end
        )
        self._send_batches(topic_partition, list(found))

    def _send_batches(self, topic_partition: TopicPartition, found: list[MirroredBatch]) -> None:
        if not found:
            return
        if self._settings.keep_offsets:
            self._target_ends[topic_partition] += sum(one.offsets_count for one in found)
        self._target.send(topic_partition, found)
        self._unit_topics.add(topic_partition.topic)
        size, kept = sum(len(one.data) for one in found), sum(one.is_kept for one in found)
        encoded = sum(one.records_count > 0 for one in found) - kept
        self._unit_bytes += size
        self._done = self._done._replace(
            records_count=self._done.records_count + sum(one.records_count for one in found),
            size_in_bytes=self._done.size_in_bytes + size,
            batches_kept=self._done.batches_kept + kept,
            batches_encoded=self._done.batches_encoded + encoded,
        )

    def _skip_lost(self, topic_partition: TopicPartition, error: OffsetOutOfRangeError) -> None:
        """Skip offsets that the source deleted before they were copied, or raise DataLossError."""
        offset = self._offsets[topic_partition]
        if offset >= error.log_start_offset:
            raise error
        if self._settings.fail_on_data_loss:
            raise DataLossError(
                f"offset {offset} of {topic_partition} of {self._settings.source}",
                f"offsets from {error.log_start_offset} on",
                "the source deleted records before they were copied; to go on without them, set "
                "fail_on_data_loss=False (--no-fail-on-data-loss)",
            ) from error
        logger.warning(
            "offsets %d to %d of %s were deleted in %s before they were copied, and are left out",
            offset, error.log_start_offset - 1, topic_partition, self._settings.source,
        )  # fmt: skip
        self._fill(topic_partition, error.log_start_offset)
        self._go_on_from(topic_partition, error.log_start_offset, None)

    def _ensure_same(self, name: str) -> None:
        known, found = self._topics[name].topic_id, self._source.topic(name).topic_id
        if known and found and known != found:
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} was deleted and created again in {self._settings.source} while it was "
                f"mirrored; delete it in {self._target.name}, and give the mirror another name to copy "
                "the new one"
            )

    # Units.

    def _progress(self) -> Progress:
        """Return how far all topics that this mirror has ever copied were read, the unit included."""
        others = {
            tp: last for tp, last in self._stored.last_batches.items() if tp not in self._offsets
        }
        unwritten = self._stored.unwritten - self._topics.keys() | self._unwritten.keys()
        return Progress(
            {**self._stored.ids, **self._ids},
            {**self._stored.offsets, **self._offsets},
            others | self._last_batches,
            unwritten - self._unit_topics,
        )

    def _maybe_commit(self) -> None:
        began_ms = self._unit_began_ms
        is_old = began_ms is not None and monotonic_ms() - began_ms >= self._settings.unit_ms
        is_large = self._unit_bytes >= self._settings.unit_bytes
        if is_large or is_old or self._target.is_due():
            self._commit()

    def _commit(self) -> None:
        is_begun = self._unit_began_ms is not None
        if is_begun:
            # A source may tell only afterwards that what was read belongs to another topic of the name.
            for name in self._topics:
                self._ensure_same(name)
        ends = {name: ends for name, ends in self._unwritten.items() if name in self._unit_topics}
        if self._settings.keep_offsets:
            for name in self._unit_topics:
                partitions = range(self._topics[name].partitions)
                ends[name] = {
                    number: self._committed_ends[TopicPartition(name, number)]
                    for number in partitions
                }
        if is_begun or self._target.is_due():
            self._target.commit(self._progress(), ends)
        for name in self._unit_topics:
            self._unwritten.pop(name, None)
        self._committed_ends = self._target_ends.copy()
        if self._unit_bytes:
            self._done = self._done._replace(units=self._done.units + 1)
        self._unit_bytes, self._unit_began_ms = 0, None
        self._unit_topics.clear()
        self._report()

    def _report(self) -> None:
        left = sum(max(end - self._offsets[tp], 0) for tp, end in self._ends.items())
        self._done = self._done._replace(offsets_left=left)
        self._on_progress(self._done)


def _fetched(
    fetch: Callable[[TopicPartition, ReadRange], tuple[LogRead, LogOffsets]],
    topic_partition: TopicPartition,
    asked: ReadRange,
) -> tuple[LogRead, LogOffsets]:
    try:
        return fetch(topic_partition, asked)
    except UNREADABLE as error:
        raise _UnreadableError(error) from None


def _kept(topic: Topic, starts: Mapping[TopicPartition, int]) -> KeptTopic:
    """Return what the target's topic is to have as the source's has it, if it has to be created."""
    first_offsets = tuple(starts[tp] for tp in partitions_of(topic))
    return KeptTopic(topic.topic_id, first_offsets, settings_to_keep(topic))


def _of_path(path: str) -> str:
    """Return a hash of a source's path, to name a mirror whose source has no cluster id."""
    return hashlib.sha256(path.encode()).hexdigest()[:22]


def _ensure_takes(what: str, address: StrPath, config: Mapping[str, Any] | None) -> None:
    if config and not (is_of_real_cluster(address) or bucket_scheme(address)):
        raise ConfigError(
            f"{what}_config is for a real cluster, given as HOST:PORT, or for a bucket's URL; "
            f"{os.fspath(address)!r} is neither"
        )


def _target(address: StrPath, config: Mapping[str, Any] | None, mirror_name: str) -> Target:
    """Return the place at an address as the target of a mirror; it is created if there is none.

    Raises:
        ConfigError: it cannot be one.
    """
    _ensure_takes("target", address, config)
    if is_of_real_cluster(address):
        # The network's modules are loaded only for a real cluster.
        from spark_kbatch.mirroring.into_cluster import ClusterTarget  # noqa: PLC0415

        return ClusterTarget(parse_client_options(address, config or {}), mirror_name)
    if bucket_scheme(address):
        from spark_kbatch.mirroring.into_bucket import BucketTarget  # noqa: PLC0415  only for a bucket

        return BucketTarget(open_bucket(address, client=config, create=True), mirror_name)
    store = open_store(address, create=True)
    if store.server is None:
        raise ConfigError(f"{store.address} cannot be a mirror's target: {store.why_not}")
    return PathTarget(store, mirror_name)
