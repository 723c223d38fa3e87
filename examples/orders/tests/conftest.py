import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_kbatch.testing import KafkaServer

# JARs of Spark's own Kafka connector, separated by commas; without them its tests are skipped.
JARS = os.environ.get("SPARK_KAFKA_JARS", "")


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession  # noqa: PLC0415  tests of the service start without it

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", JARS)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(params=["kbatch_server", "kbatch_noserver"])
def kafka(request: pytest.FixtureRequest) -> "KafkaServer":
    """A server in place of a broker; and the real broker of --kbatch-bootstrap-servers, if it is given."""
    return request.getfixturevalue(request.param)
