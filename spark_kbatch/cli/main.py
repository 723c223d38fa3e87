"""Entry point of the `kbatch` command, with its help, error messages and exit codes.

With --json, stdout has nothing but JSON objects, one per line. Exit codes:

    0: done
    1: failed, stderr says why; also where repair or log-dirs finds something that needs attention
    2: usage error
    130: interrupted by Ctrl+C before it was done
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

import click

from spark_kbatch import __version__
from spark_kbatch.cli.other_tools import in_our_words, no_such_command
from spark_kbatch.cli.stopping import interrupts_told
from spark_kbatch.errors import KBatchError
from spark_kbatch.terminal import LogFormatter, log_level, visible

# Every command by its subject: its module in this package, its name there, and its first line of
# help. A run imports the module of its command alone, and the help of `kbatch` none.
_SUBJECTS = {
    "Topics": {
        "topics": ("topics", "topics", "List topics, with their total offsets and bytes."),
        "describe-topic": (
            "topics", "describe_topic", "Show settings of topics, and their defaults."
        ),
        "create-topic": ("topics", "create_topic", "Create TOPIC."),
        "create-partitions": (
            "topics", "create_partitions", "Add partitions to TOPIC, up to TOTAL in all."
        ),
        "alter-topic": (
            "topics", "alter_topic", "Change settings of TOPIC, and print all of them."
        ),
        "delete-topic": ("topics", "delete_topic", "Delete topics with all their records."),
    },
    "Records": {
        "produce": ("producing", "produce", "Write records from files or stdin to TOPIC."),
        "consume": ("consuming", "consume", "Print records of topics."),
        "offsets": ("groups", "offsets", "Find offsets of TOPIC by time, or of a consumer group."),
        "schemas": ("schemas", "schemas", "Show a topic's schemas in a registry, with their ids."),
        "schemas infer": ("schemas", "infer", "Print a DDL for a sample of the JSON in TOPIC."),
        "delete-records": (
            "topics", "delete_records", "Delete the first records of partitions of TOPIC."
        ),
        "export": ("exporting", "export", "Copy TOPIC into FILE, or a broker's log dir."),
        "mirror": (
            "mirroring", "mirror", "Copy TOPICs to another cluster, exactly once, in order."
        ),
    },
    "Consumer groups": {
        "groups": ("groups", "groups", "List consumer groups, and how far each is behind."),
        "groups reset": ("groups", "reset", "Move the offsets of a consumer GROUP."),
        "groups delete": ("groups", "delete", "Delete consumer GROUPs, with their offsets."),
    },
    "Transactions": {
        "transactions": (
            "transactions", "transactions",
            "List transactions of clients, and what they hold.",
        ),
        "transactions abort": (
            "transactions", "abort", "Abort open transactions of transactional IDs.",
        ),
        "transactions decide": (
            "transactions", "decide",
            "Abort or commit hanging transactions.",
        ),
        "transactions new-log": (
            "transactions", "new_log", "Start a new log of transactions for a lost one.",
        ),
    },
    "Server": {
        "serve": ("serving", "serve", "Serve a cluster to any Kafka client."),
        "ui": ("ui", "ui", "Show topics, records, groups and commits in a browser."),
    },
    "Upkeep of folders": {
        "verify": ("upkeep", "verify", "Check everything that is stored, and change nothing."),
        "repair": ("upkeep", "repair", "Repair damaged logs, and report what was done."),
        "gc": ("upkeep", "gc", "Delete expired segments and abandoned files."),
        "log-dirs": ("upkeep", "log_dirs", "Show log dirs: their state, and what they hold."),
        "history": ("upkeep", "history", "List commits of Spark jobs, newest first."),
        "dump": ("dumping", "dump", "Show the contents of a log's FILEs."),
    },
    "Buckets": {
        "describe": ("buckets", "describe", "Show what there is in a bucket."),
        "check": ("buckets", "check", "Try what the store of a bucket lets you do."),
        "maintain": ("buckets", "maintain", "Merge small objects of a bucket, and delete garbage."),
        "ledger": ("buckets", "ledger", "List what has happened in a bucket, newest first."),
        "upgrade": ("buckets", "upgrade", "Let writers use the newest format in a bucket."),
        "recover": ("buckets", "recover", "Recover a cluster from a replica of its bucket."),
    },
    "Demo": {
        "demo": ("demo", "demo", "Write, read and check a year of flights with Spark."),
    },
}  # fmt: skip
_COMMANDS = {name: one for commands in _SUBJECTS.values() for name, one in commands.items()}


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
        return list(_COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; return None if there is none of this name."""
        if cmd_name not in _COMMANDS:
            return None
        module, name, _help = _COMMANDS[cmd_name]
        found: click.Command = getattr(importlib.import_module(f"spark_kbatch.cli.{module}"), name)
        return found

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by subject, without importing any."""
        longest = max(map(len, _COMMANDS))
        room = formatter.width - 6 - longest
        for subject, commands in _SUBJECTS.items():
            rows = [
                (name.ljust(longest), click.Command(name, help=text).get_short_help_str(room))
                for name, (_module, _name, text) in commands.items()
            ]
            with formatter.section(subject):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to run, and add a default PATH to its arguments where PATH is left out."""
        if " ".join(args[:2]) in _COMMANDS:  # of two words
            args = [" ".join(args[:2]), *args[2:]]
        is_known = args[0] in _COMMANDS or args[0].startswith("-") or ctx.resilient_parsing
        if not is_known:
            raise click.UsageError(no_such_command(args, _COMMANDS), ctx)
        from spark_kbatch.cli.paths import with_path  # noqa: PLC0415  as all that commands need

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
