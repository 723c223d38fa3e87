"""Reads with a condition: the rows that the same reads leave after a filter, whatever is not read for it.

Wherever topics are, by every door, from batches of every kind; and how much less is asked for.
"""

from __future__ import annotations

import datetime
import itertools
import operator
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch import Cluster, TopicConfig
from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.columns.reading import Scan, pinned, pinned_where
from spark_kbatch.consumer.stream_planner import StreamPlanner
from spark_kbatch.model import TopicPartition
from spark_kbatch.opening.stores import open_for_reading
from spark_kbatch.options.read import parse_read_options, parse_stream_read_options
from spark_kbatch.record.header import LOG_APPEND_TIME
from tests.store.test_any_place import PLACES
from tests.support import draws, reference
from tests.support.broker_dirs import a_partition
from tests.support.bucket_objects import AllCounted, a_bucket, a_url
from tests.support.bytes_fetched import bytes_fetched
from tests.support.log_histories import TRANSACTIONAL, marker_batch
from tests.support.reference import Record
from tests.support.scripted_cluster import ScriptedCluster
from tests.support.store import reader_of

TOPIC = "events"
NAMES = ["partition", "offset", "timestamp", "key"]
DELETE_HORIZON = 0x40
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
CONDITIONS = 20  # for each log

# Partition, offset, time in us, key.
Row: TypeAlias = tuple[int, int, int, bytes | None]


class Condition(NamedTuple):
    """A condition as text, and what it is for a row: 1 for TRUE, 0 for FALSE, 0.5 for UNKNOWN."""

    text: str
    truth: Callable[[Row], float]


# Conditions.


SIGNS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _literal(chance: random.Random, column: int, rows: list[Row]) -> tuple[str, Any]:
    """Return a literal for a column of rows, near what the rows have, and its value."""
    known = chance.choice(rows)[column] if rows else 0
    if column == 3:
        key = known or b"k2"
        return f"'{key.decode()}'", key  # type: ignore[union-attr]
    assert isinstance(known, int)
    if column == 2:
        us = known + chance.choice([-1000, -1, 0, 0, 0, 1, 1000, 5000])
        return (
            f"TIMESTAMP '{EPOCH + datetime.timedelta(microseconds=us):%Y-%m-%d %H:%M:%S.%fZ}'",
            us,
        )
    number = known + chance.choice([-1, 0, 0, 1])
    return str(number), number


def _test(chance: random.Random, rows: list[Row]) -> Condition:
    column = chance.choice([0, 1, 1, 2, 2, 2, 2, 3])
    texts, values = zip(*(_literal(chance, column, rows) for _ in range(3)), strict=True)
    if chance.random() < 0.2:
        kept = {*values}
        text, found = f"{NAMES[column]} IN ({', '.join(texts)})", kept.__contains__
    else:
        sign = chance.choice([*SIGNS])
        compare = SIGNS[sign]
        text, found = f"{NAMES[column]} {sign} {texts[0]}", lambda one: compare(one, values[0])
    return Condition(text, lambda row: 0.5 if row[column] is None else float(found(row[column])))


def _condition(chance: random.Random, rows: list[Row], depth: int = 3) -> Condition:
    kind = chance.choice(["AND", "AND", "AND", "OR", "NOT", "test"]) if depth else "test"
    if kind == "test":
        return _test(chance, rows)
    if kind == "NOT":
        one = _condition(chance, rows, depth - 1)
        return Condition(f"NOT ({one.text})", lambda row: 1 - one.truth(row))
    both = [_condition(chance, rows, depth - 1) for _ in range(2)]
    join = min if kind == "AND" else max
    text = f" {kind} ".join(f"({one.text})" for one in both)
    return Condition(text, lambda row: join(one.truth(row) for one in both))


# Doors.


def _rows(batches: Iterator[pa.RecordBatch]) -> list[Row]:
    found = list[Row]()
    for batch in batches:
        times = batch.column("timestamp").cast(pa.int64())
        columns = [times if name == "timestamp" else batch.column(name) for name in NAMES]
        found += zip(*(one.to_pylist() for one in columns), strict=True)  # type: ignore[arg-type]
    return found


def by_read(cluster: Cluster, where: str | None, options: dict[str, str]) -> list[Row]:
    del options
    return _rows(iter(cluster.read(TOPIC, columns=NAMES, where=where)))


def by_batch(cluster: Cluster, where: str | None, given: dict[str, str]) -> list[Row]:
    texts = {"path": "/unused", "subscribe": TOPIC, **given} | ({"where": where} if where else {})
    options = parse_read_options(texts)
    columns = pinned(options.values)
    scan = Scan(NAMES, columns, pinned_where(options.where, columns))
    typed, chosen = scan.decoders()
    reader, action = reader_of(cluster), uuid.uuid4().hex
    found = list[Row]()
    for task in reader.plan(options, scan.condition):
        found += _rows(reader.read_task(task, NAMES, options, action, typed, chosen))
    return sorted(found)


def by_stream(cluster: Cluster, where: str | None, given: dict[str, str]) -> list[Row]:
    texts = {"path": "/unused", "subscribe": TOPIC, "startingOffsets": "earliest", **given}
    options = parse_stream_read_options(texts | ({"where": where} if where else {}))
    columns = pinned(options.values)
    scan = Scan(NAMES, columns, pinned_where(options.where, columns))
    typed, chosen = scan.decoders()
    reader = reader_of(cluster)
    planner = StreamPlanner(options, lambda: reader.source, lambda: 0)
    start, found = planner.initial(), list[Row]()
    while (end := planner.latest(start)) != start:
        for task in planner.plan(start, end, scan.condition):
            found += _rows(reader.read_stream_task(task, NAMES, options, typed, chosen))
        start = end
    return sorted(found)


DOORS = {
    by_read: [{}],
    by_batch: [{}, {"minPartitions": "5"}, {"maxRecordsPerPartition": "3", "shareTasks": "false"}],
    by_stream: [{}, {"maxOffsetsPerTrigger": "7"}, {"minPartitions": "4"}],
}


def compare(cluster: Cluster, chance: random.Random) -> int:
    """Compare reads with a condition with those without one; return how many rows were left out."""
    known = {
        (door, number): door(cluster, None, given)
        for door, choices in DOORS.items()
        for number, given in enumerate(choices)
    }
    of_all, left_out = known[by_read, 0], 0
    assert of_all
    for _ in range(CONDITIONS):
        condition = _condition(chance, of_all)
        for door, choices in DOORS.items():
            number = chance.randrange(len(choices))
            expected = [row for row in known[door, number] if condition.truth(row) == 1]
            assert door(cluster, condition.text, choices[number]) == expected, condition.text
            left_out += len(known[door, number]) - len(expected)
    return left_out


def _opened(address: Any) -> Cluster:
    return open_for_reading(str(address))


# Places that are written to.


# Place, and settings of its topic: small segments, or other times than those of producers.
APPENDS = {"message.timestamp.type": "LogAppendTime"}
FILLED: list[tuple[str, Any]] = [
    *((place, None) for place in PLACES if place != "folder"),
    *((place, APPENDS) for place in ("folder", "real cluster")),
    ("folder", TopicConfig(segment_bytes=1000)),
]


def _fill(cluster: Cluster, chance: random.Random, config: Any) -> None:
    cluster.create_topic(TOPIC, 3, config=config)
    for _ in range(8):
        compression = chance.choice(["none", "zstd"])
        with cluster.producer(compression_type=compression) as producer:
            for _ in range(chance.randrange(1, 6)):
                producer.send(
                    TOPIC, b"v" * chance.randrange(300),
                    key=chance.choice([None, "k1", "k2", "k3"]),
                    partition=chance.randrange(3), timestamp=chance.randrange(60),
                )  # fmt: skip
    for number, end in enumerate(chance.randrange(4) for _ in range(3)):
        held = cluster.list_offsets({(TOPIC, number): "latest"})[TopicPartition(TOPIC, number)]
        assert held is not None
        cluster.delete_records({(TOPIC, number): min(end, held.offset)})


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in draws.seeds(6, after=1))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("place", "config"), FILLED)
def test_reads_with_a_condition_have_the_rows_that_a_filter_leaves(
    tmp_path: Path, place: str, config: Any, seed: int
) -> None:
    chance = random.Random(seed)
    with PLACES[place](tmp_path) as cluster:
        _fill(cluster, chance, config)
        assert compare(cluster, chance) > 0


# Batches of every kind, which brokers have.


def _batches(chance: random.Random, kind: str, first: int, count: int) -> list[bytes]:
    """Return batches of one kind, with so many records from an offset on, and perhaps a marker."""
    codec = chance.choice([0, 0, 1, 3])
    times = [-1 if kind == "no times" else chance.randrange(60) for _ in range(count)]
    records = [
        Record(first + n, time, chance.choice([None, b"k1", b"k2"]), b"v%d" % n)
        for n, time in enumerate(times)
    ]
    append_ms = chance.randrange(60)
    match kind:
        case "V0" | "V1":
            magic = int(kind[1])
            return [reference.encode_messages(records, magic=magic, codec=codec)]
        case "V1 with times of appends":
            return [reference.encode_messages(records, magic=1, codec=codec, log_append_time=append_ms)]  # fmt: skip
        case "times of appends":
            data = bytearray(reference.encode_batch(records, base_offset=first, codec=codec))
            data[22] |= LOG_APPEND_TIME
            data[35:43] = append_ms.to_bytes(8)
            return [reference.with_crc(bytes(data))]
        case "compacted, with a delete horizon":
            horizon = chance.choice([0, 100, 2**40])
            kept = [one for one in records if chance.random() < 0.6]
            body = b"".join(
                reference.encode_record(one, base_offset=first, base_timestamp=horizon)
                for one in kept
            )
            max_ms = max((one.timestamp for one in kept), default=-1)
            return [reference.frame_batch(
                body, base_offset=first, attributes=DELETE_HORIZON, base_timestamp=horizon,
                last_offset_delta=len(records) - 1, max_timestamp=max_ms, records_count=len(kept),
            )]  # fmt: skip
        case "transaction":
            data = reference.encode_batch(
                records, base_offset=first, producer_id=first, producer_epoch=0, base_sequence=0,
                attributes_extra=TRANSACTIONAL,
            )  # fmt: skip
            end = first + len(records)
            abort = chance.random() < 0.5
            return [data, marker_batch(base_offset=end, producer_id=first, abort=abort)]
        case _:
            return [reference.encode_batch(records, base_offset=first, codec=codec)]


KINDS = (
    "V0", "V1", "V1 with times of appends", "V2", "no times", "times of appends",
    "compacted, with a delete horizon", "transaction",
)  # fmt: skip


def any_log(chance: random.Random) -> dict[int, list[bytes]]:
    """Return batches by the offset at which they begin: of each kind, and more."""
    found, first = dict[int, list[bytes]](), chance.choice([0, 7])
    for kind in [*KINDS, *chance.choices(KINDS, k=6)][:: chance.choice([1, -1])]:
        count = chance.randrange(1, 5)
        found[first] = _batches(chance, kind, first, count)
        first += count + (kind == "transaction")
    return found


@contextmanager
def in_a_log_dir(
    path: Path, held: dict[int, list[bytes]], chance: random.Random
) -> Iterator[Cluster]:
    """Put batches into segments of a broker's log dir; the topic has an id, or none."""
    segments: dict[int, list[bytes]] = {}
    for first, batches in held.items():
        if not segments or chance.random() < 0.3:
            segments[first] = []
        [*segments.values()][-1].extend(batches)
    folder = a_partition(path / "logs" / f"{TOPIC}-0", segments, index=False)
    if chance.random() < 0.3:
        (folder / "partition.metadata").unlink()
    with _opened(path / "logs") as cluster:
        yield cluster


@contextmanager
def on_a_broker(
    path: Path, held: dict[int, list[bytes]], chance: random.Random
) -> Iterator[Cluster]:
    """Serve batches as a broker that does not look behind the segment of a time, or does."""
    del path
    with ScriptedCluster([*itertools.chain(*held.values())]) as cluster:
        cluster.log_start = min(held)
        with spark_kbatch.open(",".join(cluster.options().bootstrap_servers)) as client:
            rows = by_read(client, None, {})
            if chance.random() < 0.5:
                cluster.offset_by_time = lambda ms: next(
                    (offset for _, offset, us, _ in rows if us >= 1000 * ms), -1
                )
            yield client


@pytest.mark.parametrize("seed", [*SEEDS, 101, 102])
@pytest.mark.parametrize("place", [in_a_log_dir, on_a_broker], ids=["log dir", "broker"])
def test_batches_of_every_kind_have_the_rows_that_a_filter_leaves(
    tmp_path: Path, place: Any, seed: int
) -> None:
    chance = random.Random(seed)
    with place(tmp_path, any_log(chance), chance) as cluster:
        assert compare(cluster, chance) > 0


# What is not read.


def _sent(cluster: Cluster, count: int, *, partitions: int = 1) -> None:
    """Write records, each as a batch of its own, with its number for time in ms and for key."""
    cluster.create_topic(TOPIC, partitions)
    with cluster.producer(batch_size=1) as producer:
        for n in range(count):
            producer.send(
                TOPIC, b"v" * 1000, key=f"k{n}", partition=n % partitions, timestamp=n
            ).result()


LATE = "timestamp >= TIMESTAMP '1970-01-01 00:00:00.095Z'"


@pytest.mark.parametrize("door", DOORS)
def test_a_log_is_read_where_records_can_match(tmp_path: Path, door: Any) -> None:
    with PLACES["folder"](tmp_path) as cluster, bytes_fetched() as sizes:
        _sent(cluster, 100, partitions=2)

        def fetched(where: str | None) -> tuple[int, float]:
            sizes.clear()
            return len(door(cluster, where, {})), sum(sizes) / 1000

        assert fetched(None) == (100, pytest.approx(107, abs=5))
        assert fetched("partition = 1 AND key <> 'k1'") == (49, pytest.approx(53, abs=3))
        assert fetched("topic = 'others' OR partition = 2") == (0, 0)
        assert fetched("offset < 0") == (0, 0)
        rows, kilobytes = fetched("partition = 0 AND offset >= 45")
        assert rows == 5
        assert kilobytes < 15  # the distance of index entries
        rows, kilobytes = fetched(LATE)
        assert rows == 5
        assert kilobytes < 25 or door is by_stream  # which looks up no time


def test_a_bucket_is_asked_for_objects_that_can_have_rows() -> None:
    objects = AllCounted()
    cluster = a_bucket(objects)
    _sent(cluster, 20)  # so few that their objects stay as they are
    late = "timestamp >= TIMESTAMP '1970-01-01 00:00:00.017Z'"

    def gets(where: str | None) -> tuple[int, int]:
        with spark_kbatch.open(a_url(objects)) as again:  # which remembers no object
            objects.taken()
            rows, asked = len(by_read(again, where, {})), objects.taken()
            return rows, asked.get("get data", 0) + asked.get("get segments", 0)

    assert gets(None) == (20, 20)
    assert gets(late) == (3, 3)
    assert gets(f"{late} AND offset < 19") == (2, 2)
    assert gets("partition = 3") == gets("timestamp > TIMESTAMP '2001-01-01 00:00:00Z'") == (0, 0)
    maintenance = Maintenance(cluster._store.address)
    maintenance.merge(maintenance.runs(run_extents=2))
    assert gets(late) == (3, 1)


def test_a_broker_is_asked_for_what_its_answer_leaves() -> None:
    batches = [
        reference.encode_batch([Record(n, n, b"k%d" % n, b"v")], base_offset=n) for n in range(100)
    ]
    with (
        ScriptedCluster(batches) as broker,
        spark_kbatch.open(",".join(broker.options().bootstrap_servers)) as cluster,
    ):

        def fetches(where: str) -> tuple[int, int]:
            before = len(broker.fetches)
            rows = len(by_read(cluster, where, {}))
            return rows, len({one.offset for one in broker.fetches[before:]})

        assert fetches(LATE) == (5, 100)  # no answer proves nothing
        broker.offset_by_time = lambda ms: max(ms - 10, 0)
        assert fetches(LATE) == (5, 15)
        assert fetches("partition = 1") == fetches("offset >= 100") == (0, 0)
        assert fetches("offset IN (50, 52)") == (2, 3)
