"""Lets `spark.read.format("kbatch")` work with no registration.

Spark imports every top-level module named `pyspark_*` when it meets a format that it does not
know, and looks for `DefaultSource` in it. One such module that fails to import hides all others,
so this one holds nothing else. Spark shows nothing of such a failure: where the package cannot be
imported, on Windows or without one of its dependencies, the format is there and says why.
"""

import sys

from pyspark.sql.datasource import DataSource

try:
    from spark_kbatch.spark.source import KBatchDataSource as DefaultSource
except ImportError as error:
    _WHY = f"spark_kbatch cannot be imported by {sys.executable}: {error}"

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """The format `kbatch` of a package that cannot be imported."""

        def __init__(self, options: dict[str, str]) -> None:
            raise ImportError(_WHY)

        @classmethod
        def name(cls) -> str:
            """What `format()` takes."""
            return "kbatch"


__all__ = ["DefaultSource"]
