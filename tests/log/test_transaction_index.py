"""The index of aborted transactions: its bytes, searching it, damage."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.files import Files
from spark_kbatch.log.producers import transaction_index
from spark_kbatch.log.producers.transaction_index import (
    collect,
    pack,
    transaction_index_path,
    unpack,
)
from spark_kbatch.model import AbortedTransaction

FIRST = AbortedTransaction(1, 10, 15, 12)  # producer 2 has a transaction open since 12
SECOND = AbortedTransaction(2, 12, 20, 21)
THIRD = AbortedTransaction(1, 30, 40, 41)


def test_an_entry_has_the_bytes_of_the_table() -> None:
    assert pack(FIRST) == struct.pack(">hqqqq", 0, 1, 10, 15, 12)
    assert unpack(pack(FIRST) + pack(SECOND), 10) == [FIRST, SECOND]


def test_entries_are_appended_to_a_file_made_for_the_first(tmp_path: Path) -> None:
    files = Files()
    assert transaction_index.read(files, tmp_path, 10) == []
    assert not transaction_index_path(tmp_path, 10).exists()
    for entry in (FIRST, SECOND):
        transaction_index.append(files, tmp_path, 10, [entry])
    assert transaction_index.read(files, tmp_path, 10) == [FIRST, SECOND]


def test_a_partial_entry_does_not_count_and_is_overwritten(tmp_path: Path) -> None:
    path = transaction_index_path(tmp_path, 0)
    path.write_bytes(pack(FIRST) + pack(SECOND)[:20])
    assert transaction_index.read(Files(), tmp_path, 0) == [FIRST]
    transaction_index.append(Files(), tmp_path, 0, [THIRD])
    assert transaction_index.read(Files(), tmp_path, 0) == [FIRST, THIRD]


@pytest.mark.parametrize(("offset", "kept"), [(15, 0), (16, 1), (20, 1), (21, 2), (40, 2), (41, 3)])
def test_entries_of_truncated_markers_are_removed(tmp_path: Path, offset: int, kept: int) -> None:
    entries = [FIRST, SECOND, THIRD]
    transaction_index.append(Files(), tmp_path, 0, entries)
    transaction_index.truncate(Files(), tmp_path, 0, offset)
    assert transaction_index.read(Files(), tmp_path, 0) == entries[:kept]


@pytest.mark.parametrize(
    ("fetch", "end", "found"),
    [
        pytest.param(0, 10, [], id="before all"),
        pytest.param(0, 11, [FIRST], id="the first record of one"),
        pytest.param(15, 16, [FIRST, SECOND], id="a marker"),
        pytest.param(16, 30, [SECOND], id="after one marker"),
        pytest.param(16, 31, [SECOND, THIRD], id="into the next segment"),
        pytest.param(41, 99, [], id="after all"),
    ],
)
def test_aborted_transactions_of_a_range_are_collected(
    fetch: int, end: int, found: list[AbortedTransaction]
) -> None:
    assert collect([[FIRST, SECOND], [THIRD]], fetch, end) == found


def test_no_segment_is_searched_once_all_below_the_end_is_decided() -> None:
    def segments():  # type: ignore[no-untyped-def]
        yield [FIRST, SECOND]
        raise AssertionError("the second entry says that all below 21 is decided")

    assert collect(segments(), 10, 21) == [FIRST, SECOND]


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(AbortedTransaction(1, 3, 9, 10), id="marker before the segment"),
        pytest.param(AbortedTransaction(1, 15, 15, 16), id="no data"),
        pytest.param(AbortedTransaction(1, 10, 15, 17), id="stable past the marker"),
        pytest.param(AbortedTransaction(-1, 10, 15, 16), id="no producer's"),
        pytest.param(AbortedTransaction(0, 0, 0, 0), id="zeros"),
    ],
)
def test_an_impossible_entry_is_damage(entry: AbortedTransaction) -> None:
    assert unpack(pack(entry), 10) is None


@given(st.binary(max_size=120), st.integers(0, 30))
def test_any_bytes_are_entries_in_order_or_damage(data: bytes, base_offset: int) -> None:
    found = unpack(data, base_offset)
    assert found is None or b"".join(map(pack, found)) == data[: len(data) // 34 * 34]


def test_a_flipped_byte_is_damage_or_another_entry_in_order() -> None:
    data = pack(FIRST) + pack(SECOND) + pack(THIRD)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x81
        found = unpack(bytes(damaged), 10)
        assert found is None or all(10 <= one.last_offset > one.first_offset for one in found)


def test_markers_out_of_order_are_damage() -> None:
    assert unpack(pack(SECOND) + pack(FIRST), 0) is None
    assert unpack(pack(FIRST) + pack(FIRST), 0) is None


def test_another_version_is_damage() -> None:
    assert unpack(b"\0\1" + pack(FIRST)[2:], 0) is None
