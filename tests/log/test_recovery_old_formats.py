"""Recovery, repair and time lookups in the formats V0 and V1, uncompressed and compressed."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kbatch.files import Files
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.repair import LogRepair
from spark_kbatch.log.segment import segment_at
from spark_kbatch.model import MAX_TIMESTAMP, ReadRange
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.record import codec
from spark_kbatch.record.down_conversion import down_convert
from tests.log.test_recovery import ANOTHER_BOOT, contents, reopened, set_state, slots
from tests.support import builders
from tests.support.builders import a_log, append
from tests.support.crashes import sample
from tests.support.faults import FaultyFiles
from tests.support.reference import Record, encode_messages

COUNT = 4  # records of each batch
TOPIC_ID = "nyBBbFDuTeu_f1pLaD4Tcg"


@pytest.fixture(params=["0.9.0", "0.10.2"], ids=["V0", "V1"])
def config(request: pytest.FixtureRequest) -> TopicConfig:
    return TopicConfig(
        message_format_version=request.param, segment_bytes=1200, index_interval_bytes=200
    )


@pytest.fixture(params=["none", "gzip"], ids=["plain", "wrapped"])
def log(request: pytest.FixtureRequest, tmp_path: Path, config: TopicConfig) -> PartitionLog:
    log = a_log(tmp_path, batches=0, config=config)
    (log.directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    for seed in range(9):
        batch = builders.batch(n=COUNT, value_bytes=60, compression=request.param, seed=seed)
        append(log, bytes(down_convert(batch, config.message_magic).data))
    return log


def records(log: PartitionLog) -> list[Record]:
    state, found = log.state(), list[Record]()
    offset = state.log_start_offset
    while offset < state.high_watermark:
        read = log.read(state, ReadRange(offset, max_bytes=1 << 20))
        for rows in codec.decode_batches(
            read.data, read.batches, columns=codec.RECORD_SCHEMA.names,
            start_offset=offset, max_bytes=1 << 20,
        ):  # fmt: skip
            found += builders.as_read(rows)
        offset = read.batches[-1][1].next_offset
    return found


def test_in_a_sound_log_nothing_changes(log: PartitionLog) -> None:
    before = contents(log.directory)
    set_state(log, boot_id=ANOTHER_BOOT)
    again = reopened(log)
    assert again.discard_unrecorded(again.state()).log_end_offset == 9 * COUNT
    after = contents(log.directory)
    assert {name: after[name] for name in after if name != "kbatch.state"} == {
        name: before[name] for name in before if name != "kbatch.state"
    }


@pytest.mark.more_in_soak
def test_for_every_cut_of_the_active_segment_whole_messages_are_kept(log: PartitionLog) -> None:
    whole = records(log)
    state = set_state(log, boot_id=ANOTHER_BOOT)
    path = segment_at(log.directory, state.segment_base_offset).log
    before = contents(log.directory)
    ends = set()
    for size in sample(range(state.segment_size + 1)):
        for name, content in before.items():
            (log.directory / name).write_bytes(content)
        path.write_bytes(before[path.name][:size])
        again = reopened(log, FaultyFiles())
        found = records(again)
        assert found == whole[: len(found)]
        kept = again.discard_unrecorded(again.state())
        assert kept.log_end_offset == len(found)
        assert kept.segment_size <= size
        ends.add(len(found))
    assert (min(ends), max(ends)) == (state.segment_base_offset, 9 * COUNT)


def test_a_lost_state_and_lost_indexes_are_rebuilt_as_they_were(log: PartitionLog) -> None:
    before, state = contents(log.directory), log.state()
    for path in log.directory.glob("*index"):
        path.unlink()
    slots(0, 1)(log)
    report = LogRepair(reopened(log), dry_run=False).run(TOPIC_ID, None)
    assert (report.log_end_offset, report.damaged) == (9 * COUNT, ())
    after = contents(log.directory)
    assert {name: after[name] for name in after if name.endswith("index")} == {
        name: before[name] for name in before if name.endswith("index")
    }
    found = reopened(log).state()
    assert found._replace(sequence=0) == state._replace(sequence=0, recovery_point=9 * COUNT)


def test_times_are_found_as_by_looking_at_every_record(log: PartitionLog) -> None:
    state, held = log.state(), records(log)
    largest = max(record.timestamp for record in held)
    for time in {record.timestamp for record in held} | {largest + 1}:
        if time >= 0:
            first = next((record for record in held if record.timestamp >= time), None)
            found = log.offset_for_timestamp(state, time, end_offset=state.high_watermark)
            assert found == (first and (first.offset, first.timestamp))
    found = log.offset_for_timestamp(state, MAX_TIMESTAMP, end_offset=state.high_watermark)
    first = next(record for record in held if record.timestamp == largest)
    assert found == (None if largest < 0 else (first.offset, largest))


def test_missing_indexes_change_no_answer(log: PartitionLog) -> None:
    whole = records(log)
    for path in log.directory.glob("*index"):
        path.unlink()
    again = PartitionLog(Files(), log.directory, log.topic_partition, log.config)
    assert records(again) == whole
    test_times_are_found_as_by_looking_at_every_record(again)


def test_of_messages_with_equal_times_the_first_has_the_largest(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=0, config=TopicConfig(message_format_version="0.10.2"))
    same = [Record(offset, 1_000, None, b"value") for offset in range(4)]

    state = append(log, encode_messages(same, magic=1))

    assert (state.max_timestamp, state.max_timestamp_offset) == (1_000, 0)
