"""The command that runs the demo, which needs Spark."""

from __future__ import annotations

import importlib.util

import click

from spark_kbatch.cli.parameters import examples
from spark_kbatch.cli.paths import FOLDER, ensure_is
from spark_kbatch.errors import INSTALL_EXTRA, ConfigError


@click.command(epilog=examples("kbatch demo"))
@click.argument("path", required=False, callback=ensure_is(FOLDER))
def demo(path: str | None) -> None:
    """Write, read and check a year of flights with Spark.

    PATH is an empty folder or one to create, by default demo-data/flights-log.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError(
            f"the demo needs PySpark, which is not installed: {INSTALL_EXTRA.format('demo')}"
        )
    from spark_kbatch.spark import demo as demo_module  # noqa: PLC0415  the other commands need no Spark

    demo_module.main(path)
