"""What belongs to its process cannot be pickled, as functions for Spark's tasks are; the error says what to do."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import spark_kbatch
from spark_kbatch import Cluster, NotPicklableError
from tests.support import builders


def test_clusters_producers_futures_and_servers_say_what_to_do_instead(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 1})
    shutil.copytree(cluster.path / "broker-0", tmp_path / "broker")
    with (
        cluster,
        cluster.serve() as server,
        spark_kbatch.connect(server.bootstrap_servers) as remote,
        cluster.producer() as producer,
        remote.producer() as to_remote,
        spark_kbatch.open(tmp_path / "broker") as logs,
    ):
        future, table = (
            producer.send("events", "v"),
            producer.send_arrow("events", {"value": ["v"]}),
        )
        in_the_function: list[tuple[str, Any, str]] = [
            ("Cluster", cluster, f"open it in the function, in each task: spark_kbatch.open('{cluster.path}')"),
            ("Cluster", logs, f"in each task: spark_kbatch.open('{tmp_path / 'broker'}')"),
            ("Cluster", remote, f"in each task: spark_kbatch.connect('{server.bootstrap_servers}')"),
            ("Producer", producer, "open the cluster and its producer in the function, in each task"),
            ("RecordFuture", future, "wait for its result, and pass that on"),
            ("ArrowFuture", table, "wait for its result, and pass that on"),
            ("Server", server, f"use its address, '{server.bootstrap_servers}'"),
        ]  # fmt: skip
        for kind, one, instead in in_the_function:
            for pickled in (pickle.dumps, cloudpickle.dumps):
                with pytest.raises(NotPicklableError) as raised:
                    pickled(uses(one))
                assert str(raised.value).startswith(f"a {kind} cannot be pickled, as Spark does")
                assert str(raised.value).endswith(instead)
        with pytest.raises(TypeError, match="a Producer cannot be pickled"):
            pickle.dumps(to_remote)


def uses(one: Any) -> Any:
    return {"of a function": one}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    "made", [lambda cluster: cluster, Cluster.producer], ids=["cluster", "producer"]
)
def test_a_function_for_sparks_tasks_that_uses_one_is_refused(
    spark: SparkSession, tmp_path: Path, made: Callable[[Cluster], Any]
) -> None:
    with builders.a_cluster(tmp_path, topics={"events": 1}) as cluster:
        one = made(cluster)
        with pytest.raises(pickle.PicklingError, match="in the function, in each task"):
            spark.range(2).foreachPartition(lambda rows: print(one, *rows))
