"""Kafka's own DumpLogSegments finds no fault in logs that this package writes."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders
from tests.support.kafka import Kafka, by_directory
from tests.support.logs_for_kafka import (
    FORMATS,
    SMALL,
    a_cluster_of_all_codecs,
    codecs_of,
    segment_files,
)
from tests.support.reference import CODECS, Record, read_header, split_batches
from tests.support.store import store_of

pytestmark = pytest.mark.interop

_RECORD = re.compile(
    r"^\| offset: (\d+) \w+: (-?\d+) keySize: (-?\d+) valueSize: (-?\d+)"
    r"(?: .*?headerKeys: \[(.*?)\]| isValid: .*?\})(?: key: (.*?))?(?: payload: (.*))?$"
)


def as_dumped(record: Record) -> tuple[str, ...]:
    """Return the parts of a record that the tool prints."""
    key, value = record.key, record.value
    return (
        str(record.offset),
        str(record.timestamp),
        str(-1 if key is None else len(key)),
        str(-1 if value is None else len(value)),
        ",".join(name for name, _ in record.headers),
        (key or b"").decode(),
        (value or b"").decode(),
    )


def dumped(printed: str) -> list[tuple[str, ...]]:
    """Return the records that the tool prints of .log files, in their order."""
    return [
        tuple(part or "" for part in found.groups())
        for found in map(_RECORD.match, printed.splitlines())
        if found
    ]


def ensure_sound(kafka: Kafka, *directories: Path) -> dict[Path, str]:
    """Run every check of the tool on partitions, on all of them at once; return what it prints of their records."""
    files = [file for directory in directories for file in segment_files(directory)]
    told, faults = kafka.dump_log(files, "--print-data-log", "--deep-iteration")
    assert faults == []
    indexes = [file for file in files if file.suffix != ".log" and file.stat().st_size]
    assert {file.parent for file in indexes} == {*directories}, "nothing was checked"
    sanity, faults = kafka.dump_log(indexes, "--index-sanity-check")
    assert faults == []
    assert sanity.count("passed sanity check") == len(indexes)
    printed = by_directory(told)
    assert [*printed] == [*directories]
    assert all("isvalid: true" in text for text in printed.values())
    return printed


@pytest.fixture(scope="module")
def clusters(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[Cluster, list[list[Record]]]]:
    return {
        name: a_cluster_of_all_codecs(tmp_path_factory.mktemp(name), format_name=name)
        for name in FORMATS
    }


def partition_of(cluster: Cluster, number: int) -> Path:
    return store_of(cluster).metadata.cluster_file.log_dir(0).path / f"events-{number}"


@pytest.fixture(scope="module")
def printed(
    kafka: Kafka, clusters: dict[str, tuple[Cluster, list[list[Record]]]]
) -> dict[Path, str]:
    """What the tool prints of all partitions of all formats, which it is asked once."""
    directories = [
        partition_of(cluster, n) for cluster, held in clusters.values() for n in range(len(held))
    ]
    return ensure_sound(kafka, *directories)


@pytest.mark.parametrize(
    ("format_name", "compression"), [(name, codec) for name in FORMATS for codec in codecs_of(name)]
)
def test_logs_of_a_producer_have_no_fault(
    clusters: dict[str, tuple[Cluster, list[list[Record]]]],
    printed: dict[Path, str],
    format_name: str,
    compression: str,
) -> None:
    cluster, held = clusters[format_name]
    number = codecs_of(format_name).index(compression)
    directory = partition_of(cluster, number)
    assert len(list(directory.glob("*.log"))) > 2

    assert f"magic: {format_name[1]} compresscodec: {compression}" in printed[directory]
    assert dumped(printed[directory]) == [as_dumped(record) for record in held[number]]


_PRODUCER = re.compile(
    r"^producerId: .* lastSequence: (\d+) lastOffset: (\d+) .* timestamp: (\d+)$"
)


def test_snapshots_describe_the_last_batch_before_them(
    kafka: Kafka, clusters: dict[str, tuple[Cluster, list[list[Record]]]]
) -> None:
    cluster, _ = clusters["V2"]
    directory = partition_of(cluster, 0)
    snapshots = sorted(directory.glob("*.snapshot"))
    headers = {}
    for path in sorted(directory.glob("*.log")):
        header = read_header([*split_batches(path.read_bytes())][-1])
        headers[header.base_offset + header.last_offset_delta + 1] = header

    printed, faults = kafka.dump_log(snapshots)

    assert faults == []
    found = [
        tuple(map(int, one.groups())) for one in map(_PRODUCER.match, printed.splitlines()) if one
    ]
    assert len(found) == len(snapshots) > 2
    for path, (sequence, offset, timestamp) in zip(snapshots, found, strict=True):
        header = headers[int(path.stem)]
        assert offset == int(path.stem) - 1
        assert sequence == header.base_sequence + header.last_offset_delta
        assert timestamp == header.max_timestamp


@pytest.mark.parametrize("adopt_min_bytes", [0, 8 << 20], ids=["renamed", "copied"])
def test_logs_of_jobs_have_no_fault(kafka: Kafka, tmp_path: Path, adopt_min_bytes: int) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 1}, config=SMALL)
    expected = []
    for job, compression in enumerate(CODECS):
        rows = [builders.rows(n=40, headers=1, nulls=0.2, seed=10 * job + s) for s in range(8)]
        batches = [builders.encode(part, compression=compression) for part in rows]
        extents = builders.staged(
            cluster, {("events", 0): batches}, adopt_min_bytes=adopt_min_bytes
        )
        builders.commit(cluster, extents, adopt_min_bytes=adopt_min_bytes)
        for part in rows:
            expected += builders.to_records(part, len(expected))
    directory = partition_of(cluster, 0)
    assert len(list(directory.glob("*.log"))) > 2

    printed = ensure_sound(kafka, directory)[directory]

    assert dumped(printed) == [as_dumped(record) for record in expected]


def test_a_topic_with_append_times_has_no_fault(kafka: Kafka, tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, message_timestamp_type="LogAppendTime", segment_ms=40)
    cluster = builders.a_cluster(tmp_path, topics={"events": 1}, config=config)
    before = time.time_ns() // 1_000_000
    for number, codec_name in enumerate(CODECS):
        with cluster.producer(compression_type=codec_name) as producer:
            for _ in range(20):
                producer.send("events", b"%d" % number, timestamp=1)
                time.sleep(0.005)
    after = time.time_ns() // 1_000_000
    directory = partition_of(cluster, 0)
    assert len(list(directory.glob("*.log"))) > 2

    printed = ensure_sound(kafka, directory)[directory]

    times = [int(time_of) for _, time_of, *_ in dumped(printed)]
    assert len(times) == 20 * len(CODECS)
    assert before <= min(times) < max(times) <= after
    assert "LogAppendTime: " in printed
    assert "CreateTime" not in printed


def test_the_log_of_commits_has_no_fault(kafka: Kafka, tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 1})
    for seed in range(40):
        builders.write(cluster, {("events", 0): [builders.batch(seed=seed)]})

    ensure_sound(
        kafka, store_of(cluster).metadata.cluster_file.log_dir(0).path / "__transaction_state-0"
    )


def damage_a_value(files: Mapping[str, Path]) -> None:
    data = bytearray(files[".log"].read_bytes())
    data[-1] ^= 1
    files[".log"].write_bytes(data)


def damage_a_position(files: Mapping[str, Path]) -> None:
    data = bytearray(files[".index"].read_bytes())
    data[3] ^= 1
    files[".index"].write_bytes(data)


def damage_a_time(files: Mapping[str, Path]) -> None:
    data = bytearray(files[".timeindex"].read_bytes())
    data[7] ^= 1
    files[".timeindex"].write_bytes(data)


@pytest.mark.parametrize("damage", [damage_a_value, damage_a_position, damage_a_time])
def test_the_checks_find_faults(
    kafka: Kafka, tmp_path: Path, damage: Callable[[Mapping[str, Path]], None]
) -> None:
    log = builders.a_log(tmp_path, batches=20, config=TopicConfig(index_interval_bytes=600))
    files = segment_files(log.directory)
    assert kafka.dump_log(files, "--deep-iteration")[1] == []

    damage({file.suffix: file for file in files})

    assert kafka.dump_log(files, "--deep-iteration")[1] != []
