"""Avro values as columns: beside fastavro, and through Spark beside `from_avro`, whose jar Maven fetches.

Unit: million records a second. A record has ten fields of many types, or three flat ones; values are framed, as
serializers of a registry write them. Through Spark a topic of a million records is read on local[2], from a file system
in memory if there is one; ceiling: the same values as bytes.

`make bench-kafka`; needs Maven.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own convention
from pyspark.sql.avro.functions import from_avro

import spark_kbatch
from spark_kbatch.values.avro_decoder import decode
from spark_kbatch.values.avro_schema import parse
from tests.support.avro import a_record
from tests.support.bench_sessions import bench_session
from tests.support.interleaved import Candidate, interleave
from tests.support.targets import Targets

MILLION = 1_000_000
ROUNDS = 9
FASTAVRO = 25.0
ALL_FIELDS, TWO_FIELDS = 1.05, 1.8  # of from_avro
OF_BYTES, TWO_OF_BYTES, TWO_IDS = 0.35, 0.6, 0.9
WHERE = a_record(("x", "double"), ("y", "double"), name="Where")
TEN = a_record(
    ("id", "long"), ("name", "string"), ("price", "double"), ("count", "int"),
    ("note", ["null", "string"]), ("is_open", "boolean"), ("tags", {"type": "array", "items": "string"}),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}), ("where", WHERE), ("total", "long"),
    name="Ten",
)  # fmt: skip
FLAT = a_record(("id", "long"), ("name", "string"), ("price", "double"), name="Flat")
LATER = {**TEN, "fields": [*TEN["fields"], {"name": "more", "type": "int", "default": 0}]}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with Spark's own Avro."""
    with bench_session(jars=tmp_path_factory.mktemp("jars")) as session:
        yield session


def columns(count: int) -> dict[str, pa.Array]:
    rng = np.random.default_rng(1)
    numbers = pa.array(rng.integers(0, 2**40, count))
    texts = pa.array([f"name {at % 997}" for at in range(count)])
    tags = pa.array([["a tag", "another"][: at % 3] for at in range(count)])
    floats = pa.array(rng.random(count))
    return {
        "id": numbers, "name": texts, "price": floats, "count": pa.array(rng.integers(0, 1000, count), pa.int32()),
        "note": pa.array([None if at % 2 else "a note" for at in range(count)]),
        "is_open": pa.array(rng.integers(0, 2, count).astype(bool)), "tags": tags,
        "at": numbers.cast(pa.timestamp("us", "UTC")), "total": numbers,
        "where": pa.StructArray.from_arrays([floats, floats], ["x", "y"]), "more": pa.array([1] * count, pa.int32()),
    }  # fmt: skip


def encoded(schema: Any, registry: Path, count: int) -> pa.Array:
    """Register a schema, and return values framed with its id."""
    found = columns(count)
    table = pa.table({field["name"]: found[field["name"]] for field in schema["fields"]})
    (registry / "ids").mkdir(parents=True, exist_ok=True)
    made = spark_kbatch.encode_values(
        table,
        registry=str(registry),
        value_subject="t-value",
        value_schema=schema,
        auto_register=True,
    )
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made


@pytest.mark.parametrize("schema", [TEN, FLAT], ids=["ten fields", "flat"])
def bench_decode(schema: Any, tmp_path: Path, targets: Targets) -> None:
    count = MILLION // 5
    values = encoded(schema, tmp_path / "registry", count)
    parsed, theirs = parse(json.dumps(schema)), fastavro.parse_schema(schema)
    few = values[: count // 20].to_pylist()

    def with_fastavro() -> None:
        rows = [fastavro.schemaless_reader(io.BytesIO(one[5:]), theirs, None) for one in few]
        pa.array(rows)

    rates = interleave(
        {
            "kbatch": Candidate(lambda: decode(values, parsed, {1: parsed}), count / 1e6),
            "fastavro and pa.array": Candidate(with_fastavro, len(few) / 1e6),
        },
        rounds=ROUNDS,
    )
    wanted = {("kbatch", "fastavro and pa.array"): FASTAVRO}
    targets.rates(rates, f"Decoded on one core, {schema['name']}", "M records/s", wanted)


def consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def bench_through_spark(spark: SparkSession, memory_path: Path, targets: Targets) -> None:
    registry, path = memory_path / "registry", str(memory_path / "cluster")
    first, later = (encoded(schema, registry, MILLION) for schema in (TEN, LATER))
    mixed = pa.array([one for pair in zip(first[::2], later[::2], strict=True) for one in pair])
    with spark_kbatch.open(path, create=True) as cluster, cluster.producer() as producer:
        for topic, values in (("t", first), ("mixed", mixed)):
            cluster.create_topic(topic, partitions=2)
            producer.send_arrow(
                topic, {"value": values, "partition": [at % 2 for at in range(MILLION)]}
            )

    def source(topic: str, *, fields: str = "", typed: bool = True) -> DataFrame:
        reader = spark.read.format("kbatch").option("subscribe", topic)
        if not typed:
            return reader.schema("value binary").load(path)
        reader = reader.option("value.format", "avro").option("schema.registry.url", str(registry))
        reader = reader.option("value.subject", "t-value").option("value.schema", "version:1")
        reader = reader.option("value.fields", fields) if fields else reader
        # As from bytes, nothing but the value is read.
        kind = reader.load(path).schema["value"].dataType.simpleString()
        return reader.schema(f"value {kind}").load(path).select("value.*")

    undecoded, bare = source("t", typed=False), F.expr("substring(value, 6)")
    theirs = undecoded.select(from_avro(bare, json.dumps(TEN)).alias("value"))
    ours, two, in_turn = source("t"), source("t", fields="id,price"), source("mixed")
    rates = interleave(
        {
            "bytes": Candidate(lambda: consume(undecoded), 1),
            "from_avro": Candidate(lambda: consume(theirs.select("value.*")), 1),
            "kbatch": Candidate(lambda: consume(ours), 1),
            "from_avro, two fields": Candidate(
                lambda: consume(theirs.select("value.id", "value.price")), 1
            ),
            "kbatch, two fields": Candidate(lambda: consume(two), 1),
            "kbatch, two ids in turn": Candidate(lambda: consume(in_turn), 1),
        },
        rounds=ROUNDS,
    )
    wanted = {
        ("kbatch", "from_avro"): ALL_FIELDS,
        ("kbatch, two fields", "from_avro, two fields"): TWO_FIELDS,
        ("kbatch", "bytes"): OF_BYTES,
        ("kbatch, two fields", "bytes"): TWO_OF_BYTES,
        ("kbatch, two ids in turn", "kbatch"): TWO_IDS,
    }
    targets.rates(rates, "Through Spark, local[2], ten fields", "M records/s", wanted)
