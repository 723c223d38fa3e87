"""Lost or damaged derived files do not stop a writer, and no damage ends in an unexplained error."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_kbatch.errors import KBatchError
from spark_kbatch.files import Files
from spark_kbatch.log import retention
from spark_kbatch.log import state as log_state
from spark_kbatch.log.append import LogAppender, append_as_follower
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.repair import LogRepair
from spark_kbatch.log.segment import segment_at
from spark_kbatch.log.truncation import truncate_to
from spark_kbatch.model import MAX_TIMESTAMP, IsolationLevel, ReadRange
from spark_kbatch.options.topic import TopicConfig
from tests.log.test_partition_log import read_all
from tests.log.test_producer_state import PARTITION, Sent, append_to
from tests.log.test_producers import append_data
from tests.support import builders, draws
from tests.support.log_histories import data_batch, marker_batch
from tests.support.soundness import ensure_sound

CONFIG = TopicConfig(
    segment_bytes=1200, index_interval_bytes=100, retention_ms=10**12, file_delete_delay_ms=0
)
FIRST_MS = builders.FIRST_TIMESTAMP_MS
HIGH_BYTES = (
    0,
    8,
    16,
    21,
    23,
    27,
    35,
    43,
    51,
    53,
    57,
)  # the first byte of each of a header's fields


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """No one is writing, so an invalid slot stays invalid."""
    monkeypatch.setattr(log_state, "_PAUSE_S", 0)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> PartitionLog:
    """Four segments: batches with and without a producer id, and an aborted transaction."""
    log = builders.a_log(tmp_path_factory.mktemp("written"), batches=0, config=CONFIG)
    for sequence in range(26):
        append_to(log, Sent(3, 0, sequence, 1))
        if sequence % 2:
            append_data(log, data_batch(base_offset=0))
    abort_one(log)
    return log


def abort_one(log: PartitionLog) -> None:
    append_data(log, data_batch(base_offset=0, producer_id=1, transactional=True))
    append_data(log, marker_batch(base_offset=0, producer_id=1, abort=True))


def copied(written: PartitionLog, directory: Path) -> PartitionLog:
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(written.directory, directory)
    return PartitionLog(Files(), directory, PARTITION, CONFIG)


# Each derived file, damaged in each way, under each kind of write.

DERIVED = {
    "index": lambda base: f"{base:020d}.index",
    "timeindex": lambda base: f"{base:020d}.timeindex",
    "txnindex": lambda base: f"{base:020d}.txnindex",
    "snapshot": lambda base: f"{base:020d}.snapshot",
    "epochs": lambda base: "leader-epoch-checkpoint",
    "overwritten": lambda base: "kbatch.overwritten",
}
DAMAGE: dict[str, Callable[[bytes], bytes] | None] = {
    "missing": None,
    "empty": lambda data: b"",
    "short": lambda data: data[: len(data) * 2 // 3],
    "over-long": lambda data: data + b"\x80" * 50,
    "garbage": lambda data: random.Random(7).randbytes(len(data)),
}


@pytest.mark.parametrize("appends", [1, 5, 40], ids=["one append", "index entries", "rolls"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("name_of", DERIVED.values(), ids=DERIVED.keys())
def test_a_damaged_derived_file_stops_no_append(
    written: PartitionLog,
    tmp_path: Path,
    name_of: Callable[[int], str],
    damage: Callable[[bytes], bytes] | None,
    appends: int,
) -> None:
    log = copied(written, tmp_path / "copy")
    state = log.state()
    path = log.directory / name_of(state.segment_base_offset)
    data = path.read_bytes() if path.exists() else b"[[0, 1, 2, 3]]"
    path.unlink(missing_ok=True)
    if damage is not None:
        path.write_bytes(damage(data))
    for number in range(appends):
        append_data(log, data_batch(base_offset=0))
        append_to(log, Sent(9, 0, number, 1))
    abort_one(log)
    fresh = PartitionLog(Files(), log.directory, PARTITION, CONFIG)
    assert len(read_all(fresh)) == state.log_end_offset + 2 * appends + 2
    assert append_to(fresh, Sent(9, 0, appends - 1, 1))[0] == "duplicate"
    assert append_to(fresh, Sent(3, 0, 26, 1))[0] == "appended"


@pytest.mark.parametrize("kind", ["offset_index", "time_index"])
@pytest.mark.parametrize("damage", ["missing", "empty", "short"])
def test_an_append_rebuilds_a_short_index(
    written: PartitionLog, tmp_path: Path, kind: str, damage: str
) -> None:
    log = copied(written, tmp_path / "copy")
    state = log.state()
    append_data(log, data_batch(base_offset=0))
    path = getattr(segment_at(log.directory, state.segment_base_offset), kind)
    change = DAMAGE[damage]
    path.unlink() if change is None else path.write_bytes(change(path.read_bytes()))
    # Without discarding what a dead writer left, as when a commit is rolled forward.
    appender = LogAppender(log, log.state(), now_ms=FIRST_MS)
    while appender.finish(flush=False).index_size <= state.index_size:
        appender.append(bytearray(data_batch(base_offset=0, leader_epoch=0)))
    assert appender.segment_base_offset == state.segment_base_offset
    log.write_state(appender.finish(flush=False), flush=False)
    ensure_sound(log)


def test_an_index_is_rebuilt_up_to_a_damaged_batch(written: PartitionLog, tmp_path: Path) -> None:
    log = copied(written, tmp_path / "copy")
    base = log.state().segment_base_offset
    segment = segment_at(log.directory, base)
    data = bytearray(segment.log.read_bytes())
    last = [position for position, _ in log.batch_headers(base, 0, len(data))][-1]
    data[last] ^= 0x80
    segment.log.write_bytes(data)
    segment.time_index.unlink()
    append_data(log, data_batch(base_offset=0))
    for _ in range(30):
        append_data(log, data_batch(base_offset=0))
    assert segment.time_index.exists()


def test_damaged_times_do_not_keep_a_segment_from_retention(
    written: PartitionLog, tmp_path: Path
) -> None:
    log = copied(written, tmp_path / "copy")
    base = log.segments.bases(log.state())[0]
    path = segment_at(log.directory, base).time_index
    path.write_bytes(b"\x7f" * len(path.read_bytes()))
    done = retention.delete_old_segments(log, log.state(), FIRST_MS + 10**12 + 10_000)
    assert base in done.segments


# Any damage, anywhere.


def damage_something(directory: Path, chance: random.Random) -> str:
    """Damage one file; return how."""
    paths = sorted(directory.iterdir())
    logs = [path for path in paths if path.suffix == ".log"]
    path = chance.choice(logs if chance.random() < 0.5 else paths)
    data = bytearray(path.read_bytes())
    kind = chance.choice(["flip", "flip", "field", *DAMAGE])
    if kind == "missing":
        path.unlink()
    elif kind == "flip" and data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
    elif kind == "field" and path.suffix == ".log":
        positions = [0]
        while (at := positions[-1]) + 12 <= len(data):
            positions.append(at + 12 + int.from_bytes(data[at + 8 : at + 12], "big"))
        at = chance.choice(positions[:-1] or [0]) + chance.choice(HIGH_BYTES)
        if at < len(data):
            data[at] ^= chance.choice([0x80, 0x7F, 0xFF])
            path.write_bytes(data)
    elif change := DAMAGE.get(kind):
        path.write_bytes(change(bytes(data)))
    return f"{kind} {path.name}"


def repair(log: PartitionLog) -> None:
    LogRepair(log, dry_run=False).run("nyBBbFDuTeu_f1pLaD4Tcg", None)


def look(log: PartitionLog) -> None:
    LogRepair(log, dry_run=True).run("nyBBbFDuTeu_f1pLaD4Tcg", None)


def read(log: PartitionLog) -> None:
    state = log.state()
    for isolation in IsolationLevel:
        offset = state.log_start_offset
        while offset < state.high_watermark:
            found = log.read(state, ReadRange(offset, max_bytes=300, isolation=isolation)).batches
            offset = found[-1][1].next_offset if found else state.high_watermark


def look_up_times(log: PartitionLog) -> None:
    state = log.state()
    for time in (-(2**62), FIRST_MS, FIRST_MS + 30, 2**62, MAX_TIMESTAMP):
        log.offset_for_timestamp(state, time, end_offset=state.high_watermark)


def plan(log: PartitionLog) -> None:
    state = log.state()
    log.split_points(state, 0, state.high_watermark, piece_bytes=200)


def append(log: PartitionLog) -> None:
    for number in range(20):
        append_data(log, data_batch(base_offset=0))
        append_to(log, Sent(9, 0, number, 1))


def expire(log: PartitionLog) -> None:
    retention.delete_old_segments(log, log.state(), FIRST_MS + 10**12 + 20)


def delete(log: PartitionLog) -> None:
    retention.delete_records(log, log.state(), 20, FIRST_MS)


def truncate(log: PartitionLog) -> None:
    truncate_to(log, log.state(), 23, now_ms=FIRST_MS)


def follow(log: PartitionLog) -> None:
    state = log.state()
    append_as_follower(
        log, state, data_batch(base_offset=state.log_end_offset),
        high_watermark=10**6, flush=False, now_ms=FIRST_MS,
    ).show()  # fmt: skip


WAYS = (
    repair,
    look,
    read,
    look_up_times,
    plan,
    append,
    abort_one,
    expire,
    delete,
    truncate,
    follow,
)


@pytest.mark.parametrize("rounds", [150, pytest.param(draws.many(400), marks=pytest.mark.slow)], ids=["some", "many"])  # fmt: skip
def test_damaged_bytes_end_in_an_error_that_names_them_or_in_none(
    written: PartitionLog, tmp_path: Path, rounds: int
) -> None:
    chance = random.Random(rounds)
    for number in range(rounds):
        directory = copied(written, tmp_path / "copy").directory
        done = [damage_something(directory, chance) for _ in range(chance.choice([1, 1, 2]))]
        for way in chance.sample(WAYS, 3):
            done.append(way.__name__)
            try:
                with contextlib.suppress(KBatchError):
                    way(PartitionLog(Files(), directory, PARTITION, CONFIG))
            except Exception as error:
                raise AssertionError(f"round {number}: {', '.join(done)}") from error
