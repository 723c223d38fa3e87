"""The last sequence of each transactional id: by it a commit that comes again is known.

    PATH/transactions/HASH.json     HASH of the id; its last sequence, and the offset of its PrepareCommit
    PATH/transactions/whole         says that there is a note for every id: that one without a note has
                                    not committed yet. Holds the boot id, or nothing

`__transaction_state` is the authority; these files spare going over it. A note is written after its
commit was decided and before it counts as complete, so that whoever rolls forward writes it again.
One that cannot be written takes `whole` away, which needs no space. Notes that were not flushed are
believed until the machine starts anew: what a power loss takes of them it may not take of the log.
Then `whole` holds the boot id, before the first such note is written.

Where `whole` is missing or of another boot, or where a note names a record that is not there, the log
is gone over, once, and all notes are made anew. A rewriting of the log leaves notes as they are: those
with an offset below its start are believed.

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
from spark_kbatch.commit.state_records import NO_TRANSACTION_SEQUENCE
from spark_kbatch.errors import CorruptRecordError, KafkaStorageError
from spark_kbatch.log.state import boot_id
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.view import Replica
from spark_kbatch.stored_json import parse

logger = logging.getLogger(__name__)

_ALL_FLUSHED = ""  # in place of a boot id


class _Note(NamedTuple):
    transactional_id: str
    sequence: int
    offset: int


class Sequences:
    """Of the transactional ids of one cluster."""

    def __init__(self, manager: ReplicaManager, *, flush: bool) -> None:
        self._manager, self._flush = manager, flush
        self._files = manager.files
        self._directory = manager.metadata.paths.transactions_dir
        self._whole = self._directory / "whole"

    def last(self, transactional_id: str) -> int:
        """Of its last decided commit; NO_TRANSACTION_SEQUENCE where there is none."""
        replica = self._manager.replica(TRANSACTION_STATE)
        noted = None
        if self._boot() in (_ALL_FLUSHED, boot_id().hex()):
            noted = self._noted(transactional_id, replica)
        return self._from_log(transactional_id, replica) if noted is None else noted

    def note(self, transactional_id: str, sequence: int, prepare_offset: int) -> None:
        """Keep what a commit that is decided has for its id; a full disk does not stop it."""
        try:
            self._files.make_dir(self._directory)
            if not self._flush and self._boot() == _ALL_FLUSHED:
                self._files.replace(self._whole, boot_id().hex().encode())
            self._write(_Note(transactional_id, sequence, prepare_offset))
        except OSError as error:
            logger.warning("the log will be gone over: a note cannot be written: %s", error)
            self._files.remove(self._whole)
        if self._flush and self._files.exists(self._directory):
            self._files.flush([self._directory])

    def forget(self, transactional_ids: Iterable[str]) -> None:
        """Remove the notes of ids that the log does not have any more."""
        for transactional_id in transactional_ids:
            self._files.remove(self._path(transactional_id))

    def _boot(self) -> str | None:
        """Until which boot all notes are believed; None if they are not."""
        try:
            return self._files.read(self._whole).decode()
        except (OSError, UnicodeDecodeError):
            return None

    def _noted(self, transactional_id: str, replica: Replica) -> int | None:
        """What is noted; None where that cannot be."""
        state = replica.state
        try:
            path = self._path(transactional_id)
            content = parse(self._files.read(path), path)
            note = _Note(
                content.text("transactional_id"),
                content.integer("sequence"),
                content.integer("offset"),
            )
            if note.offset >= state.high_watermark or note.transactional_id != transactional_id:
                return None
            if note.offset >= state.log_start_offset:
                found = next(transactions(replica, note.offset))
                if (found.transactional_id, found.value.sequence) != note[:2]:
                    return None
        except FileNotFoundError:
            return NO_TRANSACTION_SEQUENCE
        except (OSError, KafkaStorageError, CorruptRecordError):
            return None
        return note.sequence

    def _from_log(self, transactional_id: str, replica: Replica) -> int:
        """What the log says, after all notes are made anew."""
        notes = {
            name: _Note(name, last.value.sequence, last.offset)
            for name, last in last_of_each_id(replica).items()
        }
        try:
            self._files.remove(self._whole)
            self._files.remove_dir(self._directory)
            self._files.make_dir(self._directory)
            for note in notes.values():
                self._write(note)
            self._files.replace(
                self._whole, (_ALL_FLUSHED if self._flush else boot_id().hex()).encode()
            )
            if self._flush:
                self._files.flush([self._directory.parent])
        except OSError as error:
            logger.warning("the log will be gone over again: %s", error)
        found_note = notes.get(transactional_id)
        return NO_TRANSACTION_SEQUENCE if found_note is None else found_note.sequence

    def _write(self, note: _Note) -> None:
        path = self._path(note.transactional_id)
        aside = path.with_suffix(".tmp")
        self._files.remove(aside)
        self._files.write(aside, 0, json.dumps(note._asdict()).encode())
        if self._flush:
            self._files.flush([aside])
        self._files.rename(aside, path)

    def _path(self, transactional_id: str) -> Path:
        name = hashlib.sha256(transactional_id.encode()).hexdigest()[:40]
        return self._directory / f"{name}.json"
