"""The PySpark data source `kbatch`, its readers and writers; the only code that imports pyspark.

Spark pickles these objects between short-lived Python processes: the planner calls `schema`, `reader`,
`partitions` and `writer`, tasks call `read` and `write`, and another process calls `commit`. No process
sees what another one sets. So options travel in the objects, and results in partitions and commit
messages. Only a streaming query's offsets come from one process that lives as long as its run. The
process that commits has neither a session nor a JVM: it reads the query's checkpoint as files.

    source         the data source: options, schema, registration, the Python that workers run
    reader         reads of batches and streams: a plan, and its tasks
    writer         writes: tasks and their commit, of a batch or a micro-batch
    functions      functions of columns
    maintaining    maintenance of a bucket as a job
    lag            a listener of streaming queries that tells their lag
    hadoop         options of a bucket's store from a session's configuration
    process        logging, garbage collection and short errors in Spark's Python processes
    demo           the demo
"""

from spark_kbatch.errors import INSTALL_EXTRA

try:
    import pyspark  # an extra, so its absence is reported in one place
except ModuleNotFoundError as error:
    if error.name != "pyspark":
        raise
    raise ModuleNotFoundError(
        "PySpark is not installed; the Spark data source needs it: "
        + INSTALL_EXTRA.format("spark"),
        name="pyspark",
    ) from None

if tuple(int(number) for number in pyspark.__version__.split(".")[:2]) < (4, 0):
    raise ImportError(
        f"PySpark {pyspark.__version__} is installed; the Spark data source needs 4.0 or newer, because "
        "earlier versions have no data sources written in Python: pip install 'pyspark[sql]>=4.0'"
    )

from spark_kbatch.spark import process

process.set_up()
