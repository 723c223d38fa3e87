"""With any file of a broker's log dir damaged, reads return only what was written, or raise."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from spark_kbatch.errors import KBatchError
from spark_kbatch.opening.stores import open_for_reading
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders
from tests.support.fuzz_rounds import ROUNDS, for_each_round, mutated
from tests.support.reference import Record


def read_all(path: Path) -> list[Record]:
    return builders.read_records(open_for_reading(str(path)), "events")


def is_within(found: list[Record], written: list[Record]) -> bool:
    """True if `found` is a subset of `written`, except for offsets, which no CRC covers."""
    rest = iter([record._replace(offset=0) for record in written])
    return all(record._replace(offset=0) in rest for record in found)


@pytest.mark.parametrize("end", [".log", ".index", ".timeindex", "checkpoint", ".metadata"])
def test_a_damaged_file_of_a_broker_never_makes_up_records(tmp_path: Path, end: str) -> None:
    config = TopicConfig(segment_bytes=2_000, index_interval_bytes=300)
    cluster = builders.a_cluster(tmp_path, config=config)
    batches = [builders.batch(n=1 + seed % 3, seed=seed, value_bytes=40) for seed in range(25)]
    builders.write(cluster, {("events", 0): batches})
    log_dir = tmp_path / "kafka-logs"
    shutil.copytree(cluster.path / "broker-0", log_dir)
    for state in log_dir.glob("*/kbatch.state"):
        state.unlink()
    (log_dir / "log-start-offset-checkpoint").write_text("0\n1\nevents 0 3\n")
    (log_dir / "recovery-point-offset-checkpoint").write_text("0\n1\nevents 0 20\n")
    written = builders.records_of(batches)
    assert read_all(log_dir) == written[3:]
    paths = [
        path for path in sorted(log_dir.rglob("*"))
        if path.name.endswith(end) and "__transaction" not in str(path)
    ]  # fmt: skip
    is_hint = end in (".index", ".timeindex")
    refused = 0

    def one(rng: random.Random) -> None:
        nonlocal refused
        path = rng.choice(paths)
        sound = path.read_bytes()
        path.write_bytes(mutated(rng, sound))
        try:
            found = read_all(log_dir)
        except KBatchError:
            assert not is_hint
            refused += 1
            return
        finally:
            path.write_bytes(sound)
        assert found == written[3:] if is_hint else is_within(found, written)

    for_each_round(f"broker-dirs-{end}", one)
    assert refused < ROUNDS
