"""`format("kbatch")`: options, schema, registration.

Options are checked in `schema`, because an error raised there is what makes `load()` fail. Where the
user gives a schema Spark does not call `schema`, so the reader checks again.

Source: Spark connector/kafka-0-10-sql/.../KafkaSourceProvider.scala, KafkaRecordToRowConverter.scala.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_kbatch.cluster.job import Job
from spark_kbatch.consumer import planning
from spark_kbatch.errors import ConfigError, KBatchError
from spark_kbatch.opening import open_topics
from spark_kbatch.options.read import (
    parse_batch_or_stream_options,
    parse_read_options,
    parse_stream_read_options,
)
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.spark.reader import KBatchReader
from spark_kbatch.spark.shown import briefly
from spark_kbatch.spark.stream_reader import FailedStreamReader, KBatchStreamReader
from spark_kbatch.spark.workers import why_unknown_to_workers
from spark_kbatch.spark.writer import KBatchStreamWriter, KBatchWriter, ensure_writable

HEADERS_TYPE = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)

ROW_SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", HEADERS_TYPE),
    ]
)


_TABLE_KEYS = frozenset({"owner", "provider"})


class KBatchDataSource(DataSource):
    """The data source. Options: the tables in the README, made from `config` and `read_config`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # A table's own options arrive here when it is made, with keys that only tables have, and not
        # when it is read or written.
        if not options or not _TABLE_KEYS.isdisjoint(key.lower() for key in options):
            raise ConfigError(
                "no options: name at least the cluster's folder and a topic. A table of the catalog "
                "cannot have kbatch's data, because Spark does not pass a table's options to sources "
                "written in Python: use CREATE TEMPORARY VIEW name USING kbatch OPTIONS (path 'PATH', "
                "subscribe 'TOPIC')"
            )

    @classmethod
    def name(cls) -> str:
        """What `format()` takes."""
        return "kbatch"

    @briefly
    def schema(self) -> StructType:
        """Spark's Kafka row, with headers where they are wanted; checks the options."""
        options, is_batch = parse_batch_or_stream_options(self.options)
        topics = open_topics(options).source
        if is_batch:
            planning.ranges(options, topics)
        else:
            # A stream that goes on from its checkpoint does not need what its starting offsets name.
            planning.selected(options.selection, topics, strict=options.fail_on_data_loss)
        return ROW_SCHEMA if options.include_headers else StructType(ROW_SCHEMA.fields[:-1])

    @briefly
    def reader(self, schema: StructType) -> KBatchReader:
        """Of the columns that the user or `schema` named."""
        options = parse_read_options(self.options)
        _ensure_readable(schema)
        path = open_topics(options).source.path
        return KBatchReader(options, path, schema.fieldNames())

    def streamReader(self, schema: StructType) -> KBatchStreamReader | FailedStreamReader:
        """Of the columns that the user or `schema` named; never raises."""
        try:
            options = parse_stream_read_options(self.options)
            _ensure_readable(schema)
            path = open_topics(options).source.path
        except KBatchError as error:
            return FailedStreamReader(error.with_traceback(None))
        return KBatchStreamReader(options, path, schema.fieldNames())

    @briefly
    def writer(self, schema: StructType, overwrite: bool) -> KBatchWriter:
        """Of one job; makes cluster and topic where they do not exist."""
        options = parse_write_options(self.options)
        ensure_writable(schema, options)
        return KBatchWriter(Job.begin(options, overwrite=overwrite))

    @briefly
    def streamWriter(self, schema: StructType, overwrite: bool) -> KBatchStreamWriter:
        """Of one micro-batch. Output mode complete appends, as with Spark's Kafka sink."""
        options = parse_write_options(_without_query(self.options))
        ensure_writable(schema, options)
        if options.txn_app_id is not None:
            raise ConfigError(
                "option 'txnAppId' is for batch writes; a streaming query has an id of its own, under "
                "which every micro-batch is written once: leave it out"
            )
        return KBatchStreamWriter(Job.begin(options))


def _without_query(options: Mapping[str, str]) -> dict[str, str]:
    """Without what Spark adds of a query: its checkpoint location and its name."""
    return {
        key: value
        for key, value in options.items()
        if key.lower() not in ("checkpointlocation", "queryname")
    }


def _ensure_readable(schema: StructType) -> None:
    """Check a schema that the user gave: some of our columns, with their types."""
    known = {field.name: field.dataType for field in ROW_SCHEMA}
    for field in schema:
        if field.name not in known:
            raise ConfigError(
                f"the schema names the column {field.name!r}; columns are: {', '.join(known)}"
            )
        if field.dataType.simpleString() != known[field.name].simpleString():
            raise ConfigError(
                f"the schema gives column {field.name!r} the type {field.dataType.simpleString()}; it "
                f"is {known[field.name].simpleString()}"
            )
        if not field.nullable or _has_never_null(field.dataType):
            raise ConfigError(
                f"the schema says that column {field.name!r}, or something in it, is never null; every "
                "column may be null, and so may what is in it: leave NOT NULL out"
            )


def _has_never_null(given: DataType) -> bool:
    """Whether something in an array or struct is declared as never null: Spark would refuse our rows."""
    if isinstance(given, ArrayType):
        return not given.containsNull or _has_never_null(given.elementType)
    if isinstance(given, StructType):
        return any(not field.nullable or _has_never_null(field.dataType) for field in given)
    return False


def register(spark: SparkSession) -> None:
    """Make `format("kbatch")` known to one session, and to writes of the calling thread.

    Spark finds the source by itself where spark_kbatch is installed, and for writes only in the main
    thread. This is for other threads that write, and for sessions whose workers get the package in
    another way, such as `--py-files`. Warns where workers do not have the package.
    """
    why_unknown = why_unknown_to_workers(spark)
    if why_unknown:
        warnings.warn(why_unknown, stacklevel=3)
    spark.dataSource.register(KBatchDataSource)
    # Spark looks for a write's format in the session that is active in the thread. This call makes
    # it so; PySpark has none that does nothing else.
    spark.createDataFrame([], "value string")
