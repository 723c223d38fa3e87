"""A small bucket with every kind of entry, to be kept: `python -m tests.support.kept_bucket > NAME.json`.

The ledger is the product's own; the batches are encoded by `tests.support.reference`. It has a commit with its
extents in the entry and one with an index, gaps between offsets, merged batches in a segment, an overwrite, tombstones,
a checkpoint with entries after it, an entry of a later format, and what a checkpoint that was never finished and
a job that never committed have left.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from spark_kbatch.bucket import names
from spark_kbatch.bucket.entries import (
    CommittedGroupOffset,
    Content,
    Fence,
    HeldFence,
    Horizon,
    LaterContent,
    LedgerCommit,
    MicroBatch,
    MirrorStep,
    NewFormat,
    NewLimits,
    ProducedBatch,
    ReplacedRange,
    Replacement,
    StartOffsets,
    TopicAlteration,
    TopicCreation,
    TopicDeletion,
    TopicGrowth,
    decode,
    encode,
    tombstone_of,
)
from spark_kbatch.bucket.extents import (
    DataExtent,
    IndexRange,
    Stretch,
    pack_index,
    unpack_index,
)
from spark_kbatch.bucket.ledger import Ledger
from spark_kbatch.bucket.objects import Folder, MemoryObjects
from spark_kbatch.bucket.place import create_cluster
from tests.support.bucket_contents import CLUSTER_ID, TOPIC_ID
from tests.support.bucket_ledgers import SetTime
from tests.support.reference import Record, decode_batches, encode_batch

JOB_IDS = ["1f" * 16, "2e" * 16, "3d" * 16]
LIMITS = {"staging.timeout.ms": 604_800_000, "producer.id.expiration.ms": 86_400_000}
CHECKPOINT_EVERY = 6
BURIED = (3, 5)  # a second creation, a second alteration: each kind is there once more


def batch(offsets: Sequence[int], values: str) -> bytes:
    """Return a batch with records at these offsets from 0, and the first letters of `values`."""
    records = [
        Record(offset, 1_700_000_000_000 + offset, None, value.encode())
        for offset, value in zip(offsets, values, strict=True)
    ]
    return encode_batch(records)


class _Job:
    """The objects of one job: an object for each of its tasks."""

    def __init__(self, objects: Folder, began: int, job_id: str) -> None:
        self._objects, self._began, self._job_id = objects, began, job_id

    def stage(self, *runs: tuple[int, Sequence[int], int, str]) -> list[Stretch]:
        """Put a task's batches, each a partition, its offsets from 0, their span, and values."""
        name = names.data_name(self._began, self._job_id, f"{len(runs):032x}")
        data, found = b"", []
        for partition, offsets, span, values in runs:
            one, count = batch(offsets, values), len(offsets)
            times = 1_700_000_000_000 + offsets[0], 1_700_000_000_000 + offsets[-1]
            extent = DataExtent(name, len(data), len(one), span, count, *times)
            found.append(Stretch(partition, 0, span, count, 0, (extent,)))
            data += one
        self._objects.put(name, data)
        return found

    def index(self, stretches: list[Stretch]) -> list[Stretch]:
        name = names.index_name(self._began, self._job_id, "9a" * 16)
        data, placed = pack_index(name, {TOPIC_ID: stretches})
        self._objects.put(name, data)
        return placed[TOPIC_ID]


class Maker:
    """The bucket as it is made."""

    def __init__(self) -> None:
        self.time = SetTime()
        self.place = MemoryObjects(lambda: int(self.time.now_ms))
        create_cluster(self.place, CLUSTER_ID, "passed", self.time.sleep)
        self.ledger = Ledger(
            self.place, CLUSTER_ID, self.time.timing(), checkpoint_every=CHECKPOINT_EVERY
        )
        self.objects = Folder(self.place, f"{CLUSTER_ID}/")

    def write(self, content: Content) -> None:
        self.time.now_ms += 60_000
        self.ledger.commit(lambda _: content, by="the one who keeps it")

    def commit(self, stretches: list[Stretch], **more: Any) -> None:
        state = self.ledger.state
        placed = tuple(
            one._replace(base_offset=state.partition(TOPIC_ID, one.partition).next_offset)
            for one in stretches
        )
        self.write(LedgerCommit({TOPIC_ID: placed}, **more))

    def make(self) -> None:
        self.ledger.start(LIMITS)
        self.write(NewLimits({"transactional.id.expiration.ms": 604_800_000}))
        self.write(TopicCreation(TOPIC_ID, "events", (0, 17), {"retention.ms": "604800000"}))
        self.write(TopicCreation("gone", "gone", (0,)))
        self.write(TopicAlteration(TOPIC_ID, {"compression.type": "zstd", "retention.ms": None}))
        self.write(TopicAlteration(TOPIC_ID, {"max.message.bytes": "1000"}))
        self.write(TopicGrowth(TOPIC_ID, (100,)))
        job = _Job(self.objects, 6, JOB_IDS[0])
        self.commit(
            job.stage((0, [0, 1, 2], 3, "abc"), (1, [0, 4], 5, "de")),
            micro_batch=MicroBatch("a-query", 0),
            produced=(ProducedBatch(9, 0, TOPIC_ID, 0, 0, 2, 0),),
            groups={"billing": (CommittedGroupOffset(TOPIC_ID, 1, 20, "mine"),)},
        )
        self.write(Fence("server", 1))
        job = _Job(self.objects, 8, JOB_IDS[1])
        self.commit(
            job.index(job.stage((0, [0, 1], 2, "fg"), (2, [0], 1, "h"))),
            fence=HeldFence("server", 1),
            mirror=MirrorStep("nightly", "", '{"topics":{}}'),
        )
        self.write(StartOffsets({TOPIC_ID: {0: 1}}))
        self._merge()
        self.write(Horizon(6))
        self.write(TopicDeletion("gone"))
        self.write(LaterContent("later", {"what": ["only", "a", "later", "version", "knows"]}))
        job = _Job(self.objects, 13, JOB_IDS[2])
        self.commit(job.stage((1, [0], 1, "i")), starts={TOPIC_ID: {1: 22}})
        self._leave()
        for number in BURIED:
            name = names.entry_name(number)
            entry = decode(self.objects.get(name) or b"", name)
            self.objects.put(name, encode(tombstone_of(entry)))

    def _merge(self) -> None:
        """Replace partition 0 from its start on by a segment, with final offsets."""
        name = names.segment_name(TOPIC_ID, 0, 10, "5e" * 16)
        records = [
            Record(offset, 1_700_000_000_000 + at, None, value.encode())
            for offset, at, value in ((1, 1, "b"), (2, 2, "c"), (3, 0, "f"), (4, 1, "g"))
        ]
        data = encode_batch(records, base_offset=1, leader_epoch=0)
        self.objects.put(name, data)
        times = 1_700_000_000_000, 1_700_000_000_002
        stretch = Stretch(0, 1, 4, 4, -1, (DataExtent(name, 0, len(data), 4, 4, *times),))
        self.write(Replacement({TOPIC_ID: (ReplacedRange(0, 1, 5, (stretch,)),)}))

    def _leave(self) -> None:
        """Leave what no entry and no root names, and let the last entry permit a later format."""
        self.objects.put(names.data_name(13, "4c" * 16, "00" * 16), b"never committed")
        self.objects.put(names.part_name(15, "6b" * 16, "heads"), b"never finished")
        self.write(NewFormat(2))


def records_of(ledger: Ledger) -> dict[str, dict[str, str]]:
    """Return the values of a ledger's records, by partition and offset as text."""
    found: dict[str, dict[str, str]] = {}
    for topic_id, topic in ledger.state.topics.items():
        for partition, changes in ledger.changes(topic_id).items():
            there = found.setdefault(f"{topic.name}-{partition}", {})
            for change in changes:
                there.update(
                    (str(offset), value)
                    for offset, value in _records(ledger, change.stretch)
                    if change.start_offset <= offset < change.next_offset
                )
    return found


def _records(ledger: Ledger, stretch: Stretch) -> list[tuple[int, str]]:
    extents, base, found = stretch.placed, stretch.base_offset, list[tuple[int, str]]()
    if isinstance(extents, IndexRange):
        data = ledger.objects.get_range(extents.name, extents.position, extents.size_in_bytes)
        assert data is not None
        extents = unpack_index(data, extents)
    for extent in extents:
        data = ledger.objects.get_range(extent.name, extent.position, extent.size_in_bytes)
        assert data is not None
        records = decode_batches(data)
        assert len(records) == extent.records_count
        # In a segment offsets are final.
        first = base if extent.name.startswith(names.DATA) else 0
        found += [(first + one.offset, (one.value or b"").decode()) for one in records]
        base += extent.span
    return found


def stored(objects: MemoryObjects) -> dict[str, Any]:
    """Return all objects as JSON, as text where they are."""
    return {
        name: {"text": data.decode()} if data.isascii() else {"base64": base64.b64encode(data).decode()}
        for name, (data, _) in sorted(objects._objects.items())
    }  # fmt: skip


def restored(values: dict[str, Any]) -> MemoryObjects:
    """Return the objects that JSON has."""
    objects = MemoryObjects()
    for name, content in values.items():
        is_text = "text" in content
        data = content["text"].encode() if is_text else base64.b64decode(content["base64"])
        objects.put(name, data)
    return objects


def main() -> None:
    maker = Maker()
    maker.make()
    values = {"objects": stored(maker.place), "records": records_of(maker.ledger)}
    print(json.dumps(values, indent=1))


if __name__ == "__main__":
    main()
