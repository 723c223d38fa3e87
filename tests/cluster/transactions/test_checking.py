"""Which transaction of the coordinator's log is the one that is open in a partition."""

from __future__ import annotations

import pytest

from spark_kbatch.cluster.transactions.checking import OpenTransaction
from spark_kbatch.cluster.transactions.state import (
    ProducerIdAndEpoch,
    Status,
    TransactionMetadata,
)
from spark_kbatch.model import TopicPartition

PLACE = TopicPartition("events", 0)


@pytest.mark.parametrize(
    ("status", "epoch", "is_known"),
    [
        (Status.ONGOING, 4, True),
        (Status.PREPARE_COMMIT, 4, True),
        (Status.PREPARE_ABORT, 4, True),
        (Status.COMPLETE_COMMIT, 4, False),
        (Status.PREPARE_ABORT, 5, True),  # which fences the producer
        (Status.ONGOING, 5, False),
        (Status.PREPARE_COMMIT, 5, False),
        (Status.ONGOING, 3, False),
    ],
)
def test_a_transaction_of_a_later_epoch_is_another_one_unless_it_is_the_abort(
    status: Status, epoch: int, is_known: bool
) -> None:
    owner = TransactionMetadata(
        "t", ProducerIdAndEpoch(7, epoch), 60_000, status, {PLACE: "id"}, updated_ms=0, start_ms=0
    )
    found = OpenTransaction(
        topic_partition=PLACE,
        topic_id="id",
        producer=ProducerIdAndEpoch(7, 4),
        first_offset=0,
        held_back=1,
        last_timestamp=0,
        coordinator_epoch=-1,
        owner=owner,
        is_beyond=False,
    )

    assert found.is_known == is_known
