"""A mirror's progress is stored so that it reads back."""

from __future__ import annotations

import json

import pytest

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.mirroring.progress import (
    NOTHING,
    LastBatch,
    Progress,
    TopicIds,
    pack,
    pack_partition,
    unpack,
    unpack_partitions,
)
from spark_kbatch.model import TopicPartition
from spark_kbatch.record.header import unpack as unpack_header
from spark_kbatch.store.groups import OffsetAndMetadata
from tests.support.log_histories import data_batch

EVENTS_0, CLICKS_0 = TopicPartition("events", 0), TopicPartition("clicks", 0)
PROGRESS = Progress(
    {"events": TopicIds("s", "t"), "clicks": TopicIds("", "u")},
    {EVENTS_0: 12, CLICKS_0: 0},
    {EVENTS_0: LastBatch(10, 2, 2**32 - 1, 3)},
    {"clicks"},
)


def test_progress_reads_back() -> None:
    assert unpack(pack(PROGRESS)) == PROGRESS
    assert unpack(b"") == NOTHING
    committed = {tp: pack_partition(PROGRESS, tp) for tp in PROGRESS.offsets}
    assert committed[EVENTS_0].leader_epoch == 3
    assert unpack_partitions(committed) == PROGRESS


@pytest.mark.parametrize("missing", ["source_topic_id", "target_topic_id", "has_records"])
def test_progress_without_one_of_its_facts_is_an_error_that_names_it(missing: str) -> None:
    facts = {"source_topic_id": "s", "target_topic_id": "t", "has_records": True}
    del facts[missing]
    stored = {"topics": {"events": {**facts, "offsets": {"0": 12}, "last_batches": {}}}}

    with pytest.raises(CorruptRecordError, match=missing):
        unpack(json.dumps(stored).encode())
    with pytest.raises(CorruptRecordError, match=missing):
        unpack_partitions({EVENTS_0: OffsetAndMetadata(12, -1, json.dumps(facts))})


@pytest.mark.parametrize(
    "batch",
    [
        {"base_offset": -1, "records_count": 2, "crc": 7, "leader_epoch": 3},
        {"base_offset": 0, "records_count": "2", "crc": 7, "leader_epoch": 3},
        {"base_offset": 0, "records_count": 2, "leader_epoch": 3},
        [],
    ],
)
def test_a_last_batch_that_no_mirror_stored_is_an_error(batch: object) -> None:
    ids = {"source_topic_id": "", "target_topic_id": ""}
    topic = {**ids, "has_records": True, "offsets": {"0": 2}}
    stored = {"topics": {"events": {**topic, "last_batches": {"0": batch}}}}

    with pytest.raises(CorruptRecordError, match="progress of a mirror"):
        unpack(json.dumps(stored).encode())


def test_a_batch_is_known_again_by_its_offsets_and_bytes_as_far_as_compaction_left_them() -> None:
    header = unpack_header(data_batch(base_offset=10, n=3))
    last = LastBatch.of(header)
    assert last is not None

    assert last.may_be(header, 13)
    assert not last.may_be(header._replace(crc=header.crc ^ 1), 13)
    assert not last.may_be(unpack_header(data_batch(base_offset=11, n=2)), 13)
    assert not last.may_be(unpack_header(data_batch(base_offset=10, n=4)), 13)
    # Compacted: without some of the records, with a time to delete others, gone.
    assert last.may_be(header._replace(records_count=2, crc=1), 13)
    assert last.may_be(header._replace(attributes=0x40, crc=1), 13)
    assert last.may_be(unpack_header(data_batch(base_offset=13)), 13)


def test_of_an_older_format_no_batch_is_kept() -> None:
    assert LastBatch.of(unpack_header(data_batch(base_offset=0))._replace(magic=1)) is None
