"""A pipeline from JSON files to a report, on a standalone cluster, gives the same report as pandas.

The cluster is a master and two workers on loopback; spark-submit starts the application.
"""

from __future__ import annotations

import gzip
import json
import random
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import SPARK
from tests.support import pipeline
from tests.support.standalone import standalone

pytestmark = pytest.mark.spark

SCRIPT = Path(pipeline.__file__)
DEADLINE_S = 600
FILES = 4


@pytest.mark.slow
def test_the_report_on_wikipedias_edits_equals_that_of_pandas(
    shared_data: Path, tmp_path: Path
) -> None:
    file = shared_data / "events" / "wikiticker-2015-09-12-sampled.json.gz"
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    assert_report_is_right(tmp_path, lines, records=5_000, kill_after=None)


@pytest.mark.slow
def test_the_report_is_the_same_if_a_worker_is_killed(shared_data: Path, tmp_path: Path) -> None:
    file = shared_data / "events" / "wikiticker-2015-09-12-sampled.json.gz"
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    assert_report_is_right(tmp_path, lines, records=5_000, kill_after=2)


@pytest.mark.slow
def test_the_report_on_made_up_edits_is_right_if_a_worker_is_killed(tmp_path: Path) -> None:
    assert_report_is_right(tmp_path, made_up_edits(6_000), records=2_500, kill_after=0)


def assert_report_is_right(
    folder: Path, lines: list[str], *, records: int, kill_after: int | None
) -> None:
    """Run the pipeline; with `kill_after`, kill a worker after the micro-batch with that number.

    Before Spark 4.2 the first micro-batch has all the records, and the windows end in the next one.
    """
    if SPARK < (4, 2) and kill_after is not None:
        kill_after = 0
    source = folder / "input"
    source.mkdir()
    size = -(-len(lines) // FILES)
    for number in range(FILES):
        piece = lines[number * size : (number + 1) * size]
        (source / f"{number}.json").write_text("".join(f"{line}\n" for line in piece))

    with standalone(folder, workers=2) as cluster:
        run = cluster.submit(str(SCRIPT), str(source), str(folder), str(records))
        deadline = time.monotonic() + DEADLINE_S
        if kill_after is not None:
            commits = folder / "checkpoint" / "commits"
            while not (commits / str(kill_after)).exists():
                assert run.popen.poll() is None, run.printed()
                assert time.monotonic() < deadline, run.printed()
                time.sleep(0.01)
            assert not (commits / str(kill_after + 1)).exists(), "killed too late"
            cluster.workers[0].kill()
        run.popen.wait(timeout=deadline - time.monotonic())
        assert run.popen.returncode == 0, run.printed()
    if kill_after is not None:
        assert "Lost executor" in run.printed()

    rows = [
        json.loads(line)
        for file in (folder / "report").glob("part-*.json")
        for line in file.read_text().splitlines()
    ]
    found = pd.DataFrame(rows).set_index("channel").sort_index()
    pd.testing.assert_frame_equal(found, expected_report(lines))


def expected_report(lines: list[str]) -> pd.DataFrame:
    """Compute the sums of the hours that are over with pandas."""
    edits = pd.DataFrame([json.loads(line) for line in lines])
    edits["time"] = pd.to_datetime(edits["time"])
    edits["hour"] = edits["time"].dt.floor("h")
    over = edits["hour"] + pd.Timedelta("1h") <= edits["time"].max() - pd.Timedelta(
        pipeline.WATERMARK
    )
    hours = edits[over].groupby(["channel", "hour"])["added"].agg(["count", "sum"]).reset_index()
    by_channel = hours.groupby("channel").agg(
        hours=("hour", "size"), edits=("count", "sum"), added=("sum", "sum"), last=("hour", "max")
    )
    by_channel["last"] = by_channel["last"].dt.strftime("%Y-%m-%d %H:%M:%S")
    return by_channel.sort_index()


def made_up_edits(count: int) -> list[str]:
    """Make up edits of one day, almost ordered by time."""
    rng = random.Random(1)
    begin = pd.Timestamp("2024-02-29T00:00:00Z")
    return [
        json.dumps(
            {
                "time": (begin + pd.Timedelta(seconds=86_400 * n / count + rng.uniform(0, 600)))
                .isoformat(timespec="milliseconds")
                .replace("+00:00", "Z"),
                "channel": f"#{rng.choice('abcdefgh')}.wiki",
                "page": f"Página {rng.randrange(count // 3)}",
                "added": rng.randrange(2_000),
            },
            ensure_ascii=False,
        )
        for n in range(count)
    ]
