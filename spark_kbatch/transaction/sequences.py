"""The last sequence of each transactional id: by it a commit that comes again is known.

    PATH/transactions/HASH.json     HASH of the id; its last PrepareCommit's offset and sequence

`__transaction_state` is the authority. These files spare going over it: each is written after its
commit was decided and before it counts as complete, so that whoever rolls forward writes it again.
One is believed if it names a PrepareCommit of its id that is in the log, and if it was flushed or
the machine has not started anew since: what a power loss takes it may not take from the log as well.
Whatever else is found, no file included, means that the log is gone over from its start.

All of this happens under the commit lock.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.log.state import LogState, boot_id
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.transaction.messages import NO_TRANSACTION_SEQUENCE, PREPARE_COMMIT
from spark_kbatch.transaction.snapshot import TRANSACTION_STATE, Transaction, transactions

logger = logging.getLogger(__name__)


class Sequences:
    """Of the transactional ids of one cluster."""

    def __init__(self, manager: ReplicaManager, *, flush: bool) -> None:
        self._manager, self._flush = manager, flush
        self._files = manager.files

    def last(self, transactional_id: str) -> int:
        """Of its last decided commit; NO_TRANSACTION_SEQUENCE where there is none."""
        state = self._manager.log(TRANSACTION_STATE).state()
        noted = self._noted(transactional_id, state)
        if noted is not None:
            return noted
        found = NO_TRANSACTION_SEQUENCE
        for transaction in transactions(self._manager, state, state.log_start_offset):
            if _is_commit_of(transaction, transactional_id):
                found = max(found, transaction.value.sequence)
        return found

    def note(self, transactional_id: str, sequence: int, prepare_offset: int) -> None:
        """Keep what a commit that is decided has for its id; a full disk does not stop it."""
        path = self._path(transactional_id)
        content = {
            "transactional_id": transactional_id,
            "sequence": sequence,
            "offset": prepare_offset,
            "boot_id": "" if self._flush else boot_id().hex(),
        }
        aside = path.with_suffix(".tmp")
        try:
            self._files.make_dir(path.parent)
            self._files.remove(aside)
            self._files.write(aside, 0, json.dumps(content).encode())
            if self._flush:
                self._files.flush([aside])
            self._files.rename(aside, path)
        except OSError as error:
            logger.warning("%s is removed, it could not be written: %s", path, error)
            self._files.remove(path)
        if self._flush and self._files.exists(path.parent):
            self._files.flush([path.parent])

    def _noted(self, transactional_id: str, state: LogState) -> int | None:
        try:
            noted = json.loads(self._files.read(self._path(transactional_id)))
            offset, sequence, of_boot = noted["offset"], noted["sequence"], noted["boot_id"]
            if of_boot and of_boot != boot_id().hex():
                return None
            if not state.log_start_offset <= offset < state.high_watermark:
                return None
            transaction = next(transactions(self._manager, state, offset))
        except (OSError, ValueError, TypeError, KeyError, CorruptRecordError):
            return None
        fits = _is_commit_of(transaction, transactional_id)
        return sequence if fits and transaction.value.sequence == sequence else None

    def _path(self, transactional_id: str) -> Path:
        name = hashlib.sha256(transactional_id.encode()).hexdigest()[:40]
        return self._manager.metadata.transactions_dir / f"{name}.json"


def _is_commit_of(transaction: Transaction, transactional_id: str) -> bool:
    return (
        transaction.transactional_id == transactional_id
        and transaction.value.status == PREPARE_COMMIT
    )
