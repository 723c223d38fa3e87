"""Logs written by this package, with everything that a log may hold, for Kafka to read."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

from spark_kbatch import Cluster
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders
from tests.support.reference import CODECS, Record

SEGMENT_FILES = (".log", ".index", ".timeindex")
# Small, so that a log of a few hundred KiB has several segments and many index entries.
SMALL = TopicConfig(segment_bytes=20_000, index_interval_bytes=600)


def odd_records(n: int, *, seed: int = 0) -> list[Record]:
    """Return records with times out of order, nulls, empty values, and headers; all bytes are text."""
    rng = random.Random(seed)

    def maybe(text: bytes) -> bytes | None:
        return rng.choice([None, b"", text, text, text, text])

    return [
        Record(
            offset,
            builders.FIRST_TIMESTAMP_MS + rng.randint(-50_000, 50_000) + offset * 100,
            maybe(b"key %d" % rng.randint(0, 99)),
            maybe(b"value %d " % offset + rng.randbytes(rng.randint(0, 75)).hex().encode()),
            tuple((rng.choice(["", "a", "b"]), maybe(b"h")) for _ in range(rng.randint(0, 2))),
        )
        for offset in range(n)
    ]


def produce(
    cluster: Cluster, topic: str, records: Sequence[Record], *, partition: int = 0, codec: str
) -> None:
    """Write records with a producer in plain Python."""
    with cluster.producer(compression_type=codec, batch_size=3000, linger_ms=5) as producer:
        futures = [
            producer.send(
                topic,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp=record.timestamp,
                partition=partition,
            )
            for record in records
        ]
    assert [future.result().offset for future in futures] == [r.offset for r in records]


def segment_files(directory: Path) -> list[Path]:
    """Return the files of a partition, segment by segment."""
    return sorted(path for path in directory.iterdir() if path.suffix in SEGMENT_FILES)


# Named by the broker version that wrote them: batches, and messages of the two formats before.
FORMATS = {"V2": "3.0", "V1": "0.10.2", "V0": "0.9.0"}


def codecs_of(format_name: str) -> list[str]:
    """Return the codecs that a format supports."""
    return [codec for codec in CODECS if format_name == "V2" or codec != "zstd"]


def a_cluster_of_all_codecs(
    folder: Path, *, n: int = 1500, format_name: str = "V2"
) -> tuple[Cluster, list[list[Record]]]:
    """Create topic `events` with a partition per codec, in many segments; return each partition's records."""
    config = dataclasses.replace(SMALL, message_format_version=FORMATS[format_name])
    codecs = codecs_of(format_name)
    cluster = builders.a_cluster(folder, topics={"events": len(codecs)}, config=config)
    held = []
    for partition, codec in enumerate(codecs):
        records = odd_records(n, seed=partition)
        if format_name != "V2":
            records = [record._replace(headers=()) for record in records]
        produce(cluster, "events", records, partition=partition, codec=codec)
        if format_name == "V0":
            records = [record._replace(timestamp=-1) for record in records]
        held.append(records)
    return cluster, held
