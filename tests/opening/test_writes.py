"""Spark's writes, below Spark: what a job leaves in a folder and on a server."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_kbatch import Cluster
from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.write import WriteOptions, parse_write_options
from tests.support import builders

_QUERY = "11111111-1111-1111-1111-111111111111"


@pytest.fixture(params=["a folder", "a server"])
def cluster_and_options(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Cluster, WriteOptions]]:
    """Make a cluster with another topic, and the options of a write to `sink`, which is not there."""
    cluster = builders.a_cluster(tmp_path, topics={"other": 1})
    options = {"topic": "sink", "num.partitions": "2", "kafka.batch.size": "0"}
    if request.param == "a folder":
        yield cluster, parse_write_options({"path": str(cluster.path), **options})
        return
    with cluster.serve() as server:
        servers = {"kafka.bootstrap.servers": server.bootstrap_servers}
        yield cluster, parse_write_options(servers | options)


def test_a_micro_batch_without_rows_creates_no_topic_and_the_first_with_rows_does(
    cluster_and_options: tuple[Cluster, WriteOptions],
) -> None:
    """Tasks and commit have a job each, as in Spark."""
    cluster, options = cluster_and_options
    nothing = pa.record_batch({"value": pa.array([], pa.binary())})
    rows = pa.record_batch({"value": [b"a", b"b"]})

    for number, tasks in enumerate(([[], [nothing]], [[], [nothing, rows], [rows]], [[]])):
        job = pickle.loads(pickle.dumps(begin_job(options, is_micro_batch=True)))
        staged = [job.stage(batches, query_id=_QUERY) for batches in tasks]
        begin_job(options, is_micro_batch=True).commit_micro_batch(staged, number)
        assert cluster.topic_names() == (["other", "sink"] if number else ["other"])

    assert cluster.topic("sink").partitions == 2
    assert cluster.read("sink", columns=["value"]).read_all().num_rows == 4


@pytest.mark.parametrize(("batch_size", "used"), [("1048576", 1), ("1", 8)])
def test_few_rows_without_a_key_lie_in_one_partition_unless_batches_are_small(
    tmp_path: Path, batch_size: str, used: int
) -> None:
    """Kafka's sticky rule: another partition is chosen when a batch is full. docs/options.md says so."""
    given = {"path": str(tmp_path), "topic": "t", "num.partitions": "8", "batch.size": batch_size}
    job = begin_job(parse_write_options(given))
    values = [b"reading %d" % number for number in range(300)]
    job.commit_batch([job.stage([pa.record_batch({"value": values})])])

    found = [one.offsets.high_watermark for one in Cluster(str(tmp_path)).describe("t")]
    assert sum(found) == 300
    assert sum(count > 0 for count in found) == used
