"""The format of records in __transaction_state: Kafka's key and value, with added tagged fields.

    key     version i16 = 0, transactional id (i16 length, UTF-8)
    value   version i16 = 1, producer id i64, producer epoch i16, timeout ms i32, status i8,
            partitions by topic (compact array of: compact string, compact array of i32, tags),
            last update ms i64, start ms i64, tags

    tag 1000   sequence of the transaction within its id, i64; -1 for none
    tag 1001   compact array of: topic (compact string), partition i32, node i32, the slot of
               kbatch.state that the replica is to have
    tag 1002   of a mirror: how far it has read its source (`mirroring.progress`); absent otherwise
    tag 1003   compact array of: topic (compact string), its id (compact string)
    tag 1004   what tells a repetition of the commit from others (`store.repetitions`), as JSON;
               absent where the id is a mirror's, or the transaction has no sequence

Compact lengths are unsigned varints, one higher than what they count. A reader skips tags that it
does not know, so Kafka's own tools can read these records.

Source: Kafka transaction-coordinator/.../TransactionLogKey.json, TransactionLogValue.json; KIP-482.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.log import state as log_state
from spark_kbatch.log.state import SLOT_SIZE, LogState
from spark_kbatch.model import NO_TRANSACTION_SEQUENCE, TopicPartition
from spark_kbatch.record.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from spark_kbatch.record.scalar import read_unsigned_varint, unsigned_varint

PREPARE_COMMIT = 2
COMPLETE_COMMIT = 4


_SEQUENCE_TAG, _STATES_TAG, _SOURCE_PROGRESS_TAG, _TOPIC_IDS_TAG = 1000, 1001, 1002, 1003
_EVIDENCE_TAG = 1004
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")
_PLACE = struct.Struct(">ii")
_I32, _I64 = struct.Struct(">i"), struct.Struct(">q")


class TransactionValue(NamedTuple):
    """The value of a record in __transaction_state: a commit's status, sequence and new log states."""

    status: int
    sequence: int
    states: Mapping[TopicPartition, Mapping[int, LogState]]  # by node
    last_update_ms: int
    source_progress: bytes = b""  # of a mirror; all records of its id have it
    topic_ids: Mapping[str, str] = {}  # by topic, of all that have states
    evidence: bytes = b""  # of this sequence, which tells a repetition of it from another commit

    def states_in(
        self, is_current: Callable[[str, str], bool]
    ) -> dict[TopicPartition, Mapping[int, LogState]]:
        """Return the new log states in topics that are still the ones that were committed to.

        An image of a disk, or one after a power loss, may have a commit as decided that was completed before its
        topic was deleted. A topic that was made since under its name has nothing to do with that.

        Args:
            is_current: returns False if the topic of a name with this id was deleted.
        """
        names = {tp.topic for tp in self.states}
        are_meant = {name: is_current(name, self.topic_ids.get(name, "")) for name in names}
        return {tp: by_node for tp, by_node in self.states.items() if are_meant[tp.topic]}

    @property
    def is_mirrors(self) -> bool:
        """Whether a mirror made the commit, and no job."""
        return bool(self.source_progress)


def pack_key(transactional_id: str) -> bytes:
    """Encode the key of a transactional id's records in __transaction_state."""
    text = transactional_id.encode()
    return _KEY.pack(0, len(text)) + text


def unpack_key(data: bytes) -> str:
    """Decode the transactional id from the key of a record in __transaction_state.

    Raises:
        CorruptRecordError: it is not UTF-8.
    """
    try:
        return data[_KEY.size :].decode()
    except UnicodeDecodeError as error:
        raise CorruptRecordError(f"key of a transaction record: {error}") from None


def pack_value(value: TransactionValue) -> bytes:
    """Encode the value of a record in __transaction_state."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(value.states):
        by_topic.setdefault(topic, []).append(partition)
    out = bytearray(_VALUE.pack(1, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, 0, value.status))
    out += unsigned_varint(len(by_topic) + 1)
    for topic, partitions in by_topic.items():
        out += _compact(topic) + unsigned_varint(len(partitions) + 1)
        out += b"".join(_I32.pack(partition) for partition in partitions) + b"\0"
    out += _TIMES.pack(value.last_update_ms, value.last_update_ms)

    states = bytearray(unsigned_varint(sum(map(len, value.states.values())) + 1))
    for topic, partition in sorted(value.states):
        for node_id, state in value.states[TopicPartition(topic, partition)].items():
            states += _compact(topic) + _PLACE.pack(partition, node_id) + log_state.pack(state)
    tags = {_SEQUENCE_TAG: _I64.pack(value.sequence), _STATES_TAG: bytes(states)}
    if value.source_progress:
        tags[_SOURCE_PROGRESS_TAG] = value.source_progress
    if value.topic_ids:
        ids = (_compact(name) + _compact(id_) for name, id_ in sorted(value.topic_ids.items()))
        tags[_TOPIC_IDS_TAG] = unsigned_varint(len(value.topic_ids) + 1) + b"".join(ids)
    if value.evidence:
        tags[_EVIDENCE_TAG] = value.evidence
    out += unsigned_varint(len(tags))
    for tag, content in tags.items():
        out += unsigned_varint(tag) + unsigned_varint(len(content)) + content
    return bytes(out)


def unpack_value(data: bytes) -> TransactionValue:
    """Decode the value of a record in __transaction_state.

    Raises:
        CorruptRecordError: not a value that this release writes.
    """
    try:
        return _unpack_value(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CorruptRecordError(f"value of a transaction record: {error}") from None


def _unpack_value(data: bytes) -> TransactionValue:
    version, _, _, _, status = _VALUE.unpack_from(data)
    if version != 1:
        raise CorruptRecordError("version of a transaction record", expected=1, found=version)
    topics, at = read_unsigned_varint(data, _VALUE.size)
    for _ in range(min(topics - 1, len(data))):
        _, at = _read_compact(data, at)
        count, at = read_unsigned_varint(data, at)
        at += _I32.size * (count - 1) + 1
    last_update_ms, _ = _TIMES.unpack_from(data, at)
    tags, at = read_unsigned_varint(data, at + _TIMES.size)
    sequence: int = NO_TRANSACTION_SEQUENCE
    states: dict[TopicPartition, dict[int, LogState]] = {}
    source_progress, topic_ids, evidence = b"", dict[str, str](), b""
    for _ in range(tags):
        tag, at = read_unsigned_varint(data, at)
        size, at = read_unsigned_varint(data, at)
        content, at = data[at : at + size], at + size
        if tag == _SEQUENCE_TAG:
            (sequence,) = _I64.unpack(content)
        elif tag == _STATES_TAG:
            states = _unpack_states(content)
        elif tag == _SOURCE_PROGRESS_TAG:
            source_progress = content
        elif tag == _TOPIC_IDS_TAG:
            topic_ids = _unpack_topic_ids(content)
        elif tag == _EVIDENCE_TAG:
            evidence = content
    return TransactionValue(
        status, sequence, states, last_update_ms, source_progress, topic_ids, evidence
    )


def _unpack_states(data: bytes) -> dict[TopicPartition, dict[int, LogState]]:
    states: dict[TopicPartition, dict[int, LogState]] = {}
    count, at = read_unsigned_varint(data, 0)
    for _ in range(count - 1):
        topic, at = _read_compact(data, at)
        partition, node_id = _PLACE.unpack_from(data, at)
        at += _PLACE.size
        state = log_state.unpack(data[at : at + SLOT_SIZE])
        at += SLOT_SIZE
        if state is None:
            raise CorruptRecordError(f"state of {topic}-{partition} in a transaction record")
        states.setdefault(TopicPartition(topic, partition), {})[node_id] = state
    return states


def _unpack_topic_ids(data: bytes) -> dict[str, str]:
    topic_ids = {}
    count, at = read_unsigned_varint(data, 0)
    for _ in range(count - 1):
        name, at = _read_compact(data, at)
        topic_ids[name], at = _read_compact(data, at)
    return topic_ids


def _compact(text: str) -> bytes:
    data = text.encode()
    return unsigned_varint(len(data) + 1) + data


def _read_compact(data: bytes, position: int) -> tuple[str, int]:
    size, position = read_unsigned_varint(data, position)
    return data[position : position + size - 1].decode(), position + size - 1
