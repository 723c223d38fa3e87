"""What tests share: one Spark session, and a folder of data that a clone does not have."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

SPARK_4_1 = pyspark.__version__.startswith("4.1.")
REPOSITORY = Path(__file__).resolve().parent.parent
# It ends before the code of the better compiler pays: 22 s of CPU in place of 36 s for six small jobs.
SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The same, for a session that somebody else's code makes.
SHORT_LIVED_SPARK = {
    "PYSPARK_SUBMIT_ARGS": f"--conf 'spark.driver.extraJavaOptions={SHORT_LIVED_JVM}' pyspark-shell"
}


def pytest_configure(config: pytest.Config) -> None:
    if SPARK_4_1:
        # Its client drops sockets to the JVM without closing them.
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket.socket:ResourceWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what starts JVMs: a file of it takes minutes, and as the last one would run alone."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_builder(tmp_path_factory.mktemp("warehouse")).getOrCreate()
    yield session
    session.stop()


def spark_builder(warehouse: Path) -> SparkSession.Builder:
    """Of the session that tests share."""
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
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )


@pytest.fixture(scope="session")
def shared_data() -> Path:
    folder = Path(os.environ.get("KBATCH_TEST_DATA", REPOSITORY / "../shared/data")).resolve()
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set KBATCH_TEST_DATA to a folder with the test data")
    return folder
