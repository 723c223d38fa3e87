"""Batches of many partitions in few objects, with offsets from 0 in each extent."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from spark_kbatch.bucket import staging
from spark_kbatch.bucket.objects import MemoryObjects
from spark_kbatch.bucket.staging import DataObjects, WriterJob
from spark_kbatch.errors import ObjectStoreError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.extents import NO_TIME, DataExtent
from spark_kbatch.record.header import NO_LEADER_EPOCH, ensure_valid, walk
from tests.support.reference import Record, encode_batch

JOB = WriterJob(7, "ab" * 16)


def staged(objects: MemoryObjects, **limits: int) -> DataObjects:
    return DataObjects(objects, JOB, random.Random(1), **limits)


def batch(*values: str, times: Sequence[int] = (1, 2, 3)) -> memoryview:
    records = [Record(at, times[at], None, value.encode()) for at, value in enumerate(values)]
    return memoryview(encode_batch(records))


def test_batches_of_all_partitions_are_in_one_object_sorted_by_partition() -> None:
    objects = MemoryObjects()
    task = staged(objects)
    for partition in (2, 0, 1, 0, 2):
        task.send("B", partition, batch("v"))
    task.send("A", 5, batch("v"))

    extents = task.finish()

    assert [*extents] == [("A", 5), ("B", 0), ("B", 1), ("B", 2)]
    (found,) = objects.list(names.DATA)
    assert names.start_entry(found.name) == 7
    positions = [one for of_partition in extents.values() for one in of_partition]
    assert [one.span for one in positions] == [1, 2, 1, 2]
    end = 0
    for one in positions:
        assert (one.name, one.position) == (found.name, end)
        end += one.size_in_bytes
    assert end == found.size_in_bytes


def test_offsets_count_from_0_in_each_extent_and_crcs_hold() -> None:
    objects = MemoryObjects()
    task = staged(objects)
    task.send("A", 0, batch("a", "b"))
    task.send("A", 1, batch("x"))
    task.send("A", 0, batch("c"))

    extents = task.finish()

    assert offsets(objects, extents["A", 0][0]) == [(0, 2), (2, 3)]
    assert offsets(objects, extents["A", 1][0]) == [(0, 1)]


def offsets(objects: MemoryObjects, extent: DataExtent) -> list[tuple[int, int]]:
    data = objects.get_range(extent.name, extent.position, extent.size_in_bytes)
    assert data is not None
    found = []
    for position, header in walk(data):
        ensure_valid(data, position, header)
        assert header.partition_leader_epoch == NO_LEADER_EPOCH
        found.append((header.base_offset, header.next_offset))
    return found


def test_a_batch_may_change_once_it_was_sent() -> None:
    objects = MemoryObjects()
    task = staged(objects)
    data = bytearray(batch("a"))
    task.send("A", 0, memoryview(data))
    data[:] = bytes(len(data))

    (extent,) = task.finish()["A", 0]

    assert offsets(objects, extent) == [(0, 1)]


def test_what_was_gathered_goes_to_the_object_and_its_partitions_get_other_extents() -> None:
    objects, size = MemoryObjects(), len(batch("v"))
    task = staged(objects, gathered_bytes=2 * size)
    for _ in range(3):
        task.send("A", 0, batch("v"))
        task.send("A", 1, batch("v"))

    extents = task.finish()

    assert [one.position for one in extents["A", 0]] == [0, 2 * size, 4 * size]
    assert [one.position for one in extents["A", 1]] == [size, 3 * size, 5 * size]
    assert len([*objects.list(names.DATA)]) == 1


def test_a_lone_partition_has_extents_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    objects, size = MemoryObjects(), len(batch("v"))
    monkeypatch.setattr(staging, "EXTENT_BYTES_MAX", 2 * size)
    task = staged(objects, gathered_bytes=size)
    for _ in range(5):
        task.send("A", 0, batch("v"))

    extents = task.finish()["A", 0]

    assert [one.span for one in extents] == [2, 2, 1]
    assert [offsets(objects, one) for one in extents] == [[(0, 1), (1, 2)]] * 2 + [[(0, 1)]]


def test_another_object_begins_before_one_is_too_large() -> None:
    objects, size = MemoryObjects(), len(batch("v"))
    task = staged(objects, gathered_bytes=1, object_bytes_max=2 * size + 1)
    for _ in range(5):
        task.send("A", 0, batch("v"))

    extents = task.finish()["A", 0]

    assert [found.size_in_bytes for found in objects.list(names.DATA)].count(2 * size) == 2
    assert [one.span for one in extents] == [2, 2, 1]
    assert len({one.name for one in extents}) == 3


def test_an_extent_tells_the_times_of_its_records() -> None:
    task = staged(MemoryObjects())
    task.send("A", 0, batch("a", "b", times=[2000, 3000]))
    task.send("A", 0, batch("c", times=[1000]))
    task.send("A", 1, batch("d", times=[-1]))

    extents = task.finish()

    (first,), (second,) = extents["A", 0], extents["A", 1]
    assert (first.first_ms, first.last_ms, first.records_count) == (1000, 3000, 3)
    assert (second.first_ms, second.last_ms) == (NO_TIME, NO_TIME)


def test_a_task_without_rows_puts_nothing() -> None:
    objects = MemoryObjects()

    assert staged(objects).finish() == {}
    assert [*objects.list(names.DATA)] == []


def test_an_abandoned_task_leaves_nothing() -> None:
    objects, size = MemoryObjects(), len(batch("v"))
    task = staged(objects, gathered_bytes=1, object_bytes_max=size)
    for _ in range(3):
        task.send("A", 0, batch("v"))

    task.abandon()

    assert [*objects.list(names.DATA)] == []


def test_what_was_reported_is_not_deleted() -> None:
    objects = MemoryObjects()
    task = staged(objects)
    task.send("A", 0, batch("v"))
    task.finish()

    task.abandon()

    assert len([*objects.list(names.DATA)]) == 1


class FailsToDelete(MemoryObjects):
    def delete(self, names: object) -> None:
        raise ObjectStoreError("delete", "data/", "no answer")


def test_a_task_that_failed_is_told_by_its_own_error_even_if_nothing_can_be_deleted() -> None:
    size = len(batch("v"))
    task = staged(FailsToDelete(), gathered_bytes=1, object_bytes_max=size)
    task.send("A", 0, batch("v"))
    task.send("A", 0, batch("v"))

    task.abandon()
