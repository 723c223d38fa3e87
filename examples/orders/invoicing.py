"""A streaming job: orders come in as JSON, an invoice goes out for each that can be delivered.

spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.0 invoicing.py kafka broker-1:9092 /checkpoints/invoicing
"""

import sys

from pyspark.sql import SparkSession, functions
from pyspark.sql.streaming import StreamingQuery

ORDER = "id STRING, customer STRING, price DOUBLE, quantity INT"


def invoice(
    spark: SparkSession,
    source: str,
    servers: str,
    checkpoint: str,
    *,
    orders: str = "orders",
    invoices: str = "invoices",
) -> StreamingQuery:
    """Start the job on what is there; its source is `kafka`, or `kbatch` for a folder."""
    given = (
        spark.readStream.format(source)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", orders)
        .option("startingOffsets", "earliest")
        .load()
    )
    order = functions.from_json(functions.col("value").cast("string"), ORDER)
    amount = functions.round(functions.col("order.price") * functions.col("order.quantity"), 2)
    return (
        given.select(order.alias("order"))
        .where("order.id IS NOT NULL AND order.quantity > 0")
        .select(
            functions.col("order.customer").alias("key"),
            functions.to_json(functions.struct("order.id", amount.alias("amount"))).alias("value"),
        )
        .writeStream.format(source)
        .option("kafka.bootstrap.servers", servers)
        .option("topic", invoices)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    invoice(SparkSession.builder.getOrCreate(), *sys.argv[1:4]).awaitTermination()
