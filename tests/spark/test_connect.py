"""A Spark Connect client, which has no JVM, reads and writes; the package runs on the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as RemoteSession

import spark_kbatch
from tests.support.frames import load, save

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def remote(spark: SparkSession) -> Iterator[RemoteSession]:
    """Connect to a server in the JVM of the session that tests share."""
    context = spark._jsc.sc()
    context.conf().set("spark.connect.grpc.binding.address", "127.0.0.1")
    context.conf().set("spark.connect.grpc.binding.port", "0")  # any that is free
    service = spark._jvm.org.apache.spark.sql.connect.service.SparkConnectService
    service.start(context)
    class_name = "org.apache.spark.sql.connect.service.SparkConnectService$"
    companion = spark._jvm.java.lang.Class.forName(class_name).getField("MODULE$").get(None)
    session = RemoteSession.builder.remote(f"sc://127.0.0.1:{companion.localPort()}").create()
    yield session
    session.client.close()
    service.stop(spark._jvm.scala.Option.empty(), spark._jvm.scala.Option.empty())


@pytest.mark.parametrize(
    "registered",
    [
        pytest.param(False, id="found-by-spark"),
        pytest.param(True, marks=pytest.mark.slow, id="registered"),
    ],
)
def test_a_connect_client_writes_and_reads(
    remote: RemoteSession, tmp_path: Path, registered: bool
) -> None:
    if registered:
        spark_kbatch.register(remote)
    frame = remote.sql("SELECT 'k' AS key, 'a' AS value UNION ALL SELECT NULL, 'b'")
    save(frame, tmp_path, topic="t")

    log = load(remote, tmp_path, subscribe="t")
    # As text: functions would make columns for this process's session, which is not a client.
    found = log.selectExpr("string(key)", "string(value)").collect()
    assert sorted(found, key=lambda row: row.value) == [("k", "a"), (None, "b")]
    assert log.where("key IS NULL").count() == 1


def test_a_connect_client_sees_our_error(remote: RemoteSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="exactly one of the options"):
        load(remote, tmp_path).collect()
