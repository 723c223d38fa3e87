"""JSON as columns: beside orjson, and through Spark beside `from_json`.

Unit: million records a second. A record has ten fields of 240 bytes, or two of them are read. Peers: orjson with
`pa.array`; ceiling in plain Python: pyarrow.json, which parses all lines in one block and checks none of them; through
Spark, where a topic of a million records is read on local[2] from a file system in memory if there is one: the decoded
columns, ready-made, and the same values as bytes.
"""

from __future__ import annotations

import functools
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.json
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own convention

import spark_kbatch
from tests.support.interleaved import Candidate, interleave
from tests.support.spark_sources import ReadyTable
from tests.support.targets import Targets

MILLION = 1_000_000
ROUNDS = 9
BATCH_ROWS = 20_000
OF_ORJSON, OF_FROM_JSON, TWO_FIELDS = 2.5, 1.8, 2.0
TEN = (
    "id bigint, name string, price double, count int, note string, is_open boolean, tags array<string>, "
    "at timestamp, place struct<x: double, y: double>, total decimal(12,2)"
)
TWO = "id bigint, price double"


def values(count: int) -> pa.Array:
    """Return documents of ten fields."""
    rng = np.random.default_rng(1)
    numbers, floats = rng.integers(0, 2**40, count).tolist(), rng.random((3, count)).tolist()
    start = datetime(2024, 10, 25, tzinfo=UTC)
    return pa.array(
        json.dumps(
            {
                "id": number,
                "name": f"name {row % 997}",
                "price": floats[0][row],
                "count": number % 1000,
                "note": None if row % 2 else "a note",
                "is_open": number % 2 == 0,
                "tags": ["a tag", "another"][: row % 3],
                "at": (start + timedelta(milliseconds=row)).isoformat(timespec="microseconds"),
                "place": {"x": floats[1][row], "y": floats[2][row]},
                "total": round(number % 10**9 / 100, 2),
            }
        ).encode()
        for row, number in enumerate(numbers)
    )


def bench_decode(targets: Targets) -> None:
    count = MILLION // 5
    made = values(count)
    kind = decoded(made[:1], TEN).type
    few = made[: count // 5].to_pylist()
    lines = b"\n".join(made.to_pylist())
    parsed = pa.schema([(one.name, one.type) for one in kind])

    def with_orjson() -> None:
        rows = [orjson.loads(one) for one in few]
        for row in rows:
            row["at"] = datetime.fromisoformat(row["at"])
        pa.array(
            rows,
            pa.struct(
                [one if one.name != "total" else one.with_type(pa.float64()) for one in kind]
            ),
        )

    def in_one_block() -> None:
        pyarrow.json.read_json(
            io.BytesIO(lines),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines)),
            pyarrow.json.ParseOptions(parsed, unexpected_field_behavior="ignore"),
        )

    rates = interleave(
        {
            "kbatch": Candidate(lambda: decoded(made, TEN), count / 1e6),
            "kbatch, two fields": Candidate(lambda: decoded(made, TWO), count / 1e6),
            "orjson and pa.array": Candidate(with_orjson, len(few) / 1e6),
            "pyarrow.json, in one block": Candidate(in_one_block, count / 1e6),
        },
        rounds=ROUNDS,
    )
    size = len(lines) / count
    wanted = {("kbatch", "orjson and pa.array"): OF_ORJSON}
    targets.rates(
        rates, f"Decoded on one core, ten fields, {size:.0f} bytes", "M records/s", wanted
    )


def decoded(made: pa.Array, ddl: str) -> pa.Array:
    found = spark_kbatch.decode_values(made, value_format="json", value_schema=ddl)
    assert not found.errors, found.errors[0]
    return found.values


def consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def bench_through_spark(spark: SparkSession, memory_path: Path, targets: Targets) -> None:
    spark.dataSource.register(ReadyTable)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    path, made = str(memory_path / "cluster"), values(MILLION)
    with spark_kbatch.open(path, create=True) as cluster, cluster.producer() as producer:
        cluster.create_topic("t", partitions=2)
        partitions = np.arange(MILLION, dtype=np.int32) % 2
        producer.send_arrow("t", {"value": made, "partition": partitions})

    def ready(ddl: str) -> DataFrame:
        """Return the columns of a DDL, ready-made."""
        table = pa.Table.from_struct_array(pa.chunked_array([decoded(made, ddl)]))
        file = str(memory_path / f"{len(ddl)}.arrow")
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, BATCH_ROWS)
        return spark.read.format("table").load(file)

    def ours(ddl: str) -> DataFrame:
        reader = spark.read.format("kbatch").option("subscribe", "t").option("value.format", "json")
        return (
            reader.option("value.schema", ddl)
            .schema(f"value struct<{ddl}>")
            .load(path)
            .select("value.*")
        )

    undecoded = (
        spark.read.format("kbatch").option("subscribe", "t").schema("value binary").load(path)
    )

    def theirs(ddl: str) -> DataFrame:
        text = F.col("value").cast("string")
        return undecoded.select(F.from_json(text, ddl).alias("value")).select("value.*")

    wanted = {}
    candidates = {"bytes": Candidate(lambda: consume(undecoded), 1)}
    for ddl, called, limit in ((TEN, "ten fields", OF_FROM_JSON), (TWO, "two fields", TWO_FIELDS)):
        for name, frame in (
            ("kbatch", ours(ddl)),
            ("from_json", theirs(ddl)),
            ("ready-made", ready(ddl)),
        ):
            candidates[f"{name}, {called}"] = Candidate(functools.partial(consume, frame), 1)
        wanted[f"kbatch, {called}", f"from_json, {called}"] = limit
    rates = interleave(candidates, rounds=ROUNDS)
    for called in ("ten fields", "two fields"):
        ratio = rates.ratio(f"ready-made, {called}", f"from_json, {called}")
        print(f"ceiling: ready-made columns are {ratio:.2f} times from_json with {called}")
    targets.rates(rates, "JSON through Spark, local[2]", "M records/s", wanted)
