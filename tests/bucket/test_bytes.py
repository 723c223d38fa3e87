"""The bytes of what a bucket has: an entry of every kind, an index, and a checkpoint of a state with all it can have.

KBATCH_REWRITE_GOLDEN=1 pytest tests/bucket/test_bytes.py writes `golden/bucket/objects.txt` again; read the difference.
Where other code would read it as something else, or not at all, the object has another version: its `v`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_kbatch.bucket.place import create_cluster
from spark_kbatch.ledger import names
from spark_kbatch.ledger.entries import (
    CommittedGroupOffset,
    Content,
    Entry,
    Fence,
    GcBoundary,
    LedgerCommit,
    ProducedBatch,
    TopicCreation,
    encode,
)
from spark_kbatch.ledger.extents import DataExtent, PartitionAppend, pack_index
from tests.support import bucket_ledgers
from tests.support.bucket_contents import (
    CLUSTER_ID,
    EVERY_KIND,
    JOB_ID,
    TOPIC_ID,
    append_of,
    data_at,
)
from tests.support.bucket_ledgers import LIMITS, ScriptedObjects, a_ledger, cluster_of

GOLDEN = Path(__file__).parent.parent / "golden" / "bucket" / "objects.txt"


# Numbers of which no two are the same where one might be stored in the place of another, each by its name.
EXTENT = DataExtent(
    name=data_at(7),
    position=11,
    size_in_bytes=12,
    span=6,
    records_count=5,
    first_ms=1000,
    last_ms=2000,
)
APPEND = PartitionAppend(
    partition=3, base_offset=4, span=6, records_count=5, leader_epoch=2, placed=(EXTENT,)
)
BATCH = ProducedBatch(
    producer_id=9, producer_epoch=1, topic_id=TOPIC_ID, partition=3, first_sequence=5, last_sequence=7,
    base_offset=4,
)  # fmt: skip
OFFSET = CommittedGroupOffset(topic_id=TOPIC_ID, partition=3, offset=12, metadata="metadata")
COMMIT = LedgerCommit({TOPIC_ID: (APPEND,)}, produced=(BATCH,), groups={"billing": (OFFSET,)})


def entries() -> dict[str, bytes]:
    """Return entries of every kind, as they are stored."""
    return {
        f"{content.kind} {number}": encode(
            Entry(number, "41" * 16, "9c" * 16, 1_700_000_000_000, content, by="someone")
        )
        for number, content in enumerate([*EVERY_KIND, COMMIT])
    }


def objects_of_a_cluster() -> dict[str, bytes]:
    """Return what a ledger leaves beside its entries: a checkpoint after all that goes into a state; and an index."""
    objects = ScriptedObjects()
    create_cluster(objects, CLUSTER_ID, "", objects.time.sleep)
    ledger = a_ledger(objects, every=8)
    ledger.start(LIMITS)
    (commit,) = (one for one in EVERY_KIND if isinstance(one, LedgerCommit))
    contents: list[Content] = [
        TopicCreation(TOPIC_ID, "events", (100, 5), {"retention.ms": "1000"})
    ]
    contents += [
        *(Fence("server", epoch) for epoch in (1, 2, 3)),
        *map(GcBoundary, (1, 2, 3)),
        commit,
    ]
    for content in contents:
        ledger.commit(lambda _, content=content: content)
    ledger._maybe_put_hint(is_due=True)
    index = names.index_name(7, JOB_ID, "ef" * 16)
    appends = {TOPIC_ID: [APPEND, append_of(0, 100)]}
    cluster_of(objects).put(index, pack_index(index, appends)[0])
    there = [one.name for one in objects.list("") if names.LEDGER not in one.name]
    return {name: objects.get(name) or b"" for name in there}


def test_what_a_bucket_has_is_as_its_golden_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that no time depends on the number of requests.
    monkeypatch.setattr(bucket_ledgers, "ROUND_TRIP_MS", 0)
    found = entries() | objects_of_a_cluster()
    shown = "".join(f"{name}\n----\n{data.decode().rstrip()}\n\n" for name, data in found.items())

    if os.environ.get("KBATCH_REWRITE_GOLDEN"):
        GOLDEN.write_text(shown)
    assert shown == GOLDEN.read_text()
    for part in ("cluster", names.CHECKPOINTS, "/heads", "/extents-", "/index-", names.HINT):
        assert any(part in name for name in found), part
