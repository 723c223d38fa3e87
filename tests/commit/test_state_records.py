"""Records of `__transaction_state`, read by our code and as Kafka reads them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.commit.state_records import (
    COMPLETE_COMMIT,
    PREPARE_COMMIT,
    TransactionValue,
    pack_key,
    pack_value,
    unpack_key,
    unpack_value,
)
from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.log import state as log_state
from spark_kbatch.log.state import LogState
from spark_kbatch.model import TopicPartition
from tests.support import builders, reference
from tests.support.store import store_of

_i64 = st.integers(-(2**63), 2**63 - 1)
_states = st.builds(
    lambda numbers, epoch, boot: LogState(*numbers[:5], epoch, *numbers[5:], boot),
    st.lists(_i64, min_size=14, max_size=14),
    st.integers(-(2**31), 2**31 - 1),
    st.binary(min_size=16, max_size=16),
)
_places = st.builds(
    TopicPartition,
    st.text(st.sampled_from("ab.-_9"), min_size=1, max_size=4) | st.just("t" * 249),
    st.integers(0, 2**31 - 1),
)
_values = st.builds(
    TransactionValue,
    st.sampled_from([PREPARE_COMMIT, COMPLETE_COMMIT]),
    _i64,
    st.dictionaries(
        _places,
        st.dictionaries(st.integers(0, 2**31 - 1), _states, min_size=1, max_size=3),
        max_size=5,
    ),
    _i64,
    st.binary(max_size=30),
    st.dictionaries(st.text(max_size=5), st.text(max_size=22), max_size=3),
    st.binary(max_size=30),
)


class Kafka:
    """A reader written from Kafka's message definitions; it uses none of our code."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, size: int) -> bytes:
        assert 0 <= size <= len(self.data) - self.position
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, form: str) -> int:
        (value,) = struct.unpack(f">{form}", self.take(struct.calcsize(form)))
        return int(value)

    def unsigned_varint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def compact_string(self) -> str:
        return self.take(self.unsigned_varint() - 1).decode()

    def tags(self) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for _ in range(self.unsigned_varint()):
            tag = self.unsigned_varint()
            assert tag > max(found, default=-1), "tags ascend"
            found[tag] = self.take(self.unsigned_varint())
        return found


def transaction_log_key(data: bytes) -> str:
    """Read a TransactionLogKey.json, version 0, which is not flexible."""
    reader = Kafka(data)
    assert reader.number("h") == 0
    text = reader.take(reader.number("h")).decode()
    assert reader.position == len(data)
    return text


def transaction_log_value(data: bytes) -> dict[str, Any]:
    """Read a TransactionLogValue.json, version 1: flexible, the array of partitions nullable."""
    reader = Kafka(data)
    assert reader.number("h") == 1
    found: dict[str, Any] = {
        "ProducerId": reader.number("q"),
        "ProducerEpoch": reader.number("h"),
        "TransactionTimeoutMs": reader.number("i"),
        "TransactionStatus": reader.number("b"),
    }
    topics = reader.unsigned_varint()
    found["TransactionPartitions"] = None if topics == 0 else {}
    for _ in range(topics - 1):
        topic = reader.compact_string()
        partitions = [reader.number("i") for _ in range(reader.unsigned_varint() - 1)]
        assert reader.tags() == {}
        assert topic not in found["TransactionPartitions"]
        found["TransactionPartitions"][topic] = partitions
    found["TransactionLastUpdateTimestampMs"] = reader.number("q")
    found["TransactionStartTimestampMs"] = reader.number("q")
    found["tags"] = reader.tags()
    assert reader.position == len(data)
    return found


@given(value=_values)
def test_a_value_round_trips(value: TransactionValue) -> None:
    assert unpack_value(pack_value(value)) == value


@given(name=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_a_key_round_trips(name: str) -> None:
    assert unpack_key(pack_key(name)) == transaction_log_key(pack_key(name)) == name


@given(value=_values)
def test_kafka_reads_the_same(value: TransactionValue) -> None:
    found = transaction_log_value(pack_value(value))
    partitions: dict[str, list[int]] = {}
    for topic, partition in sorted(value.states):
        partitions.setdefault(topic, []).append(partition)
    # Kafka's own tags are 0, 1 and 2; it skips tags that it does not know.
    tags = found.pop("tags")
    assert found == {
        "ProducerId": -1,
        "ProducerEpoch": -1,
        "TransactionTimeoutMs": 0,
        "TransactionStatus": value.status,
        "TransactionPartitions": partitions,
        "TransactionLastUpdateTimestampMs": value.last_update_ms,
        "TransactionStartTimestampMs": value.last_update_ms,
    }
    optional = {1002: value.source_progress, 1003: value.topic_ids, 1004: value.evidence}
    assert list(tags) == [1000, 1001, *(tag for tag, content in optional.items() if content)]
    assert tags.get(1002, b"") == value.source_progress
    assert tags.get(1004, b"") == value.evidence

    assert tags[1000] == struct.pack(">q", value.sequence)
    reader = Kafka(tags.get(1003, b"\1"))
    names = range(reader.unsigned_varint() - 1)
    assert {reader.compact_string(): reader.compact_string() for _ in names} == value.topic_ids
    reader, states = Kafka(tags[1001]), {}
    for _ in range(reader.unsigned_varint() - 1):
        topic, partition, node_id = reader.compact_string(), reader.number("i"), reader.number("i")
        states[topic, partition, node_id] = reader.take(log_state.SLOT_SIZE)
    assert reader.position == len(tags[1001])
    assert states == {
        (*place, node_id): log_state.pack(state)
        for place, by_node in value.states.items()
        for node_id, state in by_node.items()
    }


def test_a_commit_leaves_a_prepare_and_a_complete_that_kafka_reads(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"clicks": 2, "views": 1})
    batch = builders.batch()
    for number in range(2):
        extents = builders.staged(cluster, {("views", 0): [batch], ("clicks", 1): [batch]})
        builders.commit(cluster, extents, transaction=f"job-{number}")

    directory = store_of(cluster).metadata.cluster_file.log_directory(TRANSACTION_STATE)
    records = reference.decode_batches((directory / f"{0:020d}.log").read_bytes())
    keys = [transaction_log_key(record.key or b"") for record in records]
    values = [transaction_log_value(record.value or b"") for record in records]
    assert keys == ["job-0", "job-0", "job-1", "job-1"]
    assert [value["TransactionStatus"] for value in values] == [2, 4, 2, 4]
    touched: dict[str, list[int]] = {"__commits": [0], "clicks": [1], "views": [0]}
    assert [value["TransactionPartitions"] for value in values] == [touched, {}, touched, {}]
    for value in values:
        assert value["TransactionLastUpdateTimestampMs"] == builders.FIRST_TIMESTAMP_MS


def test_a_value_of_another_version_is_refused() -> None:
    data = pack_value(TransactionValue(PREPARE_COMMIT, -1, {}, 0))
    with pytest.raises(CorruptRecordError, match="expected 1, found 2"):
        unpack_value(struct.pack(">h", 2) + data[2:])


def test_a_state_that_is_damaged_is_refused() -> None:
    states = {TopicPartition("clicks", 1): {0: log_state.empty_state()}}
    data = bytearray(pack_value(TransactionValue(PREPARE_COMMIT, -1, states, 0)))
    data[-20] ^= 1
    with pytest.raises(CorruptRecordError, match="state of clicks-1"):
        unpack_value(bytes(data))


@given(st.data())
def test_a_truncated_or_changed_value_is_refused_or_is_another_value(data: st.DataObject) -> None:
    states = {TopicPartition("clicks", 1): {0: log_state.empty_state()}}
    value = bytearray(pack_value(TransactionValue(PREPARE_COMMIT, 7, states, 0)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(value) - 1))
        value[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    cut = bytes(value[: data.draw(st.integers(0, len(value)))])
    try:
        assert isinstance(unpack_value(cut), TransactionValue)
    except CorruptRecordError:
        pass


def test_a_key_that_is_not_text_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="key of a transaction record"):
        unpack_key(b"\0\0\0\1\xff")
