"""Small files in which this machine remembers something, for all processes of a user and for no one else.

    NAME-UID/FOLDER/DIGEST.json   in the directory for temporary files; folders 0700, files 0600
        line 1    SHA-256 of the rest, as hex
        rest      JSON

A file is written aside and renamed, so that processes may write the same one at once. One that is damaged or cannot
be read counts as none. A machine without such a directory remembers nothing, and nothing fails. All of it is always
safe to remove.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from spark_kbatch.files import private_temporary_dir

FILE_MAX = 64 << 20  # bytes


class MachineFiles:
    """The files of one folder, by the text that each is about. Thread-safe."""

    def __init__(self, name: str, subject: str, *, folder: Path | None = None) -> None:
        """Remember things of one subject.

        Args:
            name: of all files of this kind.
            subject: of the folder, without secrets.
            folder: of all subjects; None for the one of this machine.
        """
        shared = folder or private_temporary_dir(name)
        self._folder = None if shared is None else shared / digest_of(subject.encode())

    def get(self, about: str) -> Any:
        """Return what is remembered; None if nothing is, or it is damaged."""
        if self._folder is None:
            return None
        try:
            with self._path(self._folder, about).open("rb") as file:
                digest, _, data = file.read(FILE_MAX).partition(b"\n")
            return json.loads(data) if digest.decode() == digest_of(data) else None
        except (OSError, ValueError, RecursionError):
            return None

    def put(self, about: str, values: Any) -> None:
        """Remember what JSON can hold, if that is possible."""
        if self._folder is None:
            return
        data = json.dumps(values).encode()
        if len(data) > FILE_MAX // 2:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            descriptor, aside = tempfile.mkstemp(dir=self._folder)  # for its owner alone
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(digest_of(data).encode() + b"\n" + data)
                Path(aside).replace(self._path(self._folder, about))
            except BaseException:
                Path(aside).unlink(missing_ok=True)
                raise

    def clear(self) -> None:
        """Forget everything of the subject."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, folder: Path, about: str) -> Path:
        return folder / f"{digest_of(about.encode())}.json"


def digest_of(data: bytes) -> str:
    """Return the SHA-256 of bytes, as hex."""
    return hashlib.sha256(data).hexdigest()
