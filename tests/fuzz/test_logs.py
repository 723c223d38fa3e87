"""With any file of a log damaged, reads return what was written, or raise."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from spark_kbatch.errors import KBatchError
from spark_kbatch.files import Files
from spark_kbatch.log import state as log_state
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.model import ReadRange
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.record import codec
from tests.support import builders
from tests.support.fuzz_rounds import for_each_round, mutated
from tests.support.reference import Record

CONFIG = TopicConfig(segment_bytes=2_000, index_interval_bytes=300)
BATCHES = [builders.batch(n=1 + seed % 3, seed=seed, value_bytes=40) for seed in range(40)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait before a slot is read again: no one writes to it meanwhile."""
    monkeypatch.setattr(log_state, "_PAUSE_S", 0.0)


def a_log(directory: Path) -> tuple[PartitionLog, list[Record]]:
    log = builders.a_log(directory, batches=0, config=CONFIG)
    for data in BATCHES:
        builders.append(log, data)
    # The log sets leader epochs; the rest of a batch is unchanged.
    return log, builders.records_of(BATCHES)


def read_on(log: PartitionLog, offset: int) -> list[Record]:
    """Read from `offset` to the end, one segment at a time."""
    state, found = log.state(), []
    while offset < state.high_watermark:
        read = log.read(state, ReadRange(offset, max_bytes=1_000))
        rows = codec.decode_batches(
            read.data,
            read.batches,
            columns=codec.RECORD_SCHEMA.names,
            start_offset=offset,
            max_bytes=1 << 20,
        )
        found += [record for batch in rows for record in builders.as_read(batch)]
        offset = read.batches[-1][1].next_offset
    return found


@pytest.mark.parametrize("end", [".log", ".index", ".timeindex", "leader-epoch-checkpoint", "kbatch.state"])  # fmt: skip
def test_a_damaged_file_never_changes_what_is_read(tmp_path: Path, end: str) -> None:
    log, written = a_log(tmp_path)
    paths = [path for path in sorted(log.directory.iterdir()) if path.name.endswith(end)]

    def one(rng: random.Random) -> None:
        path = rng.choice(paths)
        sound = path.read_bytes()
        path.write_bytes(mutated(rng, sound))
        reader = PartitionLog(Files(), log.directory, log.topic_partition, CONFIG)
        offset = rng.randrange(len(written))
        try:
            found = read_on(reader, offset)
        except KBatchError:
            assert end not in (".index", ".timeindex")
            return
        finally:
            path.write_bytes(sound)
        # With the newest state damaged, the one before it counts, which has one batch less.
        missing = len(written) - offset - len(found) if end == "kbatch.state" else 0
        assert found == written[offset : len(written) - missing]
        assert missing <= 3

    for_each_round(f"logs-{end}", one)
    assert read_on(log, 0) == written
