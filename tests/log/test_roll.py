"""When segments are rolled, and how a topic's timestamps and limits affect a batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_kbatch.errors import InvalidTimestampError
from spark_kbatch.log.append import LogAppender, append_as_leader
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.segment import segment_at
from spark_kbatch.log.validator import validate
from spark_kbatch.model import AppendOrigin, AppendResult, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders, reference
from tests.support.builders import a_log, append
from tests.support.reference import Record
from tests.support.soundness import ensure_sound

PARTITION = TopicPartition("events", 0)
NOW = 1_800_000_000_000
LOG_APPEND_TIME = TopicConfig(message_timestamp_type="LogAppendTime", index_interval_bytes=1)


def a_batch(*times: int) -> bytes:
    """Return a batch with a record at each of these times."""
    return reference.encode_batch([Record(n, time, None, b"value") for n, time in enumerate(times)])


def bases(log: PartitionLog) -> list[int]:
    return log.segments.bases(log.state())


def batches(log: PartitionLog) -> list[bytes]:
    logs = [segment_at(log.directory, base).log for base in bases(log)]
    return [data for path in logs for data in reference.split_batches(path.read_bytes())]


# By time.


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param([[1000], [1100]], [0], id="within"),
        pytest.param([[1000], [1101]], [0, 1], id="past"),
        pytest.param([[1000, 1090], [1190]], [0], id="the largest of the first batch counts"),
        pytest.param([[1000], [1050], [1101]], [0, 2], id="the first batch counts, not the last"),
        pytest.param([[1000], [900]], [0], id="before the first"),
        pytest.param([[1000], [1050, 1101]], [0, 1], id="the largest of the new batch counts"),
        pytest.param([[1000], [1101], [1202]], [0, 1, 2], id="twice"),
        pytest.param([[1000], [-1], [1050]], [0], id="a batch without times between"),
        pytest.param([[0], [101]], [0, 1], id="from 1970 on"),
    ],
)
@pytest.mark.parametrize("how", ["at once", "one by one", "reopened"])
def test_a_segment_is_rolled_by_the_time_of_records(
    tmp_path: Path, times: Sequence[Sequence[int]], expected: list[int], how: str
) -> None:
    log = a_log(tmp_path, batches=0, config=TopicConfig(segment_ms=100))
    data = [a_batch(*of_batch) for of_batch in times]
    if how == "at once":
        appender = LogAppender(log, log.state(), now_ms=NOW)
        appender.append(bytearray(b"".join(data)))
        log.write_state(appender.finish(flush=False), flush=False)
    elif how == "one by one":
        for batch in data:
            append(log, batch)
    else:
        for batch in data:
            again = PartitionLog(log.files, log.directory, PARTITION, log.config)
            header = validate(batch, PARTITION, log.config, AppendOrigin.CLIENT, now_ms=NOW)
            append_as_leader(
                again,
                again.state(),
                batch,
                header,
                origin=AppendOrigin.CLIENT,
                flush=False,
                now_ms=NOW,
            )

    segments = [offset for offset in expected if offset != 0]
    records = [0]
    for of_batch in times:
        records.append(records[-1] + len(of_batch))
    assert bases(log) == [0, *(records[number] for number in segments)]
    ensure_sound(log)


def test_records_without_times_roll_by_the_clock_since_the_segment_was_begun(
    tmp_path: Path,
) -> None:
    log = a_log(tmp_path, batches=0, config=TopicConfig(segment_ms=60_000))
    begun = log.files.modified_ms(segment_at(log.directory, 0).time_index)
    append(log, a_batch(-1), now_ms=begun + 3_600_000)  # into an empty segment
    append(log, a_batch(-1), now_ms=begun + 60_000)
    # The log has just been written; its time index still tells when the segment was started.
    os.utime(segment_at(log.directory, 0).log)
    append(log, a_batch(-1), now_ms=begun + 60_001)
    assert bases(log) == [0, 2]

    segment_at(log.directory, 2).time_index.unlink()
    append(log, a_batch(-1), now_ms=begun + 3_600_000)
    assert bases(log) == [0, 2], "a segment of unknown age is not rolled"


def test_without_segment_ms_time_rolls_nothing(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=0)
    append(log, a_batch(0), a_batch(2**62), now_ms=2**62)
    assert bases(log) == [0]


def test_a_large_staged_file_is_rolled_by_time_as_well(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=0, config=TopicConfig(segment_ms=100))
    source = tmp_path / "staged"
    source.write_bytes(a_batch(0) + a_batch(100) + a_batch(101))
    appender = LogAppender(log, log.state(), now_ms=NOW)
    appender.adopt(source, source.stat().st_size)
    log.write_state(appender.finish(flush=False), flush=False)
    assert bases(log) == [0, 2]


# By a full index, by size.


@pytest.mark.parametrize(
    ("index_bytes", "per_segment"),
    [
        # The first batch of a segment has no index entry. The time index fills first, since it reserves
        # room for the entry at the roll.
        pytest.param(24, 2, id="one entry"),
        pytest.param(35, 2, id="what is left over counts for nothing"),
        pytest.param(36, 3, id="two entries"),
        pytest.param(120, 10, id="nine entries"),
    ],
)
@pytest.mark.parametrize("how", ["at once", "one by one", "adopted"])
def test_a_segment_with_a_full_time_index_is_rolled(
    tmp_path: Path, index_bytes: int, per_segment: int, how: str
) -> None:
    config = TopicConfig(index_interval_bytes=0, segment_index_bytes=index_bytes)
    log = a_log(tmp_path, batches=0, config=config)
    data = [a_batch(time) for time in range(25)]
    if how == "one by one":
        for batch in data:
            append(log, batch)
    elif how == "at once":
        append(log, *data)
    else:
        source = tmp_path / "staged"
        source.write_bytes(b"".join(data))
        appender = LogAppender(log, log.state(), now_ms=NOW)
        appender.adopt(source, source.stat().st_size)
        log.write_state(appender.finish(flush=False), flush=False)

    assert bases(log) == list(range(0, 25, per_segment))
    sizes = {path.stat().st_size for path in log.directory.glob("*index")}
    assert max(sizes) <= index_bytes
    ensure_sound(log)


def test_a_segment_with_a_full_offset_index_is_rolled(tmp_path: Path) -> None:
    """Records without times leave the time index empty."""
    config = TopicConfig(index_interval_bytes=0, segment_index_bytes=40)
    log = a_log(tmp_path, batches=0, config=config)
    append(log, *[a_batch(-1)] * 13)
    assert bases(log) == [0, 6, 12]
    ensure_sound(log)


def test_a_segment_takes_no_more_offsets_than_an_index_entry_can_say(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=0)
    state = log.state()
    # As if the segment had started that many offsets earlier.
    for end, expected in ((2**31 - 3, False), (2**31 - 2, True)):
        header = validate(a_batch(1, 2, 3), PARTITION, log.config, AppendOrigin.CLIENT, now_ms=0)
        near = state._replace(log_end_offset=end, segment_size=1)
        assert LogAppender(log, near, now_ms=0).is_full_for(header) == expected


@pytest.mark.parametrize(("version", "magic"), [("0.9.0", 0), ("0.10.2", 1)])
def test_a_segment_of_one_short_old_message_can_be_rolled_by_time(
    tmp_path: Path, version: str, magic: int
) -> None:
    config = TopicConfig(message_format_version=version, segment_ms=100)
    log = a_log(tmp_path, batches=0, config=config)
    for time in (1000, 1050, 1101):
        append(
            log, reference.encode_messages([Record(0, time, None, b"x")], magic=magic), now_ms=time
        )
    assert log.state().log_end_offset == 3
    assert bases(log) == ([0, 2] if magic else [0])  # by its age, if it has no timestamps


def test_an_empty_segment_is_never_rolled(tmp_path: Path) -> None:
    config = TopicConfig(segment_bytes=1, segment_ms=1, segment_index_bytes=1)
    log = a_log(tmp_path, batches=0, config=config)
    append(log, a_batch(5), now_ms=2**62)
    assert bases(log) == [0]


# LogAppendTime.


@pytest.mark.parametrize("codec", reference.CODECS)
@pytest.mark.parametrize("how", ["append", "segment", "adopt", "leader"])
def test_log_append_time_replaces_the_times_of_records(
    tmp_path: Path, how: str, codec: str
) -> None:
    log = a_log(tmp_path, batches=0, config=LOG_APPEND_TIME)
    data = builders.batch(n=3, compression=codec)
    source = tmp_path / "staged"
    source.write_bytes(data * 2)
    if how == "leader":
        for _ in range(2):
            header = validate(data, PARTITION, log.config, AppendOrigin.CLIENT, now_ms=NOW)
            origin = AppendOrigin.CLIENT
            result = append_as_leader(
                log, log.state(), data, header, origin=origin, flush=False, now_ms=NOW
            )
        assert result == AppendResult(3, log_append_time=NOW, log_start_offset=0)
    else:
        appender = LogAppender(log, log.state(), now_ms=NOW)
        if how == "append":
            appender.append(bytearray(data * 2))
        elif how == "segment":
            appender.append_extent(source, 0, 2 * len(data))
        else:
            appender.adopt(source, 2 * len(data))
        log.write_state(appender.finish(flush=False), flush=False)

    ensure_sound(log)  # CRCs, time index
    assert source.read_bytes() == data * 2, "what a task staged stays as it is"
    state, written = log.state(), batches(log)
    assert (state.max_timestamp, state.max_timestamp_offset) == (NOW, 2)
    for batch in written:
        header = reference.read_header(batch)
        assert header.attributes & reference.LOG_APPEND_TIME
        assert header.max_timestamp == NOW
        assert header.base_timestamp == builders.FIRST_TIMESTAMP_MS, (
            "a record's delta counts from it"
        )
    expected = builders.records_of([data, data])
    found = [record for batch in written for record in reference.decode_batches(batch)]
    assert found == [record._replace(timestamp=NOW) for record in expected]


def test_log_append_time_rolls_by_the_clock(tmp_path: Path) -> None:
    config = TopicConfig(message_timestamp_type="LogAppendTime", segment_ms=100)
    log = a_log(tmp_path, batches=0, config=config)
    for now_ms in (NOW, NOW + 100, NOW + 101):
        append(log, a_batch(5), now_ms=now_ms)
    assert bases(log) == [0, 2]


def test_a_duplicate_is_answered_with_the_time_of_the_first_append(tmp_path: Path) -> None:
    log = a_log(tmp_path, batches=0, config=LOG_APPEND_TIME)
    data = builders.idempotent_batch(base_sequence=0)
    header = validate(data, PARTITION, log.config, AppendOrigin.CLIENT, now_ms=NOW)
    first, again = (
        append_as_leader(
            log, log.state(), data, header, origin=AppendOrigin.CLIENT, flush=False, now_ms=now_ms
        )
        for now_ms in (NOW, NOW + 5)
    )
    assert first == again == AppendResult(0, log_append_time=NOW, log_start_offset=0)


# Limits of timestamps.

LIMITS = TopicConfig(message_timestamp_before_max_ms=100, message_timestamp_after_max_ms=10)


@pytest.mark.parametrize("times", [[NOW - 100], [NOW + 10], [NOW - 100, NOW + 10], [-1], [NOW, -1]])
def test_times_within_the_limits_are_taken(times: list[int]) -> None:
    validate(a_batch(*times), PARTITION, LIMITS, AppendOrigin.CLIENT, now_ms=NOW)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        pytest.param(
            [NOW - 101], f"{NOW - 101} ms, 101 ms before now ({NOW}), more than "
            "message.timestamp.before.max.ms=100; raise that with", id="too old",
        ),
        pytest.param(
            [NOW + 11], "11 ms after now", id="too new",
        ),
        pytest.param([NOW - 101, NOW], "101 ms before now", id="the first too old"),
        pytest.param([NOW, NOW + 11, NOW], "more than message.timestamp.after.max.ms=10", id="one too new"),
    ],
)  # fmt: skip
def test_times_past_the_limits_are_refused(times: list[int], words: str) -> None:
    with pytest.raises(InvalidTimestampError) as error:
        validate(a_batch(*times), PARTITION, LIMITS, AppendOrigin.CLIENT, now_ms=NOW)
    assert words in str(error.value)
    assert str(error.value).startswith("a record for topic 'events' has the time ")


def test_with_log_append_time_the_producers_timestamps_do_not_matter() -> None:
    config = TopicConfig(**{**vars(LIMITS), "message_timestamp_type": "LogAppendTime"})
    validate(a_batch(0, 2**62), PARTITION, config, AppendOrigin.CLIENT, now_ms=NOW)
