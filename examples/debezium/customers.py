"""A table as it is now, from the change events that Debezium wrote of it: as JSON, or as Avro with a schema registry.

spark-submit customers.py json my-cluster shop.public.customers
spark-submit customers.py json-with-schema my-cluster shop.public.customers
spark-submit customers.py avro broker-1:9092 shop.public.customers http://registry:8081
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, max_by, struct

# CREATE TABLE customers (
#   id SERIAL PRIMARY KEY, first_name VARCHAR, balance NUMERIC(9, 2), seen_at TIMESTAMP, since TIMESTAMPTZ);
KEY = "id bigint"
ROW = "id bigint, first_name string, balance binary, seen_at bigint, since timestamp"
VALUE = f"op string, after struct<{ROW}>"

# JSON has a NUMERIC as the bytes of a whole number, without its point. This is right up to 18 digits.
_HEX = "hex(after.balance)"
_WHOLE = f"conv(lpad({_HEX}, 16, IF({_HEX} < '8', '0', 'F')), 16, -10)"
BALANCE = f"CAST({_WHOLE} AS DECIMAL(18, 0)) * 0.01BD"


def events(
    spark: SparkSession, form: str, path: str, topic: str, registry: str | None = None
) -> DataFrame:
    """Read events: the `key`, the `value`, and why one of them is null that should not be."""
    reader = spark.read.format("kbatch").option("subscribe", topic).option("mode", "PERMISSIVE")
    if form == "avro":
        reader = reader.option("key.format", "avro").option("value.format", "avro")
        reader = reader.option("schema.registry.url", registry).option("value.fields", "op,after")
        return reader.load(path)
    reader = reader.option("key.format", "json").option("value.format", "json")
    if form == "json":
        return reader.option("key.schema", KEY).option("value.schema", VALUE).load(path)
    # With schemas.enable=true of Connect's JsonConverter. The schema beside the payload is passed over.
    reader = reader.option("key.schema", f"payload struct<{KEY}>")
    reader = reader.option("value.schema", f"payload struct<{VALUE}>")
    return reader.load(path).withColumns({"key": col("key.payload"), "value": col("value.payload")})


def table(found: DataFrame, form: str) -> DataFrame:
    """Return the rows that there are, by the last event of each key.

    A tombstone, which follows a deletion, is a value that is null. So is an event that cannot be decoded, but that one
    has an error: it is left out, and deletes nothing.
    """
    readable = found.where("key IS NOT NULL AND value_error IS NULL")
    # All events of a key are in one partition, in the order of the database.
    last = readable.groupBy("key.id").agg(max_by(struct("value.*"), "offset").alias("event"))
    rows = last.where("event.after IS NOT NULL").select("event.*")
    balance = "after.balance" if form == "avro" else BALANCE
    return rows.selectExpr(
        "after.id",
        "after.first_name",
        f"CAST({balance} AS DECIMAL(9, 2)) AS balance",
        "timestamp_micros(after.seen_at) AS seen_at",
        "CAST(after.since AS TIMESTAMP) AS since",  # which Avro has as a string
    )


def damaged(found: DataFrame) -> DataFrame:
    """Return where events are that cannot be decoded, and why."""
    bad = found.where("key_error IS NOT NULL OR value_error IS NOT NULL")
    return bad.selectExpr(
        "key.id", "partition", "offset", "coalesce(key_error, value_error) AS error"
    )


if __name__ == "__main__":
    given = events(SparkSession.builder.getOrCreate(), *sys.argv[1:5])
    table(given, sys.argv[1]).show()
    damaged(given).show(truncate=False)
