"""What tests share: one Spark session, and a folder of data that a clone does not have."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).resolve().parent.parent
# It ends before the code of the better compiler pays: 22 s of CPU in place of 36 s for six small jobs.
SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Spark's workers would otherwise run the first python3 on PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", SHORT_LIVED_JVM)
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    folder = Path(os.environ.get("KBATCH_TEST_DATA", REPOSITORY / "../shared/data")).resolve()
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set KBATCH_TEST_DATA to a folder with the test data")
    return folder
