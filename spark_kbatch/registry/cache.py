"""Schemas that this machine knows: files that all processes of a user share, so that few tasks ask a registry.

    spark_kbatch-schemas-UID/   in the directory for temporary files; its user's alone (0700)
      DIGEST/                   a registry, by its URLs without user and password
        DIGEST.json             an answer (0600): the digest of the second line, and in that the question and the schema

A file is written aside and renamed, so that processes may write the same one at once: they all know the same. One
that is damaged, answers another question, or cannot be read counts as none. A machine without such a directory
remembers nothing, and nothing fails. It is always safe to remove.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from spark_kbatch.files import private_temporary_dir
from spark_kbatch.registry.schemas import (
    ReferencedSchema,
    RegisteredSchema,
    Schema,
    SchemaReference,
)

_FORMAT = 1  # of the second line
_FILE_MAX = 64 << 20  # bytes


class SchemaCache:
    """The answers of one registry that this machine knows. Thread-safe."""

    def __init__(self, registry: str, *, folder: Path | None = None) -> None:
        """Remember answers of a registry.

        Args:
            registry: its URLs, without secrets.
            folder: of all registries; None for the one of this machine.
        """
        shared = folder or private_temporary_dir("spark_kbatch-schemas")
        self._folder = None if shared is None else shared / _digest(registry.encode())

    def get(self, question: str) -> RegisteredSchema | None:
        """Return the answer to a question; None if it is not known."""
        if self._folder is None:
            return None
        try:
            with self._path(self._folder, question).open("rb") as file:
                digest, _, data = file.read(_FILE_MAX).partition(b"\n")
            if digest.decode() != _digest(data):
                return None
            version, asked, fields = json.loads(data)
            return _schema(fields) if (version, asked) == (_FORMAT, question) else None
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def put(self, question: str, answer: RegisteredSchema) -> None:
        """Remember the answer to a question, if that is possible."""
        if self._folder is None:
            return
        data = json.dumps([_FORMAT, question, dataclasses.asdict(answer)]).encode()
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            descriptor, aside = tempfile.mkstemp(dir=self._folder)  # for its owner alone
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_digest(data).encode() + b"\n" + data)
                Path(aside).replace(self._path(self._folder, question))
            except BaseException:
                Path(aside).unlink(missing_ok=True)
                raise

    def clear(self) -> None:
        """Forget all answers of the registry."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, folder: Path, question: str) -> Path:
        return folder / f"{_digest(question.encode())}.json"


def _schema(fields: dict[str, Any]) -> RegisteredSchema:
    text, kind, references = fields.pop("schema")
    referenced = fields.pop("referenced")
    return RegisteredSchema(
        schema=Schema(text, kind, tuple(SchemaReference(*one) for one in references)),
        referenced=tuple(ReferencedSchema(*one) for one in referenced),
        **fields,
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
