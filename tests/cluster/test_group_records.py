"""Keys and values of `__consumer_offsets` are Kafka's, byte for byte."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.cluster import group_records
from spark_kbatch.cluster.group_records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    MemberMetadata,
    OffsetKey,
)
from spark_kbatch.errors import CorruptRecordError

TIME = 1_700_000_000_000
TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
MEMBERS = (
    MemberMetadata("m-1", None, "c", "/127.0.0.1", 300_000, 45_000, b"\1\2\3", b"\4"),
    MemberMetadata("m-2", "static-2", "", "/::1", 60_000, 6_000, b"", b""),
)
GROUP = GroupMetadata("consumer", 12, "range", "m-1", TIME, MEMBERS)

# Kafka 4.1.1 made all bytes here: GroupCoordinatorRecordHelpers those of the versions that are written, the
# generated classes of the values those of older versions.
OFFSETS_WRITTEN = {
    "with a topic id": (
        OffsetKey("grüppe", "events", 7),
        CommittedOffset(123_456_789_012, 5, "where I was ✓", TIME, topic_id=TOPIC_ID),
        "000100076772c3bc70706500066576656e747300000007",
        "00040000001cbe991a140000000510776865726520492077617320e29c930000018bcfe56800"
        "010010000102030405060708090a0b0c0d0e0f",
    ),
    "bare": (
        OffsetKey("g", "t", 0),
        CommittedOffset(0, commit_timestamp=TIME),
        "000100016700017400000000",
        "00040000000000000000ffffffff010000018bcfe5680000",
    ),
    "expiring": (
        OffsetKey("g", "t", 0),
        CommittedOffset(42, -1, "m", TIME, TIME + 60_000),
        "000100016700017400000000",
        "0001000000000000002a00016d0000018bcfe568000000018bcfe65260",
    ),
}
OFFSETS_READ = {
    0: "0000000000000000004d00036dc3a90000018bcfe56800",
    1: "0001000000000000004d00036dc3a90000018bcfe568000000018bcfe65260",
    2: "0002000000000000004d00036dc3a90000018bcfe56800",
    3: "0003000000000000004d0000000900036dc3a90000018bcfe56800",
    4: "0004000000000000004d00000009046dc3a90000018bcfe5680000",
}
GROUPS_READ = {
    0: "00000008636f6e73756d65720000000c000572616e676500036d2d310000000200036d2d31000163000a2f3132372e"
    "302e302e310000afc800000003010203000000010400036d2d32000000042f3a3a31000017700000000000000000",
    1: "00010008636f6e73756d65720000000c000572616e676500036d2d310000000200036d2d31000163000a2f3132372e"
    "302e302e31000493e00000afc800000003010203000000010400036d2d32000000042f3a3a310000ea600000177000"
    "00000000000000",
    2: "00020008636f6e73756d65720000000c000572616e676500036d2d310000018bcfe568000000000200036d2d310001"
    "63000a2f3132372e302e302e31000493e00000afc800000003010203000000010400036d2d32000000042f3a3a3100"
    "00ea60000017700000000000000000",
    3: "00030008636f6e73756d65720000000c000572616e676500036d2d310000018bcfe568000000000200036d2d31ffff"
    "000163000a2f3132372e302e302e31000493e00000afc800000003010203000000010400036d2d3200087374617469"
    "632d32000000042f3a3a310000ea60000017700000000000000000",
    4: "000409636f6e73756d65720000000c0672616e6765046d2d310000018bcfe5680003046d2d310002630b2f3132372e"
    "302e302e31000493e00000afc804010203020400046d2d32097374617469632d3201052f3a3a310000ea6000001770"
    "01010000",
}
EMPTY_GROUP = "0003000000000000ffffffff0000018bcfe5680000000000"
EMPTY = GroupMetadata("", 0, None, None, TIME)

text = st.text(st.characters(codec="utf-8"), max_size=20)
int32, int64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
topic_ids = st.just("") | st.just(TOPIC_ID)
plain_offsets = st.builds(CommittedOffset, int64, int32, text, int64, st.just(-1), topic_ids)
expiring_offsets = st.builds(
    CommittedOffset, int64, st.just(-1), text, int64, st.integers(0, 2**63 - 1), st.just("")
)
members = st.builds(
    MemberMetadata, text, st.none() | text, text, text, st.integers(0, 2**31 - 1), int32,
    st.binary(max_size=20), st.binary(max_size=20),
)  # fmt: skip
groups = st.builds(
    GroupMetadata, text, int32, st.none() | text, st.none() | text, int64,
    st.lists(members, max_size=3).map(tuple),
)  # fmt: skip


@pytest.mark.parametrize("name", OFFSETS_WRITTEN)
def test_offsets_are_written_as_kafka_writes_them(name: str) -> None:
    key, value, key_bytes, value_bytes = OFFSETS_WRITTEN[name]

    assert group_records.pack_key(key).hex() == key_bytes
    assert group_records.pack_offset(value).hex() == value_bytes
    assert group_records.unpack_key(bytes.fromhex(key_bytes)) == key
    assert group_records.unpack_offset(bytes.fromhex(value_bytes)) == value


@pytest.mark.parametrize("version", OFFSETS_READ)
def test_offsets_of_all_versions_are_read(version: int) -> None:
    expected = CommittedOffset(
        77, 9 if version >= 3 else -1, "mé", TIME, TIME + 60_000 if version == 1 else -1
    )

    assert group_records.unpack_offset(bytes.fromhex(OFFSETS_READ[version])) == expected


@pytest.mark.parametrize("version", GROUPS_READ)
def test_groups_of_all_versions_are_read(version: int) -> None:
    first, second = MEMBERS
    if version < 3:
        second = second._replace(instance_id=None)
    both = [first, second]
    if version < 1:
        both = [one._replace(rebalance_timeout_ms=one.session_timeout_ms) for one in both]
    expected = GROUP._replace(members=tuple(both), state_timestamp=TIME if version >= 2 else -1)

    assert group_records.unpack_group(bytes.fromhex(GROUPS_READ[version])) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(GROUP, GROUPS_READ[3], id="members"),
        pytest.param(EMPTY, EMPTY_GROUP, id="none"),
    ],
)
def test_groups_are_written_as_kafka_writes_them(value: GroupMetadata, expected: str) -> None:
    assert group_records.pack_group(value).hex() == expected
    assert group_records.pack_key(GroupKey("g")).hex() == "0002000167"


@pytest.mark.parametrize("version", [0, 1])
def test_keys_of_offsets_are_read_in_both_versions(version: int) -> None:
    data = bytes.fromhex("000000016700017400000003")

    assert group_records.unpack_key(bytes([0, version]) + data[2:]) == OffsetKey("g", "t", 3)


def test_a_key_of_an_unknown_kind_is_skipped() -> None:
    assert group_records.unpack_key(bytes.fromhex("0003000167")) is None


@given(st.one_of(plain_offsets, expiring_offsets))
def test_an_offset_is_read_as_it_was_written(value: CommittedOffset) -> None:
    assert group_records.unpack_offset(group_records.pack_offset(value)) == value


@given(groups)
def test_a_group_is_read_as_it_was_written(value: GroupMetadata) -> None:
    assert group_records.unpack_group(group_records.pack_group(value)) == value


TORN = [*OFFSETS_READ.values(), *GROUPS_READ.values()]


@pytest.mark.parametrize("value", range(len(TORN)))
def test_a_value_truncated_anywhere_is_corrupt(value: int) -> None:
    data = bytes.fromhex(TORN[value])
    read = group_records.unpack_offset if value < len(OFFSETS_READ) else group_records.unpack_group
    for end in range(len(data)):
        with pytest.raises(CorruptRecordError):
            read(data[:end])
    with pytest.raises(CorruptRecordError, match="after the last field"):
        read(data + b"\0")


@given(st.binary(max_size=60), st.sampled_from([group_records.unpack_offset, group_records.unpack_group, group_records.unpack_key]), st.integers(0, 4))  # fmt: skip
def test_any_bytes_are_read_or_corrupt(data: bytes, read: object, version: int) -> None:
    assert callable(read)
    with contextlib.suppress(CorruptRecordError):
        read(bytes([0, version]) + data)


def test_a_count_that_its_bytes_cannot_hold_is_corrupt() -> None:
    data = bytearray.fromhex(EMPTY_GROUP)
    data[-4:] = b"\x7f\xff\xff\xff"

    with pytest.raises(CorruptRecordError, match="2147483647"):
        group_records.unpack_group(bytes(data))


def test_the_error_for_an_unknown_version_names_it() -> None:
    with pytest.raises(CorruptRecordError, match="expected 0 to 4, found 5"):
        group_records.unpack_offset(bytes.fromhex("0005" + OFFSETS_READ[4][4:]))


def test_a_string_that_the_format_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="32768 bytes"):
        group_records.pack_key(GroupKey("g" * 32_768))
