"""Schemas that this machine knows: files that all processes of a user share, so that few tasks ask a registry.

Each answer is a file of [format, question, schema], in a folder for the registry's URLs and user, of which neither can be
read from its name;
`machine_files` says how they are kept. One that answers another question counts as none.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from spark_kbatch.machine_files import MachineFiles
from spark_kbatch.registry.schemas import (
    ReferencedSchema,
    RegisteredSchema,
    Schema,
    SchemaReference,
)

_FORMAT = 1


class SchemaCache:
    """The answers of one registry that this machine knows. Thread-safe."""

    def __init__(self, registry: str, *, folder: Path | None = None) -> None:
        """Remember answers of a registry.

        Args:
            registry: its URLs and its user, without secrets.
            folder: of all registries; None for the one of this machine.
        """
        self._files = MachineFiles("spark_kbatch-schemas", registry, folder=folder)

    def get(self, question: str) -> RegisteredSchema | None:
        """Return the answer to a question; None if it is not known."""
        try:
            version, asked, fields = self._files.get(question)
            return _schema(fields) if (version, asked) == (_FORMAT, question) else None
        except (ValueError, TypeError, KeyError):
            return None

    def put(self, question: str, answer: RegisteredSchema) -> None:
        """Remember the answer to a question, if that is possible."""
        self._files.put(question, [_FORMAT, question, dataclasses.asdict(answer)])

    def clear(self) -> None:
        """Forget all answers of the registry."""
        self._files.clear()


def _schema(fields: dict[str, Any]) -> RegisteredSchema:
    text, kind, references = fields.pop("schema")
    referenced = fields.pop("referenced")
    return RegisteredSchema(
        schema=Schema(text, kind, tuple(SchemaReference(*one) for one in references)),
        referenced=tuple(ReferencedSchema(*one) for one in referenced),
        **fields,
    )
