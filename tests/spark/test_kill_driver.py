"""A kill -9 of the driver at any step of a job leaves all of the job's data or none."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import REPOSITORY, SHORT_LIVED_SPARK
from tests.support.frames import load, records, save
from tests.support.killed_driver import ROWS, STEPS, frame_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPICS = ("t0", "t1")
COMMITTED = STEPS[STEPS.index("decided") :]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cluster for each step, whose writer was killed at that step.

    `pyspark_kbatch` is hidden from the driver's Spark, so it needs `register`.
    """
    folder = tmp_path_factory.mktemp("killed")
    (folder / "hiding" / "pyspark_kbatch").mkdir(parents=True)
    (folder / "hiding" / "pyspark_kbatch" / "__init__.py").touch()
    python_path = os.pathsep.join([str(folder / "hiding"), str(REPOSITORY)])
    with (
        (folder / "output").open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.killed_driver", str(folder)],
            cwd=folder,
            env=os.environ
            | SHORT_LIVED_SPARK
            | {"PYTHONPATH": python_path, "PYSPARK_PYTHON": sys.executable},
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as driver,
    ):
        markers = [folder / f"{step}.reached" for step in STEPS]
        try:
            deadline = time.monotonic() + 600
            while not all(marker.exists() for marker in markers):
                assert driver.poll() is None, (folder / "output").read_text()
                assert time.monotonic() < deadline, (folder / "output").read_text()
                time.sleep(0.05)
        finally:
            # The driver and its JVM first, so that nothing is left to react to the other kills.
            groups = {int(marker.read_text()) for marker in markers if marker.exists()}
            for group in (driver.pid, *groups):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
    assert driver.returncode == -signal.SIGKILL
    return folder


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_driver_leaves_all_of_the_jobs_data_or_none(
    spark: SparkSession, killed: Path, step: str
) -> None:
    path = killed / step
    jobs = ["before", "killed"] if step in COMMITTED else ["before"]

    assert values_by_topic(spark, path) == expected(jobs)

    # The next writer discards or completes what the killed one left.
    save(frame_of(spark, "next"), path)
    assert values_by_topic(spark, path) == expected([*jobs, "next"])
    for topic in TOPICS:
        for held in records(spark, path, topic).values():
            assert [r.offset for r in held] == list(range(len(held)))
            # Jobs are placed one after another; their rows are not mixed.
            found = [r.value.decode().partition("-")[0] for r in held]
            assert list(dict.fromkeys(found)) == [*jobs, "next"]
            assert found == sorted(found, key=[*jobs, "next"].index)


def test_a_killed_driver_leaves_its_staged_files(killed: Path) -> None:
    """If it did not, the kills would be too late to prove anything."""
    for step in STEPS:
        assert list((killed / step / "staging-0").glob("*/*/shared"))


def test_register_makes_the_format_known_if_spark_does_not_find_it(killed: Path) -> None:
    assert "DATA_SOURCE_NOT_FOUND" in (killed / "unregistered").read_text()
    assert (killed / "original" / "cluster.json").exists()


def values_by_topic(spark: SparkSession, path: Path) -> dict[str, list[str]]:
    """Read both topics at once; return the values of each, sorted as text."""
    found = load(spark, path, subscribe=",".join(TOPICS)).selectExpr("topic", "string(value)")
    rows = found.collect()
    return {topic: sorted(value for of, value in rows if of == topic) for topic in TOPICS}


def expected(jobs: list[str]) -> dict[str, list[str]]:
    return {
        topic: sorted(f"{job}-{row}" for job in jobs for row in range(number, ROWS, 2))
        for number, topic in enumerate(TOPICS)
    }
