"""Lets `spark.read.format("kbatch")` work with no registration.

Spark imports every top-level module named `pyspark_*` when it meets a format that it does not
know, and looks for `DefaultSource` in it. One such module that fails to import hides all others,
so this one holds nothing else.
"""

from spark_kbatch.spark.source import KBatchDataSource as DefaultSource

__all__ = ["DefaultSource"]
