"""What the Sparks that are supported do differently, and must not show; docs/compatibility.md has what shows."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import spark_kbatch
from spark_kbatch.functions import from_avro, to_avro
from spark_kbatch.registry.folder import FolderRegistry
from spark_kbatch.registry.schemas import Schema
from spark_kbatch.spark.source import KBatchDataSource
from spark_kbatch.spark.writer import IN_UTC
from tests.conftest import SPARK
from tests.support import avro
from tests.support.avro import a_record, framed, parsed
from tests.support.frames import load, save
from tests.support.orders import SECOND, SECOND_TYPE

pytestmark = pytest.mark.spark

ORDER = {
    "id": 1, "customer": {"id": 1, "city": (1, "Rome")}, "price": b"\x04\xd2", "tags": ["a"], "counts": {"x": 1},
    "at": (1, 1_700_000_000_123), "local": (1, 1_700_000_000_123_456), "day": 19_000, "either": (2, 1),
}  # fmt: skip
VALUES = {
    "key.format": "string", "value.format": "avro", "includeSchemaId": "true", "mode": "PERMISSIVE",
}  # fmt: skip
OF_JSON = {
    "value.format": "json", "value.schema": f"flag boolean, l array<smallint>, {SECOND_TYPE[7:-1]}",
    "value.framing": "confluent", "includeSchemaId": "true", "mode": "PERMISSIVE",
}  # fmt: skip


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    folder = tmp_path / "registry"
    folder.mkdir()
    assert FolderRegistry(folder).register("t-value", Schema(json.dumps(SECOND))).id == 1
    return folder


def sent(value: Any) -> Any:
    """Return a value as another process gets it."""
    return pickle.loads(cloudpickle.dumps(value))


def test_a_source_that_spark_has_found_by_itself_may_be_registered(spark: SparkSession) -> None:
    for session in (spark, spark, spark.newSession()):
        spark_kbatch.register(session)


# Before 4.2 Spark compares only the number and the names of columns. What else is wrong, it reads as other data.


@pytest.mark.parametrize("names", [None, ("offset", "topic")], ids=["all", "named"])
@pytest.mark.parametrize(
    "options",
    [{}, {"includeHeaders": "true"}, VALUES, OF_JSON],
    ids=["row", "headers", "avro", "json"],
)
def test_batches_have_the_arrow_schema_that_spark_makes_of_the_columns(
    tmp_path: Path, registry: Path, options: dict[str, str], names: tuple[str, ...] | None
) -> None:
    path = tmp_path / "cluster"
    with spark_kbatch.open(path, create=True) as cluster:
        cluster.create_topic("t")
        with cluster.producer() as producer:
            value = framed(1, avro.encode(parsed(SECOND), ORDER))
            producer.send("t", value, key="k", headers=[("h", b"1"), ("h", None)])
            producer.send("t", None)
    options = {"path": str(path), "subscribe": "t", "startingOffsets": "earliest", **options}
    if options.get("value.format") == "avro":
        options["schema.registry.url"] = str(registry)
    source = KBatchDataSource(options)
    schema = source.schema()
    if names is not None:
        schema = StructType([schema[name] for name in names])
    expected = to_arrow_schema(schema, **IN_UTC)

    batch, stream = sent(source).reader(schema), sent(source).streamReader(schema)
    of_batch = batch.partitions()
    of_stream = stream.partitions(stream.initialOffset(), stream.latestOffset())
    for reader, partitions in ((batch, of_batch), (stream, of_stream)):
        found = [one for part in partitions for one in sent(reader).read(sent(part))]
        assert sum(one.num_rows for one in found) == 2
        assert [one.schema for one in found] == [expected] * len(found)


# Spark 4.0 plans each scan of a frame, later ones each `load()`.


@pytest.mark.slow
def test_scans_of_one_frame_agree_on_where_it_ends(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "cluster")
    save(spark.sql("SELECT 'early' AS value FROM range(3)"), path, topic="t")
    frame = load(spark, path, subscribe="t").select("value")

    def append_after(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        with spark_kbatch.open(path) as cluster, cluster.producer() as producer:
            producer.send("t", "late")

    # One task, which starts the second scan once the first one has ended.
    both = frame.mapInArrow(append_after, frame.schema).union(frame).coalesce(1)
    assert [bytes(row.value) for row in both.collect()] == [b"early"] * 6
    assert frame.count() == 4


def test_plans_of_one_frame_share_their_id_while_they_cover_the_same_partitions(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cluster"
    with spark_kbatch.open(path, create=True) as cluster:
        cluster.create_topic("t", partitions=2)
        source = KBatchDataSource({"path": str(path), "subscribe": "t"})
        schema = source.schema()

        def plans() -> set[str]:
            return {one.plan for one in sent(source).reader(schema).partitions()}

        (before,) = plans()
        assert plans() == {before}
        cluster.create_partitions("t", 3)
        (after,) = plans()
        assert after != before
        cluster.delete_topic("t")
        cluster.create_topic("t", partitions=3)
        (recreated,) = plans()
        assert recreated not in (before, after)
        assert {one.partition("-")[0] for one in (before, after, recreated)} == {source._load}


# Values are bytes in Python, which Spark 4.0 hands over as arrays that can be changed.


def test_values_are_bytes_in_python_and_with_spark_4_0_arrays_of_bytes(
    spark: SparkSession, tmp_path: Path
) -> None:
    save(spark.sql("SELECT 'k' AS key, 'v' AS value"), tmp_path / "cluster", topic="t")
    rows = load(spark, tmp_path / "cluster", subscribe="t").select("key", "value").collect()
    assert [[type(one) for one in row] for row in rows] == [
        [bytes if SPARK >= (4, 1) else bytearray] * 2
    ]
    assert rows == [(b"k", b"v")]


# Functions of columns need UDFs over Arrow arrays, which there are from 4.1 on.


@pytest.mark.skipif(SPARK >= (4, 1), reason="from Spark 4.1 on there are UDFs over Arrow arrays")
@pytest.mark.parametrize("function", [from_avro, to_avro])
def test_functions_of_columns_say_which_spark_they_need(function: Any, registry: Path) -> None:
    with pytest.raises(ImportError, match=r"^PySpark 4\.0\.\d+ .*; from_avro .* need 4\.1"):
        function("value", registry=registry, subject="t-value")


def test_map_in_arrow_decodes_and_encodes_with_every_spark(
    spark: SparkSession, registry: Path
) -> None:
    """docs/compatibility.md shows it to users of Spark 4.0."""
    given: dict[str, Any] = {"registry": str(registry), "value_subject": "t-value"}

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = spark_kbatch.decode_values(batch["value"], value_fields="id,tags", **given)
            yield pa.RecordBatch.from_arrays([found.values], ["order"])

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = spark_kbatch.encode_values(batch["order"], value_schema="id:2", **given)
            yield pa.RecordBatch.from_arrays([found], ["value"])

    small = a_record(*SECOND["fields"][:1], SECOND["fields"][3], name="Order")
    assert FolderRegistry(registry).register("t-value", Schema(json.dumps(small))).id == 2
    values = [framed(2, avro.encode(parsed(small), {"id": 1, "tags": ["a"]})), None]
    rows = spark.createDataFrame([(one,) for one in values], "value binary").coalesce(1)
    orders = rows.mapInArrow(decode, "order struct<id: bigint, tags: array<string>>")
    assert orders.collect() == [(Row(id=1, tags=["a"]),), (None,)]
    assert orders.mapInArrow(encode, "value binary").collect() == [(one,) for one in values]
