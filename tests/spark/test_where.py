"""The option `where`: conditions mean what they mean to Spark, and reads keep those rows."""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import spark_kbatch
from spark_kbatch.condition.binding import bind
from spark_kbatch.condition.evaluation import matching
from spark_kbatch.condition.text import parse
from tests.condition import interpreted
from tests.condition.interpreted import SCHEMA, Condition, Row
from tests.conftest import SPARK
from tests.support import draws

pytestmark = pytest.mark.spark

LAST_HEADER = "try_element_at(filter(headers, h -> h.key = 'n'), -1).value"  # as Spark has it
# Of a whole number Spark compares with a literal that no BIGINT holds, it makes TRUE or FALSE, also where it is null
# (DecimalPrecisionTypeCoercion, "strength reduction"); with an expression, as here, null stays null.
BEYOND_BIGINT = re.compile(r"-?922337203685477580[89]\b(?<!-9223372036854775808)")


def _values(text: str, columns: dict[str, Any], count: int) -> list[bool | None]:
    found = matching(bind(parse(text), SCHEMA), columns)
    return [found.as_py()] * count if isinstance(found, pa.Scalar) else found.to_pylist()


CONDITIONS = 60  # in one query of Spark
# It compares bytes where a pattern has but one % or none, so U+FFFD is not like a broken character only then.
LIKE_RULE = "org.apache.spark.sql.catalyst.optimizer.LikeSimplification"


@pytest.mark.parametrize("rounds", [1, pytest.param(draws.many(50), marks=pytest.mark.slow)], ids=["some", "many"])  # fmt: skip
@draws.naming_first()
def test_conditions_mean_what_they_mean_to_spark(
    spark: SparkSession, tmp_path: Path, rounds: int
) -> None:
    conditions = interpreted.drawn(interpreted.conditions(), rounds * CONDITIONS, draws.FIRST)
    parts = interpreted.drawn(interpreted.rows(), 12, draws.FIRST)
    rows = [row for part in parts for row in part]
    session = spark.newSession()
    session.conf.set("spark.sql.optimizer.excludedRules", LIKE_RULE)
    frame = session.read.parquet(_parquet_file(rows, tmp_path))

    differences = [
        one
        for start in range(0, len(conditions), CONDITIONS)
        for one in _differences(frame, rows, conditions[start : start + CONDITIONS])
    ]

    assert len(conditions) >= rounds * CONDITIONS
    assert differences == []


def _parquet_file(rows: list[Row], folder: Path) -> str:
    columns = interpreted.columns(rows)
    times = columns["timestamp"].cast(pa.timestamp("ms", "UTC"))
    columns["timestamp"] = times.cast(SCHEMA.field("timestamp").type)
    arrays = [
        one if isinstance(one, pa.Array) else pa.array([one.as_py()] * len(rows), one.type)
        for one in columns.values()
    ]
    numbers = pa.array(range(len(rows)), pa.int32())
    table = pa.table(arrays, SCHEMA).append_column("row", numbers)
    # In a dictionary Spark looks for a zero by its bytes: `= 0.0` drops the rows of a file that has only -0.0.
    parquet.write_table(table, folder / "rows.parquet", use_dictionary=False)
    return str(folder / "rows.parquet")


def _for_spark(text: str) -> str:
    text = BEYOND_BIGINT.sub(r"CAST('\g<0>' AS DECIMAL(19, 0))", text)
    if SPARK < (4, 1):  # where these are two texts in a row
        text = re.sub(r"(?<=\w)''(?=\w)", r"\'", text)
    return text.replace("headers['n']", LAST_HEADER)


def _differences(
    frame: DataFrame, rows: list[Row], conditions: list[Condition]
) -> list[tuple[str, list[Any], list[Any], list[Any]]]:
    """Return texts of which Spark, our columns and the interpreter of rows do not make the same.

    Spark is asked twice: for the values of all conditions, and for the rows that a filter leaves, which it may push
    down into the file.
    """
    texts = [_for_spark(text) for text, _ in conditions]
    values = frame.orderBy("row").selectExpr(*(f"({text}) AS c{n}" for n, text in enumerate(texts)))
    filtered = functools.reduce(
        DataFrame.unionAll,
        (frame.filter(text).selectExpr(f"{n} AS condition", "row") for n, text in enumerate(texts)),
    )
    by_spark = values.toArrow().to_pydict()
    kept = Counter((one.condition, one.row) for one in filtered.collect())
    columns = interpreted.columns(rows)
    found = []
    for n, (text, meaning) in enumerate(conditions):
        ours = _values(text, columns, len(rows))
        theirs = by_spark[f"c{n}"]
        left = [kept[n, row] for row in range(len(rows))]
        wanted = [meaning(row) for row in rows]
        if not ours == theirs == wanted or left != [int(one is True) for one in ours]:
            found.append((text, ours, theirs, left))
    return found


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


@pytest.mark.slow
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
