"""`kbatch schemas`: what a registry has for a topic's keys and values; a DDL from a sample of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from spark_kbatch.cli.output import (
    Row,
    is_json,
    json_option,
    number,
    print_json,
    print_line,
    show,
    text,
    word,
)
from spark_kbatch.cli.parameters import examples, foreign_end_option, registry_options
from spark_kbatch.cli.paths import Place, client_options, place_argument, topic_argument
from spark_kbatch.columns.schemas import subject_versions
from spark_kbatch.errors import ConfigError, SchemaNotFoundError

if TYPE_CHECKING:
    from spark_kbatch.registry.schemas import RegisteredSchema

_SHOWN_MAX = 60  # characters of what a schema is


@click.command(
    epilog=examples(
        "kbatch schemas orders --registry http://localhost:8081",
        "kbatch schemas orders --registry /data/registry --json",
    )
)
@click.argument("topic")
@click.option("--subject", metavar="SUBJECT", help="Show this subject, in place of TOPIC-key and TOPIC-value.")  # fmt: skip
@registry_options
@json_option
def schemas(topic: str, subject: str | None, registry: Mapping[str, str]) -> None:
    """Show a topic's schemas in a registry, with their ids.

    With --json, each has the schema itself. Versions that were deleted are shown too: what they wrote is still there.
    """
    if "url" not in registry:
        raise click.UsageError("--registry is missing: a URL, or a folder that stands in for one")
    names = [subject] if subject is not None else [f"{topic}-key", f"{topic}-value"]
    found: list[tuple[RegisteredSchema, bool]] = []
    missing: SchemaNotFoundError | None = None
    for name in names:
        try:
            found += subject_versions(registry, name)
        except SchemaNotFoundError as error:
            missing = error
    if missing is not None and not found:
        raise missing
    show(
        f"Schemas of {topic}",
        _SCHEMAS,
        (_object(one, is_deleted=is_deleted) for one, is_deleted in found),
    )


@click.command(
    epilog=examples(
        "kbatch schemas infer broker:9092 orders",
        "kbatch schemas infer my-cluster orders --last 100 --json",
    )
)
@place_argument()
@topic_argument
@click.option(
    "--key", "column", flag_value="key", default="value", help="Look at keys, in place of values."
)
@click.option(
    "--last",
    type=click.IntRange(1),
    metavar="N",
    default=1000,
    show_default=True,
    help="Look at the last N records of each partition.",
)
@foreign_end_option
@client_options
@json_option
def infer(place: Place, topic: str, column: str, last: int) -> None:
    """Print a DDL for a sample of the JSON in TOPIC.

    Look at it before you use it as value.schema. The lines after it, which are comments of a DDL, say how
    many records there were, and what leaves the types in doubt: what was always null, numbers that were
    all whole, texts that were all times, and where values of several types are read as one.
    Confluent's five bytes in front of a value are passed over. PATH may be HOST:PORT of a real cluster.
    """
    from spark_kbatch.values.inference import infer as infer_json  # noqa: PLC0415  loads the kernels

    batches = place.open().read(topic, columns=[column], last=last)
    found = infer_json(one for rows in batches for one in rows.column(0).to_pylist())
    if is_json():
        print_json({"topic": topic, "column": column, **found._asdict()})
        return
    counted = ", ".join(f"{count:,} {what}" for what, count in found.counts.items())
    if not found.ddl:
        raise ConfigError(
            f"no {column} of topic {topic!r} is JSON other than null; there were: {counted}"
        )
    for line in (found.ddl, f"-- {counted}", *(f"-- {one}" for one in found.doubts)):
        print_line(line)


def _object(one: RegisteredSchema, *, is_deleted: bool) -> Row:
    return {
        "subject": one.subject,
        "version": one.version,
        "id": one.id,
        "type": one.schema.type,
        "deleted": is_deleted,
        "references": [reference._asdict() for reference in one.schema.references],
        "schema": one.schema.text,
    }


def _described(row: Row) -> str:
    try:
        tree = json.loads(row["schema"])
    except ValueError:
        tree = None
    if isinstance(tree, dict) and isinstance(tree.get("fields"), list):
        fields = [str(field.get("name")) for field in tree["fields"] if isinstance(field, dict)]
        text = f"{tree.get('name')}: {', '.join(fields)}"
    else:
        text = " ".join(row["schema"].split())
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."


_SCHEMAS = (
    text("subject"),
    number("version"),
    number("id"),
    word("type", lambda row: row["type"] + ", deleted" * row["deleted"]),
    text("schema", _described),
)
