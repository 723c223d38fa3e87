"""Staging of batches before a commit: one object for all partitions, and another one above 4 GiB.

    send     a batch is copied and waits, with those of all partitions, up to GATHERED_BYTES
    gathered batches, sorted by topic and partition, go to the end of the object, which is put in parts
    finish   the object is there; its extents go to the commit

So a task that writes to many partitions puts few objects, and a partition has one extent for each time that
batches were gathered. An extent has at most about EXTENT_BYTES_MAX: a reader that starts within one reads it from
its start.

Offsets count from 0 within an extent. Readers write the final ones into the batches, which their CRC does not cover.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from spark_kbatch.bucket.objects import Objects, Upload
from spark_kbatch.errors import KBatchError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.extents import NO_TIME, Appends, DataExtent, PartitionAppend, pack_index
from spark_kbatch.options.topic import ensure_record_fits
from spark_kbatch.record.header import NO_LEADER_EPOCH, BatchHeader, assign, unpack
from spark_kbatch.store.transport import ProduceBatch

logger = logging.getLogger(__name__)

GATHERED_BYTES = 12 << 20
EXTENT_BYTES_MAX = 16 << 20
OBJECT_BYTES_MAX = 4 << 30
INDEX_BYTES_MIN = 64 << 10  # of extents that go to an object of their own, and not into the entry

PartitionOfTopic: TypeAlias = tuple[str, int]  # topic id, partition
StagedExtents: TypeAlias = Mapping[PartitionOfTopic, Sequence[DataExtent]]


class WriterJob(NamedTuple):
    """The names of a job's objects are made of this."""

    start_entry: int  # number of the last entry when it began
    job_id: str  # random

    @classmethod
    def at(cls, number: int, rng: random.Random) -> WriterJob:
        """Return a new job that begins when the entry `number` is the last one."""
        return cls(number, names.random_id(rng))

    def data_name(self, rng: random.Random) -> str:
        """Return the name of an object that no one else uses."""
        return names.data_name(self.start_entry, self.job_id, names.random_id(rng))

    def index_name(self, rng: random.Random) -> str:
        """Return the name of an index that no one else uses."""
        return names.index_name(self.start_entry, self.job_id, names.random_id(rng))


class DataObjects:
    """The objects of one task attempt, or of one request of a producer. Not thread-safe.

    A `TaskStaging`.
    """

    def __init__(
        self,
        objects: Objects,
        job: WriterJob,
        rng: random.Random,
        *,
        gathered_bytes: int = GATHERED_BYTES,
        object_bytes_max: int = OBJECT_BYTES_MAX,
    ) -> None:
        """Set up; nothing is put before there is a batch.

        Args:
            objects: of the cluster.
            job: names the objects.
            rng: for names.
            gathered_bytes: that are sorted together.
            object_bytes_max: after which another object begins.
        """
        self._objects, self._job, self._rng = objects, job, rng
        self._gathered_bytes, self._object_bytes_max = gathered_bytes, object_bytes_max
        self._gathered: dict[PartitionOfTopic, list[bytearray]] = {}
        self._size = 0  # of what is gathered
        self._upload: Upload | None = None
        self._name, self._position = "", 0  # of the object, and where the next byte goes
        self._finished: list[str] = []
        self._extents: dict[PartitionOfTopic, list[DataExtent]] = {}

    def stage(self, batch: ProduceBatch) -> None:
        """Take a batch of a task's producer; raises RecordTooLargeError, and as `Objects.put`."""
        ensure_record_fits(batch.topic, len(batch.data))
        self.send(batch.topic.topic_id, batch.topic_partition.partition, batch.data)

    def send(self, topic_id: str, partition: int, batch: memoryview) -> None:
        """Take a batch, which may change on return; raises as `Objects.put`."""
        self._gathered.setdefault((topic_id, partition), []).append(bytearray(batch))
        self._size += len(batch)
        if self._size >= self._gathered_bytes:
            self._write_gathered()

    def finish(self) -> StagedExtents:
        """Put what is left, and return all extents, in the order of batches; raises as `Objects.put`."""
        self._write_gathered()
        self._finish_object()
        self._finished.clear()  # they are reported
        return self._extents

    def abandon(self) -> None:
        """Delete what was put, none of which was reported; what cannot be deleted stays unseen."""
        self._gathered, self._size = {}, 0
        if self._upload is not None:
            self._upload.abandon()
            self._upload = None
        try:
            self._objects.delete(self._finished)
        except KBatchError as error:
            logger.info("%s", error)
        self._finished.clear()

    def _write_gathered(self) -> None:
        gathered, self._gathered, self._size = self._gathered, {}, 0
        for key in sorted(gathered):
            for batch in gathered[key]:
                self._write(key, batch)

    def _write(self, key: PartitionOfTopic, batch: bytearray) -> None:
        if self._upload is not None and self._position + len(batch) > self._object_bytes_max:
            self._finish_object()
        if self._upload is None:
            self._name, self._position = self._job.data_name(self._rng), 0
            self._upload = self._objects.upload(self._name)
        extents = self._extents.setdefault(key, [])
        last = extents[-1] if extents else None
        if last is None or not self._goes_on(last, len(batch)):
            last = DataExtent(self._name, self._position, 0, 0, 0, NO_TIME, NO_TIME)
            extents.append(last)
        assign(batch, 0, base_offset=last.span, leader_epoch=NO_LEADER_EPOCH)
        extents[-1] = with_batch(last, unpack(batch))
        self._upload.write(batch)
        self._position += len(batch)

    def _goes_on(self, extent: DataExtent, size_in_bytes: int) -> bool:
        end_position = extent.position + extent.size_in_bytes
        return (extent.name, end_position) == (
            self._name,
            self._position,
        ) and extent.size_in_bytes + size_in_bytes <= EXTENT_BYTES_MAX

    def _finish_object(self) -> None:
        if self._upload is not None:
            upload, self._upload = self._upload, None
            self._finished.append(
                self._name
            )  # it may be there even if an error says that it is not
            upload.finish()


def with_batch(extent: DataExtent, header: BatchHeader) -> DataExtent:
    """Return an extent with one more batch at its end."""
    # The time of the first record stands for the least one, which no header tells.
    times = [
        time for time in (extent.first_ms, header.base_timestamp, header.max_timestamp) if time >= 0
    ]
    return extent._replace(
        size_in_bytes=extent.size_in_bytes + header.size_in_bytes,
        span=extent.span + header.last_offset_delta + 1,
        records_count=extent.records_count + header.records_count,
        first_ms=min(times, default=NO_TIME),
        last_ms=max(extent.last_ms, header.max_timestamp, NO_TIME),
    )


def append_of(
    partition: int, extents: Sequence[DataExtent], base_offset: int = 0, leader_epoch: int = 0
) -> PartitionAppend:
    """Return the append of consecutive offsets that some extents make up."""
    return PartitionAppend(
        partition,
        base_offset,
        sum(one.span for one in extents),
        sum(one.records_count for one in extents),
        leader_epoch,
        tuple(extents),
    )


def appends_of(staged: StagedExtents) -> dict[str, list[PartitionAppend]]:
    """Return staged extents as appends by topic id, all from offset 0."""
    found: dict[str, list[PartitionAppend]] = {}
    for (topic_id, partition), extents in sorted(staged.items()):
        found.setdefault(topic_id, []).append(append_of(partition, extents))
    return found


def in_entry(objects: Objects, job: WriterJob, appends: Appends, rng: random.Random) -> Appends:
    """Return appends as an entry has them: if their extents are many, an index object is put that has these.

    Args:
        objects: of the cluster.
        job: that has written all extents.
        appends: with extents.
        rng: for the name of the index.
    """
    name = job.index_name(rng)
    data, placed = pack_index(name, appends)
    if len(data) < INDEX_BYTES_MIN:
        return appends
    objects.put(name, data)
    return placed
