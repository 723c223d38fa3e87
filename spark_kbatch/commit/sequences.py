"""The last sequence of each transactional id, by which retried commits are recognized.

    PATH/transactions/HASH.json     HASH of the id; its last sequence, and its PrepareCommit's offset
    PATH/transactions/whole         if it exists, every id that has committed has such a file. Holds a
                                    boot id, or nothing

`__transaction_state` is the authority; these files are a cache, and save each commit of a micro-batch a scan of
it. That takes 45 us of Python a commit since the last rewrite: 0.3 s before the next one, at 4 MiB; with the
file it is 0.2 ms, and 0.1 ms to write. Each commit runs in a process of its own, so memory cannot hold it.

A file is written after its commit was decided and before the commit counts as complete, so rolling
forward writes it again. If it cannot be written, `whole` is removed, which needs no space. Files that were
not flushed are trusted until the machine reboots: a power loss may take them while the log keeps the
commit. So before the first such file is written, `whole` is given the boot id.

If `whole` is missing or of another boot, or if a file names a record that is not there, the log is
scanned once and all files are rebuilt. Rewriting the log leaves them as they are: those with an offset
below its start are trusted.

All of this happens under the commit lock.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.commit.snapshot import last_of_each_id, transactions
from spark_kbatch.errors import CorruptRecordError, KafkaStorageError
from spark_kbatch.log.state import boot_id
from spark_kbatch.model import NO_TRANSACTION_SEQUENCE
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.view import Replica
from spark_kbatch.stored_json import parse

logger = logging.getLogger(__name__)

_ALL_FLUSHED = ""  # in place of a boot id


class _Saved(NamedTuple):
    transactional_id: str
    sequence: int
    offset: int


class LastSequences:
    """The last committed sequence of each transactional id of one cluster."""

    def __init__(self, manager: ReplicaManager, *, flush: bool) -> None:
        self._manager, self._flush = manager, flush
        self._files = manager.files
        self._directory = manager.metadata.paths.transactions_dir
        self._whole = self._directory / "whole"

    def last(self, transactional_id: str) -> int:
        """Return the sequence of a transactional id's last decided commit, or NO_TRANSACTION_SEQUENCE."""
        replica = self._manager.replica(TRANSACTION_STATE)
        saved = None
        if self._boot() in (_ALL_FLUSHED, boot_id().hex()):
            saved = self._saved(transactional_id, replica)
        return self._from_log(transactional_id, replica) if saved is None else saved

    def save(self, transactional_id: str, sequence: int, prepare_offset: int) -> None:
        """Save a decided commit's sequence in a file; a full disk does not fail the commit."""
        try:
            self._files.make_dir(self._directory)
            if not self._flush and self._boot() == _ALL_FLUSHED:
                self._files.replace(self._whole, boot_id().hex().encode())
            self._write(_Saved(transactional_id, sequence, prepare_offset))
        except OSError as error:
            logger.warning(
                "the next commit will scan __transaction_state: a sequence cannot be saved: %s",
                error,
            )
            self._files.remove(self._whole)
        if self._flush and self._files.exists(self._directory):
            self._files.flush([self._directory])

    def forget(self, transactional_ids: Iterable[str]) -> None:
        """Remove the files of transactional ids that __transaction_state no longer has."""
        for transactional_id in transactional_ids:
            self._files.remove(self._path(transactional_id))

    def scan_again(self) -> None:
        """Have `last` scan __transaction_state, and rebuild the files."""
        self._files.remove(self._whole)

    def _boot(self) -> str | None:
        """Return the id of the system boot for which the saved sequences are valid; None if they are not.

        It is empty if all were flushed, and are valid for good.
        """
        try:
            return self._files.read(self._whole).decode()
        except (OSError, UnicodeDecodeError):
            return None

    def _saved(self, transactional_id: str, replica: Replica) -> int | None:
        """Return a transactional id's sequence as saved in its file; None if that cannot be trusted."""
        state = replica.state
        try:
            path = self._path(transactional_id)
            content = parse(self._files.read(path), path)
            saved = _Saved(
                content.text("transactional_id"),
                content.integer("sequence"),
                content.integer("offset"),
            )
            if saved.offset >= state.high_watermark or saved.transactional_id != transactional_id:
                return None
            if saved.offset >= state.log_start_offset:
                found = next(transactions(replica, saved.offset))
                if (found.transactional_id, found.value.sequence) != saved[:2]:
                    return None
        except FileNotFoundError:
            return NO_TRANSACTION_SEQUENCE
        except (OSError, KafkaStorageError, CorruptRecordError):
            return None
        return saved.sequence

    def _from_log(self, transactional_id: str, replica: Replica) -> int:
        """Return a transactional id's sequence from __transaction_state, and rebuild all files from it."""
        entries = {
            name: _Saved(name, last.value.sequence, last.offset)
            for name, last in last_of_each_id(replica).items()
        }
        try:
            self._files.remove(self._whole)
            self._files.remove_dir(self._directory)
            self._files.make_dir(self._directory)
            for saved in entries.values():
                self._write(saved)
            self._files.replace(
                self._whole, (_ALL_FLUSHED if self._flush else boot_id().hex()).encode()
            )
            if self._flush:
                self._files.flush([self._directory.parent])
        except OSError as error:
            logger.warning("__transaction_state will be scanned again: %s", error)
        found = entries.get(transactional_id)
        return NO_TRANSACTION_SEQUENCE if found is None else found.sequence

    def _write(self, saved: _Saved) -> None:
        path = self._path(saved.transactional_id)
        aside = path.with_suffix(".tmp")
        self._files.remove(aside)
        self._files.write(aside, 0, json.dumps(saved._asdict()).encode())
        if self._flush:
            self._files.flush([aside])
        self._files.rename(aside, path)

    def _path(self, transactional_id: str) -> Path:
        name = hashlib.sha256(transactional_id.encode()).hexdigest()[:40]
        return self._directory / f"{name}.json"
