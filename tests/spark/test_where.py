"""The option `where`: conditions mean what they mean to Spark, and reads keep those rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import spark_kbatch
from spark_kbatch.condition.binding import bind
from spark_kbatch.condition.evaluation import matching
from spark_kbatch.condition.text import parse
from tests.condition import interpreted
from tests.condition.interpreted import SCHEMA, Condition, Row

pytestmark = pytest.mark.spark

LAST_HEADER = "try_element_at(filter(headers, h -> h.key = 'n'), -1).value"  # as Spark has it


def _values(text: str, columns: dict[str, Any], count: int) -> list[bool | None]:
    found = matching(bind(parse(text), SCHEMA), columns)
    return [found.as_py()] * count if isinstance(found, pa.Scalar) else found.to_pylist()


@given(
    st.lists(interpreted.conditions(), min_size=60, max_size=60),
    st.lists(interpreted.rows(), min_size=4, max_size=4),
)
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_conditions_mean_what_they_mean_to_spark(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    conditions: list[Condition],
    parts: list[list[Row]],
) -> None:
    rows = [row for part in parts for row in part]
    columns = interpreted.columns(rows)
    arrays = {
        name: one if isinstance(one, pa.Array) else pa.array([one.as_py()] * len(rows), one.type)
        for name, one in columns.items()
    }
    arrays["timestamp"] = (
        arrays["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(SCHEMA.field("timestamp").type)
    )
    file = tmp_path_factory.mktemp("rows") / "rows.parquet"
    parquet.write_table(pa.table(arrays, SCHEMA), file)
    texts = [text.replace("headers['n']", LAST_HEADER) for text, _ in conditions]

    found = (
        spark.read.parquet(str(file))
        .selectExpr(*(f"({text}) AS c{n}" for n, text in enumerate(texts)))
        .toArrow()
    )

    for n, (text, _) in enumerate(conditions):
        assert found[f"c{n}"].to_pylist() == _values(text, columns, len(rows)), text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A topic `t` of two partitions, whose records have times from 0 ms on, and keys and headers by turns."""
    with spark_kbatch.open(tmp_path / "cluster", create=True) as cluster:
        cluster.create_topic("t", partitions=2)
        with cluster.producer() as producer:
            for n in range(20):
                headers = [("n", str(n).encode())] if n % 3 else []
                producer.send(
                    "t", f"v{n}", key=f"k{n % 4}", partition=n % 2, timestamp=n, headers=headers
                )
    return tmp_path / "cluster"


def _offsets(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted(
        (row.partition, row.offset) for row in frame.select("partition", "offset").collect()
    )


def test_a_batch_has_the_rows_that_its_own_filter_leaves(spark: SparkSession, path: Path) -> None:
    load = spark.read.format("kbatch").option("subscribe", "t").option("includeHeaders", "true")
    for where in (
        "key = 'k1' OR offset < 2",
        "timestamp >= TIMESTAMP '1970-01-01 00:00:00.015Z' AND partition = 1",
        "headers['n'] LIKE '1%'",
        "partition = 7",
    ):
        frame = load.option("where", where).load(str(path))
        filtered = (
            load.option("where", "offset >= 0")
            .load(str(path))
            .filter(where.replace("headers['n']", LAST_HEADER))
        )
        assert _offsets(frame) == _offsets(filtered), where
        assert frame.count() == len(_offsets(filtered))
    with pytest.raises(AnalysisException, match=r"at character 7, 5: key is BINARY; write 'text'"):
        load.option("where", "key = 5").load(str(path))
    some = load.option("where", "key = 'k1'").schema("offset BIGINT").load(str(path))
    assert sorted(row.offset for row in some.collect()) == [0, 2, 4, 6, 8]


def test_a_stream_has_those_rows_and_counts_them(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    batches: list[list[tuple[int, int]]] = []
    query = (
        spark.readStream.format("kbatch")
        .options(
            subscribe="t", startingOffsets="earliest", where="partition = 0 AND NOT key = 'k0'"
        )
        .load(str(path))
        .writeStream.foreachBatch(lambda frame, _: batches.append(_offsets(frame)))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert [one for batch in batches for one in batch] == [(0, n) for n in range(1, 10, 2)]
    assert sum(progress.numInputRows for progress in query.recentProgress) == 5
    (source,) = query.recentProgress[0]["sources"]
    ends = str(source["endOffset"]).replace("'", '"')
    assert '"0": 10' in ends or '"0":10' in ends
    assert '"1": 10' in ends or '"1":10' in ends
