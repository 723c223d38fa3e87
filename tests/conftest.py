"""Fixtures that tests share: a Spark session, disks that fail, a clock, and data that a clone does not have."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from spark_kbatch.clock import latest_ms, since_boot_ms
from spark_kbatch.kernels import jit
from spark_kbatch.log.steps import expiring_ms
from tests.support import more_in_soak
from tests.support.failing_disks import Clock, Disks

SPARK = tuple(map(int, pyspark.__version__.split(".")[:2]))
REPOSITORY = Path(__file__).resolve().parent.parent
# It ends before the optimizing compiler pays off: 22 s of CPU instead of 36 s for six small jobs.
SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The same, for a session that other code creates.
SHORT_LIVED_SPARK = {
    "PYSPARK_SUBMIT_ARGS": f"--conf 'spark.driver.extraJavaOptions={SHORT_LIVED_JVM}' pyspark-shell"
}


# Examples per property; `make soak` runs more. How long one takes depends on the machine.
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("tests", untimed, max_examples=15)
settings.register_profile("soak", untimed, max_examples=200)
settings.load_profile(more_in_soak.PROFILE)


def few(cases: Sequence[Any], count: int) -> list[Any]:
    """Return the cases of a test that needs Spark, all but the first `count` marked slow."""
    rest = [case if isinstance(case, ParameterSet | tuple) else (case,) for case in cases[count:]]
    rest = [one if isinstance(one, ParameterSet) else pytest.param(*one) for one in rest]
    marked = [pytest.param(*c.values, id=c.id, marks=[*c.marks, pytest.mark.slow]) for c in rest]
    return [*cases[:count], *marked]


# Tests are about compiled code, as work of any size runs it; `tests/kernels/test_plain.py` is about the other.
jit._Spent.plain_us_max = 0


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell starts what runs in the background; the commands that tests interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if SPARK < (4, 2):
        # Their client drops sockets to the JVM without closing them.
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket.socket:ResourceWarning")


def pytest_itemcollected(item: pytest.Item) -> None:
    more_in_soak.mark(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    more_in_soak.begin(item)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first, then those that start JVMs: each takes minutes, and would run alone at the end."""

    def place(item: pytest.Item) -> int:
        if item.get_closest_marker("spark"):
            return 1
        return 0 if item.get_closest_marker("slow") else 2

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share two Spark sessions among the processes: each costs half a minute of CPU until it is warm."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.two_sessions import TwoSessions  # noqa: PLC0415  pytest-xdist may be absent

    return TwoSessions(config, log)


@pytest.fixture(autouse=True)
def steps_of_the_clock_end_with_the_test() -> Iterator[None]:
    """A test that moves time leaves no hold, by which nothing would expire for ten minutes, to the next one."""
    yield
    seen = expiring_ms.__self__
    seen._ahead_ms, seen._held_ms, seen._until_ms = latest_ms() - since_boot_ms(), 0, 0


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_builder(tmp_path_factory.mktemp("warehouse")).getOrCreate()
    yield session
    session.stop()


def spark_builder(warehouse: Path) -> SparkSession.Builder:
    """Return a builder of the session that tests share."""
    # Spark's workers would otherwise run the first python3 on PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", SHORT_LIVED_JVM)
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(warehouse))
        # Other tests take the machine: a Python worker may need longer than Spark's 15 s to connect.
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )


@pytest.fixture
def disks() -> Disks:
    return Disks()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    folder = Path(os.environ.get("KBATCH_TEST_DATA", REPOSITORY / "../shared/data")).resolve()
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set KBATCH_TEST_DATA to a folder with the test data")
    return folder
