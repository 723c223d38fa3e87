"""Parts of the documentation that are generated from the code, or from stored figures.

Each is in a page of docs/ between `<!-- NAME -->` and `<!-- end -->`. `make docs` runs this module, which
regenerates them, and draws the picture of speeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path

import click

import pytest_kbatch
from spark_kbatch.cli.main import cli
from spark_kbatch.options.object_store import STORE_OPTIONS
from spark_kbatch.options.option import (
    IGNORED_KAFKA_KEYS_BY_REASON,
    IGNORED_KAFKA_PREFIXES,
    Option,
)
from spark_kbatch.options.producer import PRODUCER_OPTIONS
from spark_kbatch.options.read import READ_OPTIONS
from spark_kbatch.options.registry import REGISTRY_OPTIONS
from spark_kbatch.options.remote import CLUSTER_OPTIONS
from spark_kbatch.options.security import SECURITY_OPTIONS
from spark_kbatch.options.server import SERVER_OPTIONS
from spark_kbatch.options.topic import CONFIG_OPTIONS, TOPIC_OPTIONS
from spark_kbatch.options.write import WRITE_OPTIONS
from spark_kbatch.web.metrics import OF_BUCKETS, OF_FOLDERS, OF_PLACES, OF_SERVERS, Described
from tests.support import demo_picture, request_costs, speeds
from tests.support.commands import COMMANDS

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
_HELP_WIDTH = 98  # of a terminal with 100 columns

# Tasks, and the options that one looks for in each.
READ_TASKS = {
    "Which topics": "path kafka.bootstrap.servers subscribe subscribePattern assign",
    "From where to where": """
        startingOffsets startingTimestamp startingOffsetsByTimestamp startingOffsetsByTimestampStrategy
        endingOffsets endingTimestamp endingOffsetsByTimestamp failOnDataLoss
    """,
    "Which rows and columns": "where includeHeaders isolation.level",
    "Values and keys as columns": """
        value.format value.schema value.fields value.subject value.framing
        key.format key.schema key.subject key.framing
        mode includeSchemaId includeBytes json.lenient
    """,
    "How work is divided among tasks": "minPartitions maxRecordsPerPartition shareTasks",
    "How a stream reads": """
        maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay poll.ms commit.group.id
    """,
    "Logs that a broker wrote, and limits": "foreign.end max.decompressed.batch.bytes",
    "Retries with a real cluster": """
        kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs
    """,
    "Taken and ignored": "groupIdPrefix",
}
WRITE_TASKS = {
    "Where to": "path kafka.bootstrap.servers topic auto.create.topics.enable",
    "Columns as values and keys": """
        value.format value.schema value.subject value.framing value.subject.name.strategy value.record.name
        key.format key.schema key.subject key.framing key.subject.name.strategy key.record.name
        auto.register.schemas
    """,
    "Which partition": "partitioner.class partitioner.ignore.keys",
    "Compression and batches": """
        compression.type compression.gzip.level compression.lz4.level compression.zstd.level
        batch.size buffer.memory linger.ms
    """,
    "A topic that the write creates": """
        num.partitions replication.factor log.dirs retention.ms retention.bytes cleanup.policy
        max.message.bytes message.format.version message.timestamp.type message.timestamp.before.max.ms
        message.timestamp.after.max.ms min.insync.replicas
    """,
    "Files of a topic that the write creates": """
        segment.bytes segment.ms segment.index.bytes index.interval.bytes file.delete.delay.ms
    """,
    "Once, not twice": """
        txnAppId txnVersion delivery.guarantee transactional.id.prefix resolve.micro.batch
        transaction.timeout.ms transactional.id.expiration.ms exactly.once.driver.bytes
    """,
    "Durability": "acks request.timeout.ms flush",
    "What a job leaves behind": """
        overwrite.delete.delay.ms staging.retention.ms commits.retention.bytes adopt.min.bytes maintain.ms
    """,
}


def default_text(option: Option) -> str:
    """Return an option's default, as the tables of options show it."""
    if option.default_words:
        return option.default_words
    if option.default is None:
        return "not set"
    default = option.default.value if isinstance(option.default, Enum) else option.default
    return str(default).lower() if isinstance(default, bool) else str(default)


def options_markdown(known: tuple[Option, ...]) -> str:
    """Return the options as a Markdown table."""
    lines = ["| option | accepted | default | meaning |", "|---|---|---|---|"]
    for option in known:
        accepts = option.kind.accepts.replace("|", r"\|")
        lines.append(f"| `{option.key}` | {accepts} | {default_text(option)} | {option.text} |")
    return "\n".join(lines)


def tasks_markdown(known: tuple[Option, ...], tasks: Mapping[str, str]) -> str:
    """Return the options by task, each with a heading and a Markdown table."""
    options = {option.key: option for option in known}
    named = [key for keys in tasks.values() for key in keys.split()]
    assert sorted(named) == sorted(options), {*named} ^ {*options}  # each is in one task
    return "\n\n".join(
        f"### {task}\n\n{options_markdown(tuple(options[key] for key in keys.split()))}"
        for task, keys in tasks.items()
    )


def ignored_markdown() -> str:
    """Return the ignored keys as a Markdown table."""
    lines = ["| accepted and ignored | because |", "|---|---|"]
    for reason, keys in IGNORED_KAFKA_KEYS_BY_REASON.items():
        named = [f"`kafka.{key}`" for key in keys.split()]
        if "broker" in reason:
            named += [f"`kafka.{prefix}*`" for prefix in IGNORED_KAFKA_PREFIXES]
        lines.append(f"| {', '.join(named)} | {reason} |")
    return "\n".join(lines)


def plugin_options_markdown() -> str:
    """Return the options of the pytest plugin as a Markdown table."""
    lines = ["| command line | ini file | default | meaning |", "|---|---|---|---|"]
    for option in pytest_kbatch.OPTIONS:
        shown = f"`{option.flag}={option.metavar}` | `{option.ini_name}`"
        lines.append(f"| {shown} | {option.default or 'none'} | {option.help} |")
    return "\n".join(lines)


def metrics_markdown(described: Mapping[str, Described]) -> str:
    """Return metrics as a Markdown table."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for name, one in described.items():
        labels = ", ".join(f"`{label}`" for label in one.labels.split())
        lines.append(f"| `{name}` | {one.kind} | {labels} | {one.text} |")
    return "\n".join(lines)


def commands_markdown() -> str:
    """Return the help of each command."""
    parent = click.Context(cli, info_name="kbatch", **cli.context_settings)
    sections = []
    for name, command in sorted(COMMANDS.items()):
        context = click.Context(command, parent, name, terminal_width=_HELP_WIDTH)
        lines = (line.rstrip() for line in command.get_help(context).splitlines())
        sections.append("\n".join([f"## kbatch {name}", "", "```text", *lines, "```"]))
    return "\n\n".join(sections)


def file_markdown(path: str, language: str) -> str:
    """Return a file of the repository as a block of code."""
    text = (DOCS.parent / path).read_text(encoding="utf-8")
    return f"```{language}\n{text}```"


GENERATED: dict[tuple[str, str], Callable[[], str]] = {
    ("options.md", "read options"): lambda: tasks_markdown(READ_OPTIONS, READ_TASKS),
    ("options.md", "write options"): lambda: tasks_markdown(WRITE_OPTIONS, WRITE_TASKS),
    ("options.md", "topic settings"): lambda: options_markdown(
        tuple(option for option in CONFIG_OPTIONS if option not in TOPIC_OPTIONS)
    ),
    ("options.md", "producer options"): lambda: options_markdown(PRODUCER_OPTIONS),
    ("options.md", "store options"): lambda: options_markdown(STORE_OPTIONS),
    ("options.md", "cluster options"): lambda: options_markdown(
        tuple(option for option in CLUSTER_OPTIONS if option not in SECURITY_OPTIONS)
    ),
    ("options.md", "security options"): lambda: options_markdown(SECURITY_OPTIONS),
    ("options.md", "registry options"): lambda: options_markdown(REGISTRY_OPTIONS),
    ("options.md", "ignored options"): ignored_markdown,
    ("command-line.md", "commands"): commands_markdown,
    ("metrics.md", "metrics of servers"): lambda: metrics_markdown(OF_SERVERS),
    ("metrics.md", "metrics of folders"): lambda: metrics_markdown(OF_FOLDERS),
    ("metrics.md", "metrics of places"): lambda: metrics_markdown(OF_PLACES),
    ("metrics.md", "metrics of buckets"): lambda: metrics_markdown(OF_BUCKETS),
    ("testing.md", "plugin options"): plugin_options_markdown,
    ("performance.md", "speeds"): speeds.speeds_markdown,
    ("bucket-operations.md", "costs"): request_costs.costs_markdown,
    ("server.md", "server options"): lambda: options_markdown(SERVER_OPTIONS),
    ("running-a-server.md", "unit"): lambda: file_markdown("examples/server/kbatch.service", "ini"),
    ("running-a-server.md", "image"): lambda: file_markdown(
        "examples/server/Containerfile", "dockerfile"
    ),
    ("running-a-server.md", "manifest"): lambda: file_markdown(
        "examples/server/kbatch.yaml", "yaml"
    ),
}


def section(name: str) -> re.Pattern[str]:
    """Match a generated part, with its marks; the part itself is group 1."""
    return re.compile(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", re.DOTALL)


def rewrite() -> None:
    """Regenerate every part, and the pictures."""
    speeds.PICTURE.write_text(speeds.drawn(), encoding="utf-8")
    demo_picture.PICTURE.write_text(demo_picture.drawn(), encoding="utf-8")
    for (page, name), generate in GENERATED.items():
        path = DOCS / page
        text = f"<!-- {name} -->\n{generate()}\n<!-- end -->"
        before = path.read_text(encoding="utf-8")
        path.write_text(section(name).sub(lambda _, new=text: new, before), encoding="utf-8")


if __name__ == "__main__":
    rewrite()
