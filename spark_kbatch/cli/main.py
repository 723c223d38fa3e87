"""The `kbatch` command.

    kbatch topics PATH [TOPIC ...]     list topics, with offsets and sizes by partition
    kbatch consume PATH TOPIC          print records, one per line
    kbatch delete-records PATH TOPIC PARTITION:OFFSET ...
                                       delete all records below an offset
    kbatch delete-topic PATH TOPIC ... delete topics with all their records
    kbatch create-partitions PATH TOPIC TOTAL
                                       add partitions to a topic
    kbatch alter-topic PATH TOPIC      change or show a topic's settings
    kbatch gc PATH [TOPIC ...]         delete expired segments and files of jobs that never committed
    kbatch history PATH [COMMIT]       list commits of Spark jobs; the ending offsets of one
    kbatch export PATH TOPIC --to DIR  copy a topic into a stopped broker's log dir
    kbatch offsets PATH TOPIC          find offsets by time, or of a consumer group
    kbatch mirror SOURCE TARGET --topics TOPIC,...
                                       copy topics to another cluster, exactly once
    kbatch serve PATH                  serve a cluster to any Kafka client
    kbatch groups PATH [GROUP]         list consumer groups; the members and offsets of one
    kbatch repair PATH [TOPIC ...]     repair damaged logs
    kbatch log-dirs PATH               show log dirs, and replicas that are not in sync
    kbatch demo [PATH]                 write, read and check a year of flights

For topics, consume, offsets, groups and the commands that delete or change topics and records, PATH may be
HOST:PORT of a real cluster; --config and -X give the properties of its client.

With --json, stdout has nothing but JSON objects, one per line. Exit codes:

    0: done
    1: failed, stderr says why; also where repair or log-dirs finds something that needs attention
    2: usage error
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

import click

from spark_kbatch import __version__
from spark_kbatch.cli import groups, mirroring, records, serving, topics, upkeep
from spark_kbatch.cli.places import ensure_folder
from spark_kbatch.errors import KBatchError
from spark_kbatch.terminal import LogFormatter, visible


class _Commands(click.Group):
    """Commands whose usage errors show the user's arguments escaped."""

    def make_context(self, *words: Any, **settings: Any) -> click.Context:
        """Parse the options of `kbatch` itself."""
        with _arguments_escaped():
            return super().make_context(*words, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        """Parse a command's arguments, and run it."""
        with _arguments_escaped():
            return super().invoke(ctx)


@contextlib.contextmanager
def _arguments_escaped() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        message = error.format_message()
        if message.isprintable() or (error.ctx and message == error.ctx.get_help()):
            raise
        raise click.UsageError(visible(message), error.ctx) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kbatch")
def cli() -> None:
    """Inspect and manage Kafka logs that Spark wrote, with no broker running."""


@cli.command()
@click.argument("path", required=False, callback=ensure_folder)
def demo(path: str | None) -> None:
    """Write a year of flights to a log at PATH with Spark, read it back, and check it."""
    from spark_kbatch.spark import demo as demo_module  # noqa: PLC0415  the other commands need no Spark

    demo_module.main(path)


for _command in (
    topics.topics,
    topics.delete_topic,
    topics.create_partitions,
    topics.alter_topic,
    records.consume,
    records.offsets,
    records.delete_records,
    upkeep.gc,
    upkeep.history,
    upkeep.export,
    upkeep.repair,
    upkeep.log_dirs,
    mirroring.mirror,
    serving.serve,
    groups.groups,
):
    cli.add_command(_command)


def main() -> None:
    """Run the command; print a known error as one line and exit with code 1."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter())
    logging.basicConfig(handlers=[handler])
    try:
        cli.main(prog_name="kbatch", standalone_mode=True)
    except (KBatchError, OSError, ImportError) as error:
        click.echo(visible(f"kbatch: {error}"), err=True)
        sys.exit(1)
