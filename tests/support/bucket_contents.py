"""Contents of entries for tests of buckets: one of every kind, and their parts."""

from __future__ import annotations

from spark_kbatch.ledger import names
from spark_kbatch.ledger.entries import (
    CommittedGroupOffset,
    Content,
    Fence,
    GcBoundary,
    HeldFence,
    LedgerCommit,
    LedgerStart,
    MicroBatch,
    MirrorStep,
    NewFormat,
    ProducedBatch,
    Replacement,
    Rewrite,
    StartOffsets,
    Tombstone,
    TopicAlteration,
    TopicCreation,
    TopicDeletion,
    TopicGrowth,
)
from spark_kbatch.ledger.extents import DataExtent, IndexRange, PartitionAppend
from spark_kbatch.store.repetitions import Evidence

CLUSTER_ID = "c1" * 16
TOPIC_ID = "Zm9vYmFyYmF6cXV4MTIzNA"
JOB_ID = "ab" * 16


def data_at(began: int, attempt: str = "cd" * 16) -> str:
    return names.data_name(began, JOB_ID, attempt)


def append_of(
    partition: int,
    base_offset: int,
    *,
    span: int = 3,
    began: int = 7,
    epoch: int = 0,
    name: str = "",
) -> PartitionAppend:
    """Return an append with one extent, in which every offset has a record."""
    extent = DataExtent(name or data_at(began), 0, 100 * span, span, span, 1000, 2000)
    return PartitionAppend(partition, base_offset, span, span, epoch, (extent,))


EVERY_KIND: list[Content] = [
    LedgerStart(CLUSTER_ID, {"staging.timeout.ms": 604_800_000}),
    TopicCreation(TOPIC_ID, "events", (0, 17), {"retention.ms": "1000"}),
    TopicAlteration(TOPIC_ID, {"retention.ms": None, "max.message.bytes": "7"}),
    TopicGrowth(TOPIC_ID, (0, 0)),
    TopicDeletion(TOPIC_ID),
    LedgerCommit(
        {
            TOPIC_ID: (
                append_of(0, 100),
                append_of(1, 5)._replace(
                    placed=IndexRange(names.index_name(7, JOB_ID, "ef" * 16), 10, 20, "c1d04330")
                ),
            )
        },
        {TOPIC_ID: {0: 100}},
        MicroBatch("a-query", 12),
        MirrorStep("nightly", "", '{"topics":{}}'),
        (ProducedBatch(9, 0, TOPIC_ID, 0, 0, 2, 100),),
        {
            "billing": (
                CommittedGroupOffset(TOPIC_ID, 0, 12, ""),
                CommittedGroupOffset(TOPIC_ID, 1, None, ""),
            )
        },
        HeldFence("server", 3),
        Evidence("events", "3 rows", "ab" * 32, "{}", "a-query", "", "", "yes"),
    ),
    StartOffsets({TOPIC_ID: {0: 50, 1: 7}}),
    Replacement(
        {
            TOPIC_ID: (
                Rewrite(
                    0,
                    0,
                    5,
                    (
                        append_of(0, 0, span=2),
                        append_of(0, 2, name=names.segment_name(TOPIC_ID, 0, 9, "0f" * 16)),
                    ),
                ),
            )
        }
    ),
    Fence("server", 3),
    GcBoundary(30),
    NewFormat(2),
    Tombstone(),
]
