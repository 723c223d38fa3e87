"""How a task finds out that it sees the driver's PATH: by a file that the driver leaves there."""

from __future__ import annotations

import uuid
from pathlib import Path

from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import Files


class Probe:
    """The file that the driver leaves for a job's tasks; it travels to them."""

    NAME = "driver"

    def __init__(self, transaction_dir: Path, mark: str) -> None:
        self.transaction_dir, self.mark = transaction_dir, mark

    @classmethod
    def leave(cls, files: Files, transaction_dir: Path) -> Probe:
        """Write the file: on the driver, once per job."""
        probe = cls(transaction_dir, uuid.uuid4().hex)
        files.make_dir(transaction_dir)
        files.write(transaction_dir / cls.NAME, 0, probe.mark.encode())
        return probe

    def ensure_seen(self, files: Files) -> None:
        """Check that this task sees the file, before it writes.

        Raises:
            KafkaStorageError: the driver's file is not here.
        """
        path = self.transaction_dir / self.NAME
        try:
            seen = files.read(path).decode() == self.mark
        except OSError:
            seen = False
        if not seen:
            raise KafkaStorageError(
                f"this executor does not see {path}, which the driver made: the folder is not shared "
                "between driver and executors, or the job has ended, or wrote nothing for longer than "
                "staging.retention.ms; give a path on a file system that all of them mount at the "
                "same place"
            )
