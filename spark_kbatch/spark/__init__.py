"""The PySpark data source `kbatch`, its readers and writers; the only code that imports pyspark.

Spark pickles these objects between short-lived Python processes: the planner calls `schema`, `reader`,
`partitions` and `writer`, tasks call `read` and `write`, and another process calls `commit`. No process
sees what another one sets. So options travel in the objects, and results in partitions and commit
messages. Only a streaming query's offsets come from one process that lives as long as its run.
"""

try:
    import pyspark  # noqa: F401  an extra, so its absence is reported in one place
except ModuleNotFoundError as error:
    if error.name != "pyspark":
        raise
    raise ModuleNotFoundError(
        "PySpark is not installed; the Spark data source needs it: pip install 'spark-kbatch[spark]', or "
        "pip install '.[spark]' in a clone of the repository",
        name="pyspark",
    ) from None
