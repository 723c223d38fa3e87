"""Snapshots equal a broker's, byte for byte, and a damaged one counts as missing."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.files import Files
from spark_kbatch.log.producers.snapshot import (
    newest_snapshot,
    pack,
    snapshot_offset_of,
    snapshot_offsets,
    snapshot_path,
    stray_snapshots,
    unpack,
    write_snapshot,
)
from spark_kbatch.log.producers.state import BatchMetadata, ProducerEntry
from tests.support.reference import crc32c

ENTRY = ProducerEntry(
    3, (BatchMetadata(5, 7, 100, 2, 1_700_000_000_000),), 4, 1_700_000_000_001, 98, 0
)
NO_BATCH = ProducerEntry(4, (), 5, 1_700_000_000_002, None, 0)

_longs = st.integers(0, 2**63 - 1)


@st.composite
def entries(draw: st.DrawFn) -> ProducerEntry:
    """Entries as they are read from a file: with one batch at most."""
    time, delta = draw(st.integers(-1, 2**62)), draw(st.integers(0, 2**31 - 1))
    last_sequence = draw(st.integers(0, 2**31 - 1))
    batch = BatchMetadata((last_sequence - delta) % 2**31, last_sequence, draw(_longs), delta, time)
    return ProducerEntry(
        draw(st.integers(0, 2**15 - 1)),
        draw(st.sampled_from([(), (batch,)])),
        draw(st.integers(-1, 2**31 - 1)),
        time,
        draw(st.none() | _longs),
        time,
    )


def test_a_snapshot_has_the_bytes_of_the_table() -> None:
    body = struct.pack(">iqhiqiqiq", 1, 9000, 3, 7, 100, 2, 1_700_000_000_001, 4, 98)
    assert pack({9000: ENTRY}) == struct.pack(">hI", 1, crc32c(body)) + body
    without_batch = struct.pack(">qhiqiqiq", 8, 4, -1, -1, 0, 1_700_000_000_002, 5, -1)
    assert pack({8: NO_BATCH})[10:] == without_batch


@given(st.dictionaries(_longs, entries(), max_size=4))
def test_what_is_packed_is_unpacked(producers: dict[int, ProducerEntry]) -> None:
    assert unpack(pack(producers)) == producers


def test_a_snapshot_has_the_last_of_five_batches() -> None:
    batches = tuple(BatchMetadata(n, n, n, 0, n) for n in range(5))
    found = unpack(pack({1: ENTRY._replace(batches=batches)}))
    assert found is not None
    assert [batch.last_offset for batch in found[1].batches] == [4]


def test_snapshots_of_brokers_are_read_and_written_again_as_they_are(shared_data: Path) -> None:
    paths = sorted((shared_data / "kafka-segments").rglob("*.snapshot"))
    assert len(paths) > 50
    for path in paths:
        producers = unpack(path.read_bytes())
        assert producers is not None, path
        assert pack(producers) == path.read_bytes(), path


def test_a_flipped_byte_or_another_size_is_no_snapshot() -> None:
    data = pack({1: ENTRY, 2: NO_BATCH})
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x40
        assert unpack(bytes(damaged)) is None, position
    for size in range(len(data)):
        assert unpack(data[:size]) is None, size
    assert unpack(data + b"\0") is None
    assert unpack(bytes(len(data))) is None


def test_another_version_is_no_snapshot() -> None:
    assert unpack(struct.pack(">h", 2) + pack({})[2:]) is None


def test_the_newest_valid_snapshot_is_used(tmp_path: Path) -> None:
    files = Files()
    for offset in (3, 7, 9):
        write_snapshot(files, tmp_path, offset, {offset: ENTRY})
    assert snapshot_offsets(files, tmp_path) == [3, 7, 9]
    torn = snapshot_path(tmp_path, 9)
    torn.write_bytes(torn.read_bytes()[:-1])
    found = newest_snapshot(files, tmp_path, [3, 7, 8, 9])
    assert found is not None
    assert (found[0], list(found[1])) == (7, [7])
    assert newest_snapshot(files, tmp_path, [9]) is None


def test_a_shorter_snapshot_replaces_a_longer_one(tmp_path: Path) -> None:
    write_snapshot(Files(), tmp_path, 5, {1: ENTRY, 2: ENTRY})
    path = write_snapshot(Files(), tmp_path, 5, {1: ENTRY})
    assert path.read_bytes() == pack({1: ENTRY})


@pytest.mark.parametrize(
    "name", ["5.snapshot", "00000000000000000005.log", "00000000000000000005.snapshot.deleted"]
)
def test_other_names_are_not_of_snapshots(name: str) -> None:
    assert snapshot_offset_of("00000000000000000005.snapshot") == 5
    assert snapshot_offset_of(name) is None


@pytest.mark.parametrize(
    ("offsets", "bases", "strays"),
    [
        pytest.param([0, 5, 9], [0, 5, 9], [], id="one for each segment"),
        pytest.param([5, 12], [0, 5, 9], [], id="of a log that was closed"),
        pytest.param([5, 10, 12], [0, 5, 9], [10], id="of a log that was closed twice"),
        pytest.param([2, 3, 5], [0, 5, 9], [2, 3], id="of segments that are gone"),
        pytest.param([2], [], [], id="without a segment"),
    ],
)
def test_strays_are_those_that_no_segment_needs(
    offsets: list[int], bases: list[int], strays: list[int]
) -> None:
    assert stray_snapshots(offsets, bases) == strays
