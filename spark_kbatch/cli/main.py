"""Entry point of the `kbatch` command, with its help, error messages and exit codes.

With --json, stdout has nothing but JSON objects, one per line. Exit codes:

    0: done
    1: failed, stderr says why; also where repair or log-dirs finds something that needs attention
    2: usage error
    130: interrupted by Ctrl+C before it was done
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from typing import Any

import click

from spark_kbatch import __version__
from spark_kbatch.cli import (
    buckets,
    consuming,
    deleting,
    dumping,
    exporting,
    groups,
    maintaining,
    mirroring,
    offsets,
    producing,
    schemas,
    serving,
    topics,
    upkeep,
)
from spark_kbatch.cli.other_tools import in_our_words
from spark_kbatch.cli.parameters import examples
from spark_kbatch.cli.paths import ensure_folder, with_path
from spark_kbatch.cli.stopping import interrupts_told
from spark_kbatch.errors import ConfigError, KBatchError
from spark_kbatch.terminal import LogFormatter, log_level, visible


class _Commands(click.Group):
    """Click group of all `kbatch` commands, for what they have in common.

    It escapes the user's arguments in usage errors, and says that a command was interrupted.
    """

    def make_context(self, *words: Any, **settings: Any) -> click.Context:
        """Parse the options of `kbatch` itself."""
        with interrupts_told(), _arguments_escaped():
            return super().make_context(*words, **settings)

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of their subjects."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to run, and add a default PATH to its arguments where PATH is left out."""
        if " ".join(args[:2]) in self.commands:  # of two words
            args = [" ".join(args[:2]), *args[2:]]
        name, command, words = super().resolve_command(ctx, args)
        return name, command, words if command is None else with_path(ctx, command, words)

    def invoke(self, ctx: click.Context) -> Any:
        """Parse a command's arguments, and run it."""
        with interrupts_told(), _arguments_escaped():
            return super().invoke(ctx)


@contextlib.contextmanager
def _arguments_escaped() -> Iterator[None]:
    try:
        yield
    except click.UsageError as found:
        error = in_our_words(found) if isinstance(found, click.NoSuchOption) else found
        message = error.format_message()
        if message.isprintable() or (error.ctx and message == error.ctx.get_help()):
            raise error from None
        raise click.UsageError(visible(message), error.ctx) from None


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(
    cls=_Commands,
    context_settings=_SETTINGS,
    epilog="`kbatch COMMAND --help` shows the options of a command, and examples.",
)
@click.version_option(__version__, prog_name="kbatch")
def cli() -> None:
    """Write, read and manage Kafka logs in a folder, or topics of a real cluster.

    PATH is the folder of a cluster; most commands also take HOST:PORT of a real cluster.

    If the environment variable KBATCH_PATH is set, PATH may be left out. A first argument that has a "/" or
    is HOST:PORT still counts as PATH; any other one does not, so write ./NAME for a folder here.
    """


@click.command(epilog=examples("kbatch demo"))
@click.argument("path", required=False, callback=ensure_folder)
def demo(path: str | None) -> None:
    """Write, read and check a year of flights with Spark.

    PATH is an empty folder or one to create, by default demo-data/flights-log.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError(
            "the demo needs PySpark, which is not installed: pip install 'spark-kbatch[demo]', or "
            "pip install '.[demo]' in a clone of the repository"
        )
    from spark_kbatch.spark import demo as demo_module  # noqa: PLC0415  the other commands need no Spark

    demo_module.main(path)


for _command in (
    topics.topics,
    topics.describe_topic,
    topics.create_topic,
    topics.create_partitions,
    topics.alter_topic,
    deleting.delete_topic,
    producing.produce,
    consuming.consume,
    offsets.offsets,
    schemas.schemas,
    deleting.delete_records,
    exporting.export,
    groups.groups,
    groups.reset,
    groups.delete,
    serving.serve,
    mirroring.mirror,
    upkeep.history,
    upkeep.gc,
    maintaining.maintain,
    maintaining.describe,
    maintaining.upgrade,
    buckets.check,
    buckets.ledger,
    upkeep.verify,
    upkeep.repair,
    upkeep.log_dirs,
    dumping.dump,
    demo,
):
    cli.add_command(_command)


def main(prog_name: str = "kbatch") -> None:
    """Run the command; print a known error as one line and exit with code 1."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter())
    logging.basicConfig(handlers=[handler])
    logging.getLogger("spark_kbatch").setLevel(log_level())
    try:
        cli.main(prog_name=prog_name, standalone_mode=True)
    except (KBatchError, OSError, ImportError) as error:
        click.echo(visible(f"kbatch: {error}"), err=True)
        sys.exit(1)
