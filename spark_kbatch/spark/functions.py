"""Functions of columns as Spark's UDFs over Arrow arrays: a task decodes or encodes whole batches.

A UDF over an iterator, so that a task prepares its decoder once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import Column
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import BinaryType, DataType

from spark_kbatch.columns.functions import DecodedColumnOfBytes, EncodedColumn
from spark_kbatch.spark.process import briefly, freeze_modules

try:
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]  # its stubs lack it
except ImportError:
    raise ImportError(
        f"PySpark {pyspark.__version__} is installed; from_avro and to_avro need 4.1 or newer, because "
        "earlier versions have no functions over Arrow arrays. For a topic's keys and values, the options "
        "key.format and value.format do the same; for other columns call spark_kbatch.decode_values or "
        "encode_values in DataFrame.mapInArrow"
    ) from None


def decode(column: Column | str, decoded: DecodedColumnOfBytes) -> Column:
    """Return a column of decoded values."""

    @briefly
    def from_avro(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
        freeze_modules()
        yield from decoded.decoded(arrays)

    kind = from_arrow_type(decoded.type, prefer_timestamp_ntz=True)
    result: Column = arrow_udf(from_avro, kind)(column)
    return result


def arrow_type(schema: Any) -> pa.DataType | None:
    """Return a type of Spark, such as `df.schema`, as one of Arrow; None for other schemas."""
    from spark_kbatch.spark.writer import IN_UTC  # noqa: PLC0415  tasks do without

    return to_arrow_type(schema, **IN_UTC) if isinstance(schema, DataType) else None


def encode(column: Column | str, encoded: EncodedColumn) -> Column:
    """Return a column of encoded values."""

    @briefly
    def to_avro(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
        freeze_modules()
        yield from encoded.encoded(arrays)

    result: Column = arrow_udf(to_avro, BinaryType())(column)
    return result
