"""The Spark data source `format("kbatch")`: its options, schema and registration.

Options are checked in `schema`, because an error there makes `load()` fail. If the user gives a schema,
Spark does not call `schema`, so the reader checks again. What `schema` found out about the schemas of keys
and values stays with the data source, which Spark sends to the process that asks for a reader.

Registration checks the Python that Spark's workers run, which may lack this package. Spark runs
`python3` from PATH unless PYSPARK_PYTHON is set. So a program in a virtual environment that is not
activated (in an IDE, in Jupyter, from cron) has workers without its packages.

A job may also bring the package along, as a zip. Then tasks find it, and so does the process that plans a
batch; the one that plans a stream does not, because Spark has it look in a folder that is not there. So that
process needs the zip on its PYTHONPATH, which `_found_by_planners` sees to.

Source: Spark connector/kafka-0-10-sql/.../KafkaSourceProvider.scala,
KafkaRecordToRowConverter.scala; Spark
sql/core/.../python/streaming/PythonStreamingSourceRunner.scala.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import uuid
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_kbatch.columns.reading import PinnedColumns, Scan, pinned, pinned_where
from spark_kbatch.columns.writing import written_columns
from spark_kbatch.errors import ConfigError, KBatchError
from spark_kbatch.opening.stores import begin_job, ensure_selection_exists, with_absolute_path
from spark_kbatch.options.read import (
    ReadOptions,
    parse_batch_or_stream_options,
    parse_read_options,
    parse_stream_read_options,
)
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.spark.process import briefly
from spark_kbatch.spark.reader import FailedStreamReader, KBatchReader, KBatchStreamReader
from spark_kbatch.spark.writer import (
    KBatchStreamWriter,
    KBatchWriter,
    encoded_types,
    ensure_writable,
)

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


_IMPORTS_MAX_SECONDS = 60
_TABLE_KEYS = frozenset({"owner", "provider"})


class KBatchDataSource(DataSource):
    """The data source `kbatch`. Its options are described in docs/options.md."""

    _pinned: PinnedColumns | None = None  # once `schema` was called

    @briefly
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._load = uuid.uuid4().hex  # travels to each process that plans a scan of one `load()`
        # A catalog table's options arrive only when it is created, with keys that only tables have; when
        # it is read or written there are none.
        if not options or not _TABLE_KEYS.isdisjoint(key.lower() for key in options):
            raise ConfigError(
                "no options: name at least the cluster's folder and a topic. Catalog tables are not "
                "supported, because Spark does not pass a table's options to data sources written in "
                "Python: use CREATE TEMPORARY VIEW name USING kbatch OPTIONS (path 'PATH', subscribe "
                "'TOPIC')"
            )

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "kbatch"

    @briefly
    def schema(self) -> StructType:
        """Check the options; return the schema of Spark's Kafka row, with headers if asked for.

        Keys and values have the types that their formats give them, and columns beside them.
        """
        options, is_batch = parse_batch_or_stream_options(self.options)
        ensure_selection_exists(options, is_batch=is_batch)
        self._pinned = pinned(options.values)
        pinned_where(options.where, self._pinned)
        fields = _row_fields(self._pinned).values()
        return StructType([f for f in fields if options.include_headers or f.name != "headers"])

    @briefly
    def reader(self, schema: StructType) -> KBatchReader:
        """Return a batch reader of the schema's columns."""
        options = parse_read_options(self.options)
        scan = self._scan_of(schema, options)
        return KBatchReader(with_absolute_path(options), scan, self._load)

    def streamReader(self, schema: StructType) -> KBatchStreamReader | FailedStreamReader:
        """Return a stream reader of the schema's columns, or for bad options one that raises later."""
        try:
            options = parse_stream_read_options(self.options)
            scan = self._scan_of(schema, options)
            options = with_absolute_path(options)
        except KBatchError as error:
            return FailedStreamReader(error.with_traceback(None))
        return KBatchStreamReader(options, scan)

    def _scan_of(self, schema: StructType, options: ReadOptions) -> Scan:
        """Return what records become: of keys and values, those fields alone that a user's schema names.

        The condition also sees fields that it leaves out.
        """
        columns = self._pinned
        if columns is None:
            columns = pinned(options.values, {one.name: _wanted(one.dataType) for one in schema})
        _ensure_readable(schema, columns)
        is_of_all = options.where is None or columns is self._pinned
        where = pinned_where(options.where, columns if is_of_all else pinned(options.values))
        return Scan(schema.fieldNames(), columns, where)

    @briefly
    def writer(self, schema: StructType, overwrite: bool) -> KBatchWriter:
        """Return a batch job's writer; create the embedded cluster and its topic if they do not exist."""
        options = parse_write_options(self.options)
        columns = written_columns(options.values, encoded_types(schema, options.values))
        ensure_writable(schema, options, columns)
        return KBatchWriter(begin_job(options, overwrite=overwrite), columns)

    @briefly
    def streamWriter(self, schema: StructType, overwrite: bool) -> KBatchStreamWriter:
        """Return a micro-batch's writer. Output mode complete appends, as with Spark's Kafka sink."""
        options = parse_write_options(_without_query(self.options))
        types = encoded_types(schema, options.values)
        columns = written_columns(options.values, types, is_micro_batch=True)
        ensure_writable(schema, options, columns)
        if options.txn_app_id is not None:
            raise ConfigError(
                "option 'txnAppId' is for batch writes; leave it out: a streaming query has an id of its "
                "own, under which each micro-batch is written exactly once"
            )
        return KBatchStreamWriter(
            begin_job(options, is_micro_batch=True),
            columns,
            self.options.get("checkpointLocation", ""),
        )


def _without_query(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without those that Spark adds: checkpoint location and query name."""
    return {
        key: value
        for key, value in options.items()
        if key.lower() not in ("checkpointlocation", "queryname")
    }


def _row_fields(columns: PinnedColumns) -> dict[str, StructField]:
    """Return all columns that rows can have, in their order."""
    kafkas = {one.name: one for one in ROW_SCHEMA}
    typed = {one.options.column for one in columns.columns}
    return {
        one.name: kafkas[one.name]
        if one.name in kafkas and one.name not in typed
        else StructField(one.name, from_arrow_type(one.type, prefer_timestamp_ntz=True))
        for one in columns.schema
    }


def _wanted(given: DataType) -> dict[str, Any]:
    """Return the names of the fields of a type, each with those below it; none for what is no struct."""
    match given:
        case ArrayType(elementType=inner) | MapType(valueType=inner):
            return _wanted(inner)
        case StructType():
            return {one.name: _wanted(one.dataType) for one in given}
    return {}


def _ensure_readable(schema: StructType, columns: PinnedColumns) -> None:
    """Check a user's schema for a read: only columns that rows can have, with their types."""
    known = {name: one.dataType for name, one in _row_fields(columns).items()}
    for field in schema:
        if field.name not in known:
            raise ConfigError(
                f"the schema has an unknown column {field.name!r}; known columns: {', '.join(known)}"
            )
        if field.dataType.simpleString() != known[field.name].simpleString():
            raise ConfigError(
                f"the schema gives column {field.name!r} the type {field.dataType.simpleString()}; it "
                f"is {_in_any_session(known[field.name].simpleString())}"
            )
        if not field.nullable or _has_never_null(field.dataType):
            raise ConfigError(
                f"the schema declares column {field.name!r}, or a part of it, as NOT NULL; leave that "
                "out: every column and its parts may be null"
            )
        error_column = f"{field.name}_error"
        if error_column in known and error_column not in schema.fieldNames():
            raise ConfigError(
                f"the schema has the column {field.name!r} without {error_column} STRING, in mode PERMISSIVE: "
                f"a {field.name} that cannot be decoded would look like one that is null"
            )


def _in_any_session(kind: str) -> str:
    """Return a type's name that does not depend on what spark.sql.timestampType is."""
    return re.sub(r"\btimestamp\b(?!:)", "timestamp_ltz", kind)  # a field may have the name


def _has_never_null(given: DataType) -> bool:
    """Return True if a part of an array or struct is declared NOT NULL: Spark would refuse our rows."""
    if isinstance(given, ArrayType):
        return not given.containsNull or _has_never_null(given.elementType)
    if isinstance(given, MapType):
        return not given.valueContainsNull or _has_never_null(given.valueType)
    if isinstance(given, StructType):
        return any(not field.nullable or _has_never_null(field.dataType) for field in given)
    return False


def register(spark: SparkSession) -> None:
    """Register `format("kbatch")` with a session, and for writes of the calling thread.

    If spark_kbatch is installed, Spark finds the source by itself, but for writes only in the main thread.
    Call this in other threads that write, and in sessions whose workers get the package in another way,
    such as `--py-files`. Warns if the workers lack the package.
    """
    why_unknown = _why_unknown_to_workers(spark)
    if why_unknown:
        warnings.warn(why_unknown, stacklevel=3)
    try:
        with _found_by_planners(spark):
            spark.dataSource.register(KBatchDataSource)
    except AnalysisException as error:
        # Spark 4.0 refuses to register what it has found by itself.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    # Spark looks up a write's format in the session that is active in the thread. This call makes the
    # session active; PySpark has no call that does only that.
    spark.createDataFrame([], "value string")


def _why_unknown_to_workers(spark: SparkSession) -> str:
    """Return why workers cannot import this package, and what to do; empty if they can.

    Also empty if that cannot be found out here: with Spark Connect, or if the job ships the package.
    """
    try:
        context = spark.sparkContext
        python, brought_along = context.pythonExec, context._python_includes  # noqa: SLF001  not public
    except AttributeError:
        return ""
    if brought_along or _is_zipped():
        return ""
    return why_not_importable(python)


def _is_zipped() -> bool:
    return not Path(__file__).is_file()


@contextlib.contextmanager
def _found_by_planners(spark: SparkSession) -> Iterator[None]:
    """Let the processes of a source that is registered meanwhile find this package, if it is a job's zip.

    Spark starts them with the environment that the context has at that moment.
    """
    if not _is_zipped():
        yield
        return
    environment = spark.sparkContext.environment
    before = environment.get("PYTHONPATH")
    archive = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (archive, before)))
    try:
        yield
    finally:
        del environment["PYTHONPATH"]
        if before is not None:
            environment["PYTHONPATH"] = before


def why_not_importable(python: str) -> str:
    """Return why the interpreter `python` cannot import this package; empty if it can."""
    found = shutil.which(python)
    if found is not None and _is_this_python(Path(found)):
        return ""
    if found is None:
        reason = "which does not exist"
    else:
        reason = _error_of_import(found)
        if not reason:
            return ""
        reason = f"which is {found} and cannot import spark_kbatch ({reason})"
    return (
        f"Spark's workers run {python!r}, {reason}; this session runs {sys.executable}. Before the "
        'session is created, add: import os, sys; os.environ["PYSPARK_PYTHON"] = sys.executable. An '
        "existing session keeps its workers' Python: stop it with spark.stop() first, or in a notebook "
        "restart the kernel"
    )


def _is_this_python(python: Path) -> bool:
    # Compare folders: the python of a virtual environment is a link to the one it was created from.
    ours = Path(sys.executable)
    return python.absolute().parent == ours.absolute().parent and python.samefile(ours)


def _error_of_import(python: str) -> str:
    """Return the last line of the error when `python` imports this package; empty without an error."""
    command = [python, "-c", "import spark_kbatch.spark.source"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_IMPORTS_MAX_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
