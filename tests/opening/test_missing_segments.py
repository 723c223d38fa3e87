"""Segments of a cluster's own logs that are gone: what precedes the hole, and where to go on, by every door."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders
from tests.support.broker_dirs import up_to_damage

Damage = Callable[[Path], object]

BATCH = builders.batch(n=4, value_bytes=140_000)  # a segment has at least 1 MiB
END = 40  # of ten batches, two in a segment


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """A topic of two partitions, with segments at 0, 8, 16, 24 and 32."""
    made = builders.a_cluster(
        tmp_path, topics={"events": 2}, config=TopicConfig(segment_bytes=2 * len(BATCH))
    )
    builders.write(made, {("events", 0): [BATCH] * 10, ("events", 1): [BATCH]})
    assert len([*segment(made, 0).parent.glob("*.log")]) == 5
    return made


def segment(cluster: Cluster, base_offset: int) -> Path:
    return cluster.path / "broker-0/events-0" / f"{base_offset:020d}.log"


def removed(log: Path) -> None:
    log.unlink()


def halved(log: Path) -> None:
    log.write_bytes(log.read_bytes()[: len(BATCH)])


@pytest.mark.parametrize(
    ("damage", "end"), [pytest.param(removed, 8, id="gone"), pytest.param(halved, 12, id="cut")]
)
def test_all_before_a_missing_segment_is_read_and_the_error_says_where_to_go_on(
    cluster: Cluster, damage: Damage, end: int
) -> None:
    damage(segment(cluster, 8))

    found, error = up_to_damage(cluster.read("events", partitions=[0], columns=["offset"]))

    assert sum(rows.num_rows for rows in found) == end
    assert error is not None
    assert (error.offset, error.next_offset) == (end, 16)
    assert "go on with start={0: 16}" in str(error)
    rest = cluster.read("events", partitions=[0], start={0: 16}, columns=["offset"]).read_all()
    assert rest["offset"].to_pylist() == [*range(16, END)]

    done = CliRunner().invoke(cli, ["consume", str(cluster.path), "events", "--partition", "0"])
    assert (done.exit_code, len(done.stdout.splitlines())) == (1, end)
    assert "go on with --start 16" in str(done.exception)


@pytest.mark.parametrize(
    ("base_offset", "before", "go_on"),
    [pytest.param(0, 0, 8, id="first"), pytest.param(32, 32, END, id="last")],
)
def test_a_segment_missing_at_an_end_of_the_log_takes_no_others_with_it(
    cluster: Cluster, base_offset: int, before: int, go_on: int
) -> None:
    segment(cluster, base_offset).unlink()

    def read(start: int) -> tuple[list[int], str]:
        offsets = list[int]()
        try:
            for batch in cluster.read("events", partitions=[0], start={0: start}):
                offsets += batch["offset"].to_pylist()
        except CorruptRecordError as error:
            return offsets, str(error)
        return offsets, ""

    offsets, error = read(0)
    assert offsets == [*range(before)]
    assert f"no segment holds offset {base_offset}" in error
    assert f"go on with start={{0: {go_on}}}" in error
    assert read(8)[0] == [*range(8, base_offset or END)]


@pytest.mark.parametrize("keep_offsets", [False, True], ids=["", "keep-offsets"])
@pytest.mark.parametrize(
    ("damage", "end"), [pytest.param(removed, 8, id="gone"), pytest.param(halved, 12, id="cut")]
)
def test_a_mirror_copies_what_precedes_a_hole_and_all_other_partitions_before_it_fails(
    cluster: Cluster, tmp_path: Path, damage: Damage, end: int, keep_offsets: bool
) -> None:
    damage(segment(cluster, 8))
    words = ["mirror", str(cluster.path), str(tmp_path / "copy"), "events"]
    words += ["--keep-offsets"] if keep_offsets else []

    for _ in range(2):  # and again, from there
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 1
        assert f"the segment ends at offset {end}, but the next one starts at 16" in str(
            done.exception
        )
        copy = spark_kbatch.open(tmp_path / "copy")
        assert [one.offsets.high_watermark for one in copy.describe("events")] == [end, 4]


def test_a_mirror_copies_the_batches_before_a_damaged_one_that_it_fetched_with_them(
    tmp_path: Path,
) -> None:
    source = builders.a_cluster(tmp_path / "source")
    builders.write(source, {("events", 0): [BATCH] * 5})
    log = segment(source, 0)
    data = bytearray(log.read_bytes())
    data[3 * len(BATCH) + 100] ^= 1
    log.write_bytes(data)

    done = CliRunner().invoke(cli, ["mirror", str(source.path), str(tmp_path / "copy"), "events"])

    assert done.exit_code == 1
    assert "CRC-32C" in str(done.exception)
    assert spark_kbatch.open(tmp_path / "copy").read("events").read_all().num_rows == 12
