"""Entries of `wire/messages.py`, from the files in which Kafka describes its messages.

    python -m tests.support.kafka_schemas DESCRIBE_PRODUCERS 0-0     prints the entry of this request

kafka-python has those files. Kafka's names of fields are kept, in Python's spelling.

Source: Kafka clients/src/main/resources/common/message/README.md.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from spark_kbatch.wire.codec import Versions

_LINE_MAX = 99
_NO_DEFAULT = ("", "0", "false")
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)


def entry(name: str, versions: Versions) -> str:
    """Return the entry of a request in these versions, by its name in `ApiKey`."""
    title = name.title().replace("_", "")
    request, response = (_schema(title + side) for side in ("Request", "Response"))
    head = f"{versions.first}-{versions.last}"
    flexible = _both(request["flexibleVersions"], versions)
    if flexible is not None:
        head += f" flexible {flexible.first}+"
    lines = [f'    {name} = {request["apiKey"]}, """{head}']
    for side, schema in (("request", request), ("response", response)):
        common = {one["name"]: one["fields"] for one in schema.get("commonStructs", ())}
        lines += [f"        {side}", *_structure(schema["fields"], versions, 12, common)]
    return "\n".join(lines) + '"""\n'


def _schema(name: str) -> Any:
    folder = resources.files("kafka").joinpath("protocol", "schemas", "resources")
    return json.loads(_COMMENT.sub("", folder.joinpath(f"{name}.json").read_text()))


def _both(text: str | None, within: Versions) -> Versions | None:
    """Return the versions of a text of Kafka's that are also in a range; None if there are none."""
    if text in (None, "none"):
        return None
    versions = Versions.parse(text if "+" in text or "-" in text else f"{text}-{text}")
    first, last = max(versions.first, within.first), min(versions.last, within.last)
    return Versions(first, last) if first <= last else None


def _text(versions: Versions, within: Versions) -> str:
    if versions.last < within.last:
        return f"{versions.first}-{versions.last}"
    return f"{versions.first}+" if versions.first > within.first else ""


def _structure(
    schemas: Sequence[Any], within: Versions, indent: int, common: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the lines of a structure: fields side by side, but for those that are structures."""
    line = ""
    for schema in schemas:
        versions = _both(schema["versions"], within)
        if versions is None:
            continue
        field = _field(schema, versions, within)
        inner = schema.get("fields", common.get(schema["type"].removeprefix("[]")))
        if line and (inner or indent + len(f"{line}, {field}") > _LINE_MAX):
            yield " " * indent + line
            line = ""
        if inner:
            yield " " * indent + field
            yield from _structure(inner, versions, indent + 4, common)
        else:
            line = f"{line}, {field}" if line else field
    if line:
        yield " " * indent + line


def _field(schema: Any, versions: Versions, within: Versions) -> str:
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", schema["name"]).lower()
    nullable = _both(schema.get("nullableVersions"), versions)
    null = "" if nullable is None else f"?{_text(nullable, versions)}"
    words = [name, schema["type"] + null, _text(versions, within)]
    if _both(schema.get("taggedVersions"), versions):
        words.append(f"@{schema['tag']}")
    default = str(schema.get("default", "")).lower()
    if default not in _NO_DEFAULT:
        words.append(f"={default}")
    return " ".join(filter(None, words))


if __name__ == "__main__":
    print(entry(sys.argv[1], Versions.parse(sys.argv[2])), end="")
