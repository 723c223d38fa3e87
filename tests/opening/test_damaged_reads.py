"""Reads of a log with a damaged batch: the records before it, an error that says where to go on, and the rest."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.log.contents import DumpedBatch, batches
from tests.support.small_disk import kbatch

Damage = Callable[[bytearray, list[int]], None]

BATCHES, EACH = 10, 7  # of records
END = BATCHES * EACH


def flip(at: int, *, in_batch: int) -> Damage:
    def damage(data: bytearray, positions: list[int]) -> None:
        data[positions[in_batch] + at] ^= 0x10

    return damage


def flip_to_60(data: bytearray, positions: list[int]) -> None:
    data[positions[4] + 7] = 60  # an offset that another batch has, and that no CRC covers


def flip_two(data: bytearray, positions: list[int]) -> None:
    for number in (4, 5):
        data[positions[number] + 90] ^= 1


def zero_pages(data: bytearray, positions: list[int]) -> None:
    data[positions[3] + 20 : positions[6] + 20] = bytes(positions[6] - positions[3])


# What is damaged, and the first batch that is and the next that is not.
DAMAGE: dict[str, tuple[Damage, int, int]] = {
    "a record": (flip(90, in_batch=4), 4, 5),
    "the length": (flip(9, in_batch=4), 4, 5),
    "the length, a little": (flip(11, in_batch=4), 4, 5),
    "the magic byte": (flip(16, in_batch=4), 4, 5),
    "the base offset": (flip(7, in_batch=4), 4, 5),
    "the last offset": (flip(26, in_batch=4), 4, 5),
    "the count": (flip(60, in_batch=4), 4, 5),
    "the first batch": (flip(9, in_batch=0), 0, 1),
    "a record of the first batch": (flip(90, in_batch=0), 0, 1),
    "the offset, upwards": (flip_to_60, 4, 5),
    "the last offset of the last batch": (flip(26, in_batch=BATCHES - 1), BATCHES - 1, BATCHES),
    "the last batch": (flip(9, in_batch=BATCHES - 1), BATCHES - 1, BATCHES),
    "a record of the last batch": (flip(90, in_batch=BATCHES - 1), BATCHES - 1, BATCHES),
    "two batches": (flip_two, 4, 6),
    "pages of zeros": (zero_pages, 3, 7),
}


def a_damaged_cluster(path: Path, damage: Damage, *, index_interval_bytes: int = 4096) -> Cluster:
    """Return a cluster whose topic `events` has batches of random values, damaged in this way."""
    cluster = spark_kbatch.open(path, create=True)
    config = {"index.interval.bytes": index_interval_bytes}
    cluster.create_topic("events", config=config)
    with cluster.producer(linger_ms=60_000) as producer:
        for number in range(BATCHES):
            for _ in range(EACH):
                producer.send("events", value=f"value {number}")
            producer.flush()
    log = path / "broker-0/events-0/00000000000000000000.log"
    positions = [one.position for one in batches(Files(), log) if isinstance(one, DumpedBatch)]
    assert len(positions) == BATCHES
    data = bytearray(log.read_bytes())
    damage(data, positions)
    log.write_bytes(data)
    return cluster


def taken(reader: pa.RecordBatchReader) -> tuple[list[int], CorruptRecordError | None]:
    """Return the offsets of the rows that a read gives, and the error that ends it."""
    offsets: list[int] = []
    try:
        for batch in reader:
            offsets += batch.column("offset").to_pylist()
    except CorruptRecordError as error:
        return offsets, error
    return offsets, None


@pytest.mark.parametrize("interval", [0, 200, 4096])
@pytest.mark.parametrize("case", DAMAGE)
def test_a_read_gives_what_precedes_damage_and_says_where_to_go_on(
    tmp_path: Path, case: str, interval: int
) -> None:
    damage, first, following = DAMAGE[case]
    cluster = a_damaged_cluster(tmp_path / "cluster", damage, index_interval_bytes=interval)
    for columns in (["offset", "value"], ["offset", "headers", "key"]):
        offsets, error = taken(cluster.read("events", columns=columns))
        assert offsets == list(range(first * EACH))
        assert error is not None
        assert (error.offset, error.next_offset) == (first * EACH, following * EACH)
        assert str(error).endswith(
            f"; offsets {first * EACH} to {following * EACH - 1} of events-0 are damaged; go on with "
            f"start={{0: {following * EACH}}}"
        )
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        rest = taken(cluster.read("events", start={0: error.next_offset}, columns=columns))
        assert rest == (list(range(following * EACH, END)), None)


@pytest.mark.parametrize("case", DAMAGE)
def test_a_read_of_a_brokers_log_does_too(tmp_path: Path, case: str) -> None:
    damage, first, following = DAMAGE[case]
    a_damaged_cluster(tmp_path / "cluster", damage)
    shutil.copytree(tmp_path / "cluster/broker-0/events-0", tmp_path / "logs/events-0")
    for name in ("kbatch.state", "kbatch.producers"):
        (tmp_path / "logs/events-0" / name).unlink(missing_ok=True)
    logs = spark_kbatch.open(tmp_path / "logs")
    end = logs.describe("events")[0].offsets.high_watermark
    offsets, error = taken(logs.read("events"))
    assert offsets == list(range(len(offsets)))
    if error is None:  # A broker ends a log at damage that nothing sound follows.
        assert len(offsets) == end == first * EACH
        return
    # Where only its offset tells that a batch is wrong, it may be the one before.
    assert first - 1 <= len(offsets) / EACH <= first
    assert (error.offset, error.next_offset) == (len(offsets), following * EACH)
    rest = taken(logs.read("events", start={0: error.next_offset}))
    assert rest == (list(range(following * EACH, END)), None)


@pytest.mark.parametrize("case", ["a record", "the length", "pages of zeros"])
def test_consume_prints_what_precedes_damage_and_the_option_to_go_on(
    tmp_path: Path, case: str
) -> None:
    damage, first, following = DAMAGE[case]
    a_damaged_cluster(tmp_path / "cluster", damage)
    done = kbatch("consume", tmp_path / "cluster", "events", "--format", "%o %S\\n")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [f"{offset} 7" for offset in range(first * EACH)]
    words = done.stderr.rstrip()
    assert words.endswith(f"are damaged; go on with --start {following * EACH}")
    rest = kbatch(
        "consume", tmp_path / "cluster", "events", *words.split()[-2:], "--format", "%o %S\\n"
    )
    assert rest.stdout.splitlines() == [f"{n} 7" for n in range(following * EACH, END)]
