"""`kbatch schemas`: the schemas that a registry has for a topic's keys and values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from spark_kbatch.cli.output import Table, print_json
from spark_kbatch.cli.parameters import examples, json_option, registry_options
from spark_kbatch.columns.schemas import subject_versions
from spark_kbatch.errors import SchemaNotFoundError

if TYPE_CHECKING:
    from spark_kbatch.registry.schemas import RegisteredSchema, Schema

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
def schemas(topic: str, subject: str | None, registry: Mapping[str, str], as_json: bool) -> None:
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
    if as_json:
        for one, is_deleted in found:
            print_json(_object(one, is_deleted=is_deleted))
        return
    table = Table(f"Schemas of {topic}")
    table.add_texts("subject")
    table.add_numbers("version", "id")
    table.add_words("type")
    table.add_texts("schema")
    for one, is_deleted in found:
        table.add_row(
            one.subject,
            one.version,
            one.id,
            one.schema.type + ", deleted" * is_deleted,
            _described(one.schema),
        )
    table.print()


def _object(one: RegisteredSchema, *, is_deleted: bool) -> dict[str, Any]:
    return {
        "subject": one.subject,
        "version": one.version,
        "id": one.id,
        "type": one.schema.type,
        "deleted": is_deleted,
        "references": [reference._asdict() for reference in one.schema.references],
        "schema": one.schema.text,
    }


def _described(one: Schema) -> str:
    """Return what a schema is, in a few words."""
    try:
        tree = json.loads(one.text)
    except ValueError:
        tree = None
    if isinstance(tree, dict) and isinstance(tree.get("fields"), list):
        fields = [str(field.get("name")) for field in tree["fields"] if isinstance(field, dict)]
        text = f"{tree.get('name')}: {', '.join(fields)}"
    else:
        text = " ".join(one.text.split())
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."
