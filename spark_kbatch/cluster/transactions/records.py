"""The keys and values of `__client_transactions`, in Kafka's format of `__transaction_state`.

    key     version int16 = 0, transactional id (string)
    value   version int16 = 1, then the fields below; null: the id is forgotten

Fields without a tag, and those with tags 0 to 2, are Kafka's, so its tools read the log. Tags from 1100 on are
ours, and Kafka skips them: ids of topics, groups' offsets, the epoch of the last commit, and the producer before
the last start, which Kafka keeps in memory alone. The value of the empty id, which no client can have, has the epoch of the coordinator
that has written what follows. Version 0 is read, too: it has the same fields without tags.

Source: Kafka transaction-coordinator/src/main/resources/common/message/TransactionLogKey.json,
TransactionLogValue.json.
"""

from __future__ import annotations

import itertools
from operator import itemgetter
from typing import Any

from spark_kbatch.cluster.group_records import CommittedOffset
from spark_kbatch.cluster.record_fields import RecordFields, packed_topic_id, unpacked_topic_id
from spark_kbatch.cluster.state_log import KeyAndValue
from spark_kbatch.cluster.transactions.state import ProducerIdAndEpoch, Status, TransactionMetadata
from spark_kbatch.commit.internal_topics import CLIENT_TRANSACTIONS
from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.model import TopicPartition

_KEY, _VALUE = 0, 1  # the versions that are written

_KEY_FIELDS = RecordFields(CLIENT_TRANSACTIONS.topic, "transaction key", "transactional_id string")
_VALUE_FIELDS = RecordFields(
    CLIENT_TRANSACTIONS.topic,
    "transaction",
    """\
producer_id int64, previous_producer_id int64 1+ @0 =-1, next_producer_id int64 1+ @1 =-1
producer_epoch int16, timeout_ms int32, status int8
partitions []Partitions?
    topic string, partition_ids []int32, topic_id uuid 1+ @1100
updated_ms int64, start_ms int64, client_transaction_version int16 1+ @2
former_epoch int16 1+ @1101 =-1, coordinator_epoch int32 1+ @1102 =-1
offsets []Offset 1+ @1103
    group string, topic string, partition int32, topic_id uuid, offset int64, leader_epoch int32
    metadata string, commit_timestamp int64
groups []string 1+ @1104, commit_epoch int16 1+ @1105 =-1""",
    version_max=_VALUE,
    flexible=1,
)


def pack_epoch(coordinator_epoch: int) -> KeyAndValue:
    """Encode the epoch of the coordinator that writes from now on."""
    value = _VALUE_FIELDS.kind(
        producer_id=-1, producer_epoch=-1, partitions=None, updated_ms=-1, start_ms=-1,
        coordinator_epoch=coordinator_epoch,
    )  # fmt: skip
    return pack_key(""), _VALUE_FIELDS.pack(_VALUE, value)


def pack_key(transactional_id: str) -> bytes:
    """Encode the key of a transactional id.

    Raises:
        ValueError: it is longer than the format can hold.
    """
    return _KEY_FIELDS.pack(_KEY, _KEY_FIELDS.kind(transactional_id=transactional_id))


def pack(transaction: TransactionMetadata) -> KeyAndValue:
    """Encode a transactional id's state as a record's key and value; raises as `pack_key`."""
    kind = _VALUE_FIELDS.kind
    by_topic = sorted(
        (tp.topic, topic_id, tp.partition) for tp, topic_id in transaction.partitions.items()
    )
    partitions = [
        kind.Partitions(
            topic=topic,
            partition_ids=[number for *_, number in numbers],
            topic_id=packed_topic_id(topic_id),
        )
        for (topic, topic_id), numbers in itertools.groupby(by_topic, itemgetter(0, 1))
    ]
    offsets = [
        kind.Offset(
            group=group, topic=tp.topic, partition=tp.partition,
            topic_id=packed_topic_id(one.topic_id), offset=one.offset,
            leader_epoch=one.leader_epoch, metadata=one.metadata,
            commit_timestamp=one.commit_timestamp,
        )
        for group, of_group in transaction.offsets.items()
        for tp, one in of_group.items()
    ]  # fmt: skip
    value = kind(
        producer_id=transaction.producer.producer_id,
        previous_producer_id=transaction.former.producer_id,
        producer_epoch=transaction.producer.epoch,
        timeout_ms=transaction.timeout_ms,
        status=transaction.status,
        partitions=partitions or None,
        updated_ms=transaction.updated_ms,
        start_ms=transaction.start_ms,
        former_epoch=transaction.former.epoch,
        offsets=offsets,
        groups=[*transaction.offsets],
        commit_epoch=transaction.commit_epoch,
    )
    return pack_key(transaction.transactional_id), _VALUE_FIELDS.pack(_VALUE, value)


def unpack_key(data: bytes) -> str:
    """Decode a record's key: the transactional id.

    Raises:
        CorruptRecordError: the key does not have the format of its version.
    """
    transactional_id: str = _KEY_FIELDS.unpack(data).transactional_id
    return transactional_id


def unpack(transactional_id: str, data: bytes) -> TransactionMetadata | int:
    """Decode a record's value; return the coordinator's epoch for the empty id.

    Raises:
        CorruptRecordError: the value does not have the format of its version, or has an unknown version.
    """
    found = _VALUE_FIELDS.unpack(data)
    if not transactional_id:
        epoch: int = found.coordinator_epoch
        return epoch
    if found.status not in Status.__members__.values():
        raise CorruptRecordError("status of a transaction", expected="0 to 5", found=found.status)
    offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {one: {} for one in found.groups}
    for one in found.offsets:
        offsets.setdefault(one.group, {})[TopicPartition(one.topic, one.partition)] = _offset(one)
    return TransactionMetadata(
        transactional_id,
        ProducerIdAndEpoch(found.producer_id, found.producer_epoch),
        found.timeout_ms,
        Status(found.status),
        {
            TopicPartition(one.topic, number): unpacked_topic_id(one.topic_id)
            for one in found.partitions or ()
            for number in one.partition_ids
        },
        offsets,
        found.updated_ms,
        found.start_ms,
        ProducerIdAndEpoch(found.previous_producer_id, found.former_epoch),
        found.commit_epoch,
    )


def _offset(stored: Any) -> CommittedOffset:
    return CommittedOffset(
        stored.offset,
        stored.leader_epoch,
        stored.metadata,
        stored.commit_timestamp,
        topic_id=unpacked_topic_id(stored.topic_id),
    )
