"""Rows as a read returns them, with and without Spark: names, types and order of their columns.

The columns are those of Spark's Kafka source. Keys and values are bytes, or what a `TypedColumn` makes of them: this
is the one place where that happens, for all places of topics. A key or a value that cannot be decoded is an error
that names its record, or null beside its reason; which of both, `TypedColumns` says. The records
before one that cannot become a row come first, and then the error.

    column beside `value`   in it
    value_schema_id         id of the schema that wrote the value; null where it names none
    value_bytes             the bytes that were decoded
    value_error             why the value is null although its record has one; null for all others

Source: Spark connector/kafka-0-10-sql/.../KafkaRecordToRowConverter.scala.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from spark_kbatch.errors import (
    ConfigError,
    InvalidTimestampError,
    KBatchError,
    RecordDeserializationError,
)
from spark_kbatch.model import OffsetRange, TopicPartition
from spark_kbatch.options import arguments
from spark_kbatch.options.columns import READ
from spark_kbatch.record.codec import RECORD_SCHEMA
from spark_kbatch.record.columns import number_array, repeated_text
from spark_kbatch.terminal import to_json

if TYPE_CHECKING:
    from spark_kbatch.values.decoded import DecodedValues, RowError

ROW_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),  # 0 CreateTime, 1 LogAppendTime, -1 none (V0)
        RECORD_SCHEMA.field("headers"),
    ]
)

assert tuple(ROW_SCHEMA.names) == READ

_RECORD_COLUMNS = {name: name for name in RECORD_SCHEMA.names} | {"timestampType": "timestamp_type"}
_TIMESTAMP = ROW_SCHEMA.field("timestamp").type
_TIMESTAMP_MS = pa.timestamp("ms", tz="UTC")
_TIMES_MS = range(-(2**63 // 1000), 2**63 // 1000 + 1)  # whose microseconds an int64 holds
_MEMORY_MAX = (
    64 << 20
)  # bytes of a column that is decoded at a time: rows of a few bytes may have thousands of fields
_SCHEMA_ID, _BYTES, _ERROR = "schema_id", "bytes", "error"

# Yields the records of a range, with their offsets and headers.
HeadersOf: TypeAlias = Callable[[OffsetRange], Iterator[pa.RecordBatch]]


class TypedColumn(Protocol):
    """A decoder of the bytes of keys, or of values."""

    def decode(self, array: pa.Array, *, memory_max: int | None = None) -> DecodedValues:
        """Decode byte strings.

        Args:
            array: to decode.
            memory_max: how many bytes the values of several rows may take; None for any number.

        Raises:
            OverflowError: the values do not fit into an array, or into that memory; fewer may.
        """


class DecodedColumn:
    """A key or value column that was decoded, and its parts."""

    def __init__(self, found: DecodedValues, texts: Mapping[int, str]) -> None:
        """Take what was decoded, and the errors of rows that are null for that."""
        self._found, self._texts = found, texts

    def part(self, part: str = "") -> pa.Array:
        """Return the values; the schema ids for "schema_id", or the texts of errors for "error"."""
        count = len(self._found.values)
        if part == _SCHEMA_ID:
            ids = self._found.schema_ids
            return pa.array(ids, pa.int32(), mask=ids < 0)
        if part == _ERROR:
            if not self._texts:
                return pa.nulls(count, pa.string())
            return pa.array([self._texts.get(row) for row in range(count)], pa.string())
        return self._found.values

    def only(self, rows: np.ndarray[Any, Any]) -> DecodedColumn:
        """Return the column of some rows, int64[n], which are sorted."""
        found = self._found
        at = np.searchsorted(rows, np.fromiter(self._texts, np.int64))
        bad = zip(at.tolist(), self._texts.items(), strict=True)
        texts = {n: text for n, (row, text) in bad if n < len(rows) and rows[n] == row}
        values = found.values.take(pa.array(rows))
        return DecodedColumn(
            replace(found, values=values, schema_ids=found.schema_ids[rows]), texts
        )

    def shown(self) -> pa.Array:
        """Return the values, which are JSON text, with errors in the place of those that are bad."""
        return (
            pa.array(
                to_json({_ERROR: self._texts[row]}) if row in self._texts else text
                for row, text in enumerate(self._found.values.to_pylist())
            )
            if self._texts
            else self._found.values
        )


@dataclass(frozen=True)
class TypedColumns:
    """The columns whose bytes become something else, and all columns that rows have then."""

    schema: pa.Schema = ROW_SCHEMA
    by_name: Mapping[str, TypedColumn] = field(default_factory=dict)  # of key, value
    is_permissive: bool = False
    remedy: str = ""  # about a bad key or value; {column} is its name, {after} the next offset
    # Where headers of records say how: as `TypedColumn.decode`, with the headers in front.
    by_headers: Mapping[str, Callable[..., DecodedValues]] = field(default_factory=dict)

    def beside(self, names: Collection[str]) -> list[str]:
        """Return the columns of RECORD_SCHEMA that are needed beside those that are decoded.

        An error about a value names the offset, which costs nothing.
        """
        headers = [] if self.by_headers.keys().isdisjoint(names) else ["headers"]
        return ["offset", *headers] if names else []

    def decoded(
        self,
        batch: pa.RecordBatch,
        names: Collection[str],
        topic_partition: TopicPartition,
        headers_of: HeadersOf | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, dict[str, DecodedColumn]]]:
        """Yield records with their decoded columns: at once, or in parts of bounded memory.

        Args:
            batch: the records.
            names: the columns to decode, of `by_name`; the records have those `beside` them.
            topic_partition: where they are.
            headers_of: asked for the headers of records that cannot be decoded: they may say why.

        Raises:
            RecordDeserializationError: a key or a value that cannot be decoded, unless such are null;
                after all records before it.
            OverflowError: a single value that does not fit into an array.
        """
        try:
            found = {
                name: self._decoder(name, batch)(batch.column(name), memory_max=_MEMORY_MAX)
                for name in names
            }
        except OverflowError:
            if batch.num_rows < 2:
                raise
            middle = batch.num_rows // 2
            for part in (batch.slice(0, middle), batch.slice(middle)):
                yield from self.decoded(part, names, topic_partition, headers_of)
            return

        told = functools.partial(self._told, batch, topic_partition, headers_of)
        bad = [(one.errors[0].row, name) for name, one in found.items() if one.errors]
        if bad and not self.is_permissive:
            row, name = min(bad)
            if row:
                yield from self.decoded(batch.slice(0, row), names, topic_partition, headers_of)
            raise told(name, found[name].errors[:1])[row]
        yield (
            batch,
            {
                name: DecodedColumn(
                    one, {row: str(why) for row, why in told(name, one.errors).items()}
                )
                for name, one in found.items()
            },
        )

    def _decoder(self, name: str, batch: pa.RecordBatch) -> Callable[..., DecodedValues]:
        """Return what decodes a column of records."""
        if name in self.by_headers:
            return functools.partial(self.by_headers[name], batch.column("headers"))
        return self.by_name[name].decode

    def _told(
        self,
        batch: pa.RecordBatch,
        topic_partition: TopicPartition,
        headers_of: HeadersOf | None,
        name: str,
        errors: Sequence[RowError],
    ) -> dict[int, RecordDeserializationError]:
        """Return, by row, the errors of a column in terms of its records."""
        offsets = batch.column("offset") if errors else ()
        reasons = (
            {}  # its decoder has seen the headers
            if name in self.by_headers
            else _reasons_in_headers(errors, offsets, name, topic_partition, headers_of)
        )
        found = {}
        for error in errors:
            offset = offsets[error.row].as_py()
            found[error.row] = RecordDeserializationError(
                *topic_partition, offset, name, reasons.get(offset, error.reason), error.path,
                -1 if error.position is None else error.position,
                -1 if error.schema_id is None else error.schema_id,
                "" if self.is_permissive else self.remedy.format(column=name, after=offset + 1),
            )  # fmt: skip
        return found


def _reasons_in_headers(
    errors: Sequence[RowError],
    offsets: pa.Array,
    name: str,
    topic_partition: TopicPartition,
    headers_of: HeadersOf | None,
) -> dict[int, str]:
    """Return, by offset, why records cannot be decoded whose schema is named in a header.

    They are read again for that, all of them only if the first one is of this kind. What cannot be read by now keeps
    the reason that it had, and so does what is wrong at a byte that has a position.
    """
    errors = [one for one in errors if one.position is None]
    if headers_of is None or not errors:
        return {}
    from spark_kbatch.values.framing import named_in_header  # noqa: PLC0415  needed for bad records only

    bad = {offsets[error.row].as_py() for error in errors}
    reasons: dict[int, str] = {}

    def look(until: int) -> None:
        for records in headers_of(OffsetRange(topic_partition, min(bad), until)):
            numbers, headers = records.column("offset").to_pylist(), records.column("headers")
            for row, offset in enumerate(numbers):
                reason = named_in_header(name, headers[row].as_py()) if offset in bad else ""
                if reason:
                    reasons[offset] = reason

    with contextlib.suppress(KBatchError, OSError):
        look(min(bad) + 1)
        if reasons and len(bad) > 1:
            look(max(bad) + 1)
    return reasons


BYTES = TypedColumns()


def row_schema(
    types: Mapping[str, pa.DataType],
    *,
    with_schema_id: Collection[str] = (),
    with_bytes: bool = False,
    with_errors: bool = False,
) -> pa.Schema:
    """Return the columns of rows whose key, value, or both have these types.

    Args:
        types: of those columns that are not bytes.
        with_schema_id: those of them that have a column of schema ids beside them.
        with_bytes: whether all of them have a column of their bytes.
        with_errors: whether all of them have a column of errors.
    """
    fields = [pa.field(one.name, types.get(one.name, one.type)) for one in ROW_SCHEMA]
    for name in (one for one in ("key", "value") if one in types):
        if name in with_schema_id:
            fields.append(pa.field(f"{name}_{_SCHEMA_ID}", pa.int32()))
        if with_bytes:
            fields.append(pa.field(f"{name}_{_BYTES}", pa.binary()))
        if with_errors:
            fields.append(pa.field(f"{name}_{_ERROR}", pa.string()))
    return pa.schema(fields)


def ensure_columns(columns: Any, known: Sequence[str] = tuple(ROW_SCHEMA.names)) -> list[str]:
    """Return a list of column names, checked against those that rows have.

    Raises:
        ConfigError: an unknown column, with the nearest; or one that is named twice.
    """
    names = arguments.names("columns", columns, "a list of columns, such as ['offset', 'value']")
    for name in names:
        if name not in known:
            (near,) = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            raise ConfigError(
                f"columns names {name!r}, which rows do not have; the nearest is {near!r}, they have: "
                f"{', '.join(known)}"
            )
        if names.count(name) > 1:
            raise ConfigError(f"columns names {name!r} twice; name each column once")
    return names


class _RowColumn(NamedTuple):
    """A column of rows, and what it is made of."""

    name: str
    source: str  # column of RECORD_SCHEMA; empty for topic and partition
    part: str = ""  # of a typed column: its values if empty

    def is_of(self, typed: TypedColumns) -> bool:
        """Return True if a typed column is decoded for it."""
        return self.part != _BYTES and self.source in typed.by_name


class RecordChoice(Protocol):
    """A choice of the records that become rows, by columns that are decoded for that."""

    typed: TypedColumns  # by which keys and values are decoded
    decoded: list[str]  # names of RECORD_SCHEMA

    def rows(
        self,
        batch: pa.RecordBatch,
        topic_partition: TopicPartition,
        headers_of: HeadersOf | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, dict[str, DecodedColumn]]]:
        """Yield the chosen records of a batch, and what was decoded of them; none that are empty."""


class Rows:
    """A converter of decoded records to rows with the requested columns.

    Only these columns are decoded.
    """

    def __init__(
        self,
        columns: Sequence[str],
        typed: TypedColumns = BYTES,
        *,
        headers_of: HeadersOf | None = None,
        where: RecordChoice | None = None,
    ) -> None:
        """Set up for rows with these columns.

        Args:
            columns: names of `typed.schema`.
            typed: what keys and values become.
            headers_of: asked for the headers of records that cannot be decoded: they may say why.
            where: which rows to return; all by default.
        """
        self._where = where
        self._typed, self._headers_of = typed, headers_of
        self._columns = [row_column(name, typed) for name in columns]
        self.schema = pa.schema([typed.schema.field(name) for name in columns])
        self._typed_names = {one.source for one in self._columns if one.is_of(typed)}
        # Columns of RECORD_SCHEMA to decode for them.
        needed = [
            *(one.source for one in self._columns if one.source),
            *typed.beside(self._typed_names),
            *(where.decoded if where else []),
        ]
        self.decoded = list(dict.fromkeys(needed))

    def of(
        self, batches: Iterable[pa.RecordBatch], topic_partition: TopicPartition
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows made from the records of one partition, which have the columns `decoded`.

        Raises:
            InvalidTimestampError: a time that does not fit a timestamp in microseconds.
            RecordDeserializationError: a key or a value that cannot be decoded, unless such are null.
        """
        for batch in batches:
            yield from self._of(batch, topic_partition)

    def _of(
        self, batch: pa.RecordBatch, topic_partition: TopicPartition
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch: one, or more where their columns would take much memory."""
        for records, decoded in self._decoded(batch, topic_partition):
            if not self._columns:
                yield records.select([])
                continue
            try:
                arrays = self._arrays(records, decoded, topic_partition)
            except InvalidTimestampError as error:
                row = records.column("timestamp").index(error.timestamp_ms).as_py()
                if row:
                    yield from self._of(records.slice(0, row), topic_partition)
                if "offset" not in records.schema.names:
                    raise
                where = f", at offset {records.column('offset')[row]} of {topic_partition},"
                raise replace(error, where=where) from None
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _decoded(
        self, batch: pa.RecordBatch, topic_partition: TopicPartition
    ) -> Iterator[tuple[pa.RecordBatch, dict[str, DecodedColumn]]]:
        """Yield records that are to be rows, with their decoded columns."""
        wanted = (topic_partition, self._headers_of)
        is_shared = self._where is not None and self._where.typed is self._typed
        chosen = [(batch, {})] if self._where is None else self._where.rows(batch, *wanted)
        for records, decoded in chosen:
            if is_shared and self._typed_names <= decoded.keys():
                yield records, decoded
            else:
                yield from self._typed.decoded(records, self._typed_names, *wanted)

    def _arrays(
        self,
        batch: pa.RecordBatch,
        decoded: Mapping[str, DecodedColumn],
        topic_partition: TopicPartition,
    ) -> list[pa.Array]:
        arrays = []
        for name, source, part in self._columns:
            if name == "topic":
                arrays.append(repeated_text(topic_partition.topic, batch.num_rows))
            elif name == "partition":
                same = np.full(batch.num_rows, topic_partition.partition, np.int32)
                arrays.append(number_array(same))
            elif name == "timestamp":
                arrays.append(_to_timestamp(batch.column("timestamp"), topic_partition.topic))
            elif part == _BYTES or source not in decoded:
                arrays.append(batch.column(source))
            else:
                arrays.append(decoded[source].part(part))
        return arrays


def row_column(name: str, typed: TypedColumns) -> _RowColumn:
    """Return what a column of rows is made of."""
    source, _, part = name.partition("_")
    if part and source in typed.by_name:
        return _RowColumn(name, source, part)
    return _RowColumn(name, _RECORD_COLUMNS.get(name, ""))


def _to_timestamp(times_ms: pa.Array, topic: str) -> pa.Array:
    try:
        return times_ms.cast(_TIMESTAMP_MS).cast(_TIMESTAMP)  # checks the multiplication
    except pa.ArrowInvalid:
        first = next(one for one in times_ms.to_pylist() if one not in _TIMES_MS)
        raise InvalidTimestampError(first, topic) from None
