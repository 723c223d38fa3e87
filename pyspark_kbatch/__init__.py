"""Lets `spark.read.format("kbatch")` work with no registration.

When Spark meets a format that it does not know, it imports every top-level module named `pyspark_*` and
looks for `DefaultSource` in it. One such module that fails to import hides all others, and Spark shows
nothing of the failure. So this one holds nothing else, and where the package cannot be imported, on
Windows or without one of its dependencies, the format exists and says why.
"""

import sys

try:
    from spark_kbatch.spark.source import KBatchDataSource as DefaultSource
except ImportError as error:
    if error.name == "pyspark":
        raise
    from pyspark.sql.datasource import DataSource

    _WHY = f"spark_kbatch cannot be imported by {sys.executable}: {error}"

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """The format `kbatch` of a package that cannot be imported."""

        def __init__(self, options: dict[str, str]) -> None:
            raise ImportError(_WHY)

        @classmethod
        def name(cls) -> str:
            """Return what `format()` takes."""
            return "kbatch"


__all__ = ["DefaultSource"]
