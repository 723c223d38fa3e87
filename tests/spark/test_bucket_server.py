"""Spark writes to and reads from a cluster behind a server of a store, through a proxy that loses answers and more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_kbatch
from tests.support.bucket_objects import values
from tests.support.object_servers import KEY, SECRET, ObjectServer, moto
from tests.support.secret_jobs import EXCEPTION, Job, ensure_in_no_text, run_jobs
from tests.support.store_proxy import ALL_FAULTS, StoreProxy

pytestmark = pytest.mark.spark

TOKEN = "a-token-of-tests"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


def options_of(server: ObjectServer, proxy: StoreProxy) -> dict[str, str]:
    return {**server.options(proxy.address), "store.session.token": TOKEN}


@pytest.mark.slow
def test_every_row_is_written_and_read_once_whatever_happens_to_requests(
    spark: SparkSession, server: ObjectServer, tmp_path: Path
) -> None:
    with StoreProxy(server.address, seed=5) as proxy:
        options = options_of(server, proxy)
        with spark_kbatch.open(server.url, create=True, store=options) as cluster:
            cluster.create_topic("events", 2)
            proxy.faults = ALL_FAULTS
            frame = spark.range(100, numPartitions=2).selectExpr("CAST(id AS STRING) AS value")
            writer = frame.write.format("kbatch").options(**options, topic="events")
            writer.mode("append").save(server.url)

            stream = spark.readStream.format("kbatch").options(**options, subscribe="events")
            copied = stream.option("startingOffsets", "earliest").load(server.url).select("value")
            to = copied.writeStream.format("kbatch").options(**options, topic="copies")
            to = to.option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = to.trigger(availableNow=True).start(server.url)
            query.awaitTermination()
            assert query.exception() is None

            read = spark.read.format("kbatch").options(**options, subscribe="copies")
            rows = read.load(server.url).selectExpr("CAST(value AS STRING)").collect()
            proxy.faults = {}
            sent = sorted(map(str, range(100)))
            assert sorted(values(cluster)) == sent
            assert sorted(row.value for row in rows) == sent
        assert sum(proxy.seen.values()) > 5
        plan = read.load(server.url)._jdf.queryExecution().toString()
        assert not [secret for secret in (KEY, SECRET, TOKEN) if secret in plan]


@pytest.mark.slow
def test_no_secret_is_in_anything_that_jobs_leave(server: ObjectServer, tmp_path: Path) -> None:
    """The log and the output of Spark and Python, plans, exceptions, the event log, checkpoints."""
    with StoreProxy(server.address) as proxy, StoreProxy(server.address) as denying:
        denying.faults = {"denied": 1.0}
        options, url = options_of(server, proxy), f"{server.url}-of-jobs"
        with spark_kbatch.open(url, create=True, store=options):
            pass
        options["path"] = url
        refused = options | {"store.endpoint": f"http://{denying.address}"}
        jobs = [Job("good", "events", options), Job("refused", "no", refused)]
        printed, texts = run_jobs(jobs, tmp_path)
    # What was to be seen is there, so what is searched is what was written.
    assert printed.count(f"{EXCEPTION} refused") == 3, printed[-5000:]
    assert "refuses to get cluster" in printed
    assert printed.count("== Physical Plan ==") >= 1
    events = [text for path, text in texts.items() if "events" in path.parts]
    assert any("SparkListenerSQLExecutionStart" in text for text in events)
    assert any("offsets" in path.parts for path in texts)
    ensure_in_no_text((KEY, SECRET, TOKEN), texts)
