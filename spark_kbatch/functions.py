"""Functions of Spark's columns: Avro from any source to columns, and back, with a schema registry and with no JAR.

    from spark_kbatch.functions import from_avro, to_avro

    orders = df.select(from_avro("payload", registry="https://registry:8081", subject="orders-value").alias("order"))

For topics, the option `value.format` does the same in reads and writes of `format("kbatch")`, and its errors name
topic, partition and offset. docs/values.md describes both. The functions need Spark 4.1 or newer, and raise ImportError
with another; docs/compatibility.md shows what works there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spark_kbatch.options.paths import StrPath

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

__all__ = ["from_avro", "to_avro"]


def from_avro(
    column: Column | str,
    schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    registry: StrPath | Mapping[str, str] | None = None,
    subject: str | None = None,
    framing: str | None = None,
    fields: str | Sequence[str] | None = None,
    mode: str = "FAILFAST",
    include_schema_id: bool = False,
) -> Column:
    """Decode a column of bytes, each value with the schema that wrote it, into a column of one schema's type.

        df.select(from_avro("payload", registry="https://registry:8081", subject="orders-value"))
        df.select(from_avro("payload", "file:order.avsc"))  # with no registry and no framing

    The registry is asked when this is called, on the driver; tasks ask only for schemas that they do not know.

    Args:
        column: of type binary, or its name. Null stays null.
        schema: that values are read as: "latest", the default, "version:3", "id:7", "file:order.avsc", or JSON, as
            text or as Python has it.
        registry: of schemas, as for `spark_kbatch.Cluster.read`.
        subject: in the registry, for "latest" and "version:3".
        framing: "confluent" where each value has Confluent's five bytes in front, or "none", where `schema` wrote
            them all. By default "confluent" if there is a registry.
        fields: that are wanted, such as "order_id,customer.id"; only these are decoded.
        mode: what becomes of a value that cannot be decoded: "FAILFAST", an error, or "PERMISSIVE", null.
        include_schema_id: whether to return the id of the schema that wrote each value.

    Returns:
        A column of the schema's type. With mode "PERMISSIVE" or with schema ids, a struct of `value` and,
        where they are asked for, `schema_id`, and `error`: why a value is null that is not null in `column`.

    Raises:
        ConfigError: an argument is not accepted, or the schema cannot be read as columns.
        SchemaRegistryError: the registry does not have the schema, or cannot be asked.
    """
    from spark_kbatch.columns.functions import decoded_column  # noqa: PLC0415  loads the kernels
    from spark_kbatch.spark import functions  # noqa: PLC0415  loads pyspark

    given = {
        "schema": schema,
        "subject": subject,
        "framing": framing,
        "fields": fields,
        "mode": mode,
    }
    return functions.decode(
        column, decoded_column(registry, given, include_schema_id=include_schema_id)
    )


def to_avro(
    column: Column | str,
    schema: str | Mapping[str, Any] | Sequence[Any] | DataType | None = None,
    *,
    registry: StrPath | Mapping[str, str] | None = None,
    subject: str | None = None,
    framing: str | None = None,
    auto_register: bool = False,
) -> Column:
    """Encode a column as values of a schema.

        df.select(to_avro(struct("order_id", "customer"), registry="https://registry:8081", subject="orders-value"))

    The registry is asked when this is called, on the driver.

    Args:
        column: of any type that fits the schema, or its name: fields go to fields by their names. Null stays null.
        schema: that values are written with, as for `from_avro`; or the column's type in Spark, such
            as `df.schema`, of which a schema is made as by a write.
        registry, subject: as for `from_avro`; a schema that is JSON or a file has its id under the subject.
        framing: "confluent", to put the schema's id in front of each value, or "none". By default "confluent" if
            there is a registry.
        auto_register: whether to register a schema that is JSON, a file or a type, if the subject
            does not have it.

    Returns:
        A column of type binary. A row that does not fit the schema fails the job, with an error that names the field.

    Raises:
        ConfigError: an argument is not accepted, or the schema cannot be written with.
        SchemaRegistryError: the registry does not have the schema or does not allow it, or cannot be asked.
    """
    from spark_kbatch.columns.functions import encoded_column  # noqa: PLC0415  loads the kernels
    from spark_kbatch.spark import functions  # noqa: PLC0415  loads pyspark

    kind = functions.arrow_type(schema)
    given = {"schema": schema if kind is None else None, "subject": subject, "framing": framing}
    encoded = encoded_column(registry, given, auto_register=auto_register, kind=kind)
    return functions.encode(column, encoded)
