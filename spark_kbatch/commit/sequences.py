"""The last sequence of each transactional id, by which retried commits are recognized.

    PATH/transactions/HASH.json     HASH of the id; its last sequence, its PrepareCommit's offset,
                                    whether it is a mirror's (1) or not (0), and the evidence that
                                    tells a repetition of it from others
    PATH/transactions/whole         if it exists, every id that has committed has such a file. Holds a
                                    boot id, or nothing; and where logs lie on other disks than PATH,
                                    an offset of `__transaction_state`

`__transaction_state` is the authority; these files are a cache, and save each commit of a micro-batch a scan of
it. That takes 45 us of Python a commit since the last rewrite: 0.3 s before the next one, at 4 MiB; with the
file it is 0.2 ms, and 0.1 ms to write. Each commit runs in a process of its own, so memory cannot hold it.

A file is written after its commit was decided and before the commit counts as complete, so rolling
forward writes it again. If it cannot be written, `whole` is removed, which needs no space. Files that were
not flushed are trusted until the machine reboots: a power loss may take them while the log keeps the
commit. So before the first such file is written, `whole` is given the boot id.

If `whole` is missing or of another boot, or if a file names a record that is not there, the log is scanned
once and all files are rebuilt. Rewriting the log leaves them as they are: those with an offset below its start
are trusted.

Where logs lie on other disks, PATH may come back older than they are, as an image of its disk. So there
the files are believed only up to the offset in `whole`: whatever was decided below it, they have. What the
log has from there on is scanned, by each commit, and counts instead; once that is much, the files get it, and
`whole` the end of it. An offset that the log does not have, since it was rewritten or has lost its end, is
not believed: all files are rebuilt.

A rewrite of the log, once it has grown, keeps no more than that of it. All of this happens under the commit lock.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from spark_kbatch.commit.internal_topics import TRANSACTION_STATE, rewrite_locked
from spark_kbatch.commit.snapshot import Transaction, last_of_each_id, transactions
from spark_kbatch.commit.state_records import COMPLETE_COMMIT, pack_key, pack_value
from spark_kbatch.errors import CorruptRecordError, KafkaStorageError
from spark_kbatch.log.state import boot_id
from spark_kbatch.model import NO_TRANSACTION_SEQUENCE
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.view import Replica
from spark_kbatch.store.repetitions import Evidence, LastKept
from spark_kbatch.stored_json import parse

logger = logging.getLogger(__name__)

REWRITE_BYTES = 4 << 20  # of records since the last rewrite

_ALL_FLUSHED = ""  # in place of a boot id
_SCANNED_MAX = 40  # offsets; a commit takes two, so this takes under 1 ms


class LastCommit(NamedTuple):
    """The last decided commit of a transactional id, as its file keeps it."""

    transactional_id: str
    sequence: int
    offset: int  # of its PrepareCommit
    is_mirror: int  # 1 if a mirror has the id, else 0
    evidence: str  # as the log has it

    @classmethod
    def of(cls, last: Transaction) -> LastCommit:
        """Return it as the log has it."""
        name, value, offset = last
        return cls(name, value.sequence, offset, int(value.is_mirrors), value.evidence.decode())

    @property
    def kept(self) -> LastKept:
        """The sequence and evidence that a job's next commit is compared with."""
        kept = parse(self.evidence, "what is kept of a micro-batch") if self.evidence else None
        return self.sequence, Evidence.of(kept) if kept else None


_NONE = LastCommit("", NO_TRANSACTION_SEQUENCE, 0, 0, "")


class _Whole(NamedTuple):
    boot: str  # id of the one for which the saved sequences are valid; _ALL_FLUSHED for all
    covered: int | None  # the offset up to which they have everything; None if that was not noted


class LastSequences:
    """The last committed sequence of each transactional id of one cluster."""

    def __init__(self, manager: ReplicaManager, *, flush: bool) -> None:
        self._manager, self._flush = manager, flush
        self._files = manager.files
        self._directory = manager.metadata.paths.transactions_dir
        self._whole = self._directory / "whole"

    def last(self, transactional_id: str) -> LastCommit:
        """Return a transactional id's last decided commit; NO_TRANSACTION_SEQUENCE if it has none."""
        replica = self._manager.replica(TRANSACTION_STATE)
        whole = self._read_whole()
        if whole is None or whole.boot not in (_ALL_FLUSHED, boot_id().hex()):
            return self._from_log(transactional_id, replica)
        if self._is_apart:
            state, covered = replica.state, whole.covered
            if covered is None or not state.log_start_offset <= covered <= state.high_watermark:
                return self._from_log(transactional_id, replica)
            since = _last_of_each_id_from(covered, replica)
            if state.high_watermark - covered > _SCANNED_MAX:
                self._cover(since, whole._replace(covered=state.high_watermark))
            if transactional_id in since:
                return since[transactional_id]
        saved = self._saved(transactional_id, replica)
        return self._from_log(transactional_id, replica) if saved is None else saved

    def save(self, decided: Transaction) -> None:
        """Save a decided commit's sequence in a file; a full disk does not fail the commit."""
        try:
            self._files.ensure_no_link(self._directory, self._directory.parent)
            self._files.make_dir(self._directory)
            whole = None if self._flush else self._read_whole()
            if whole is not None and whole.boot == _ALL_FLUSHED:
                self._write_whole(whole._replace(boot=boot_id().hex()))
            self._write(LastCommit.of(decided))
        except OSError as error:
            logger.warning(
                "the next commit will scan __transaction_state: a sequence cannot be saved: %s",
                error,
            )
            self._files.remove(self._whole)
        if self._flush and self._files.exists(self._directory):
            self._files.flush([self._directory])

    def maybe_rewrite(self, *, now_ms: int, expiration_ms: int | None = None) -> None:
        """Compact `__transaction_state` if it has grown by `REWRITE_BYTES`.

        The last sequence of each transactional id is kept, with a mirror's progress, as a CompleteCommit without
        states. Jobs without a sequence are dropped, and so are ids that have not committed for `expiration_ms`,
        if that is given, with their files; but no mirror's, which could not go on.

        The committer does this when nothing is pending; it holds the commit lock and has called `ready_locked`.
        """
        replica = self._manager.replica(TRANSACTION_STATE)
        if replica.state.segment_size < REWRITE_BYTES or replica.state.has_pending_commit:
            return
        ids = last_of_each_id(replica)
        expired = [
            name
            for name, last in ids.items()
            if expiration_ms is not None
            and last.value.last_update_ms < now_ms - expiration_ms
            and not last.value.source_progress
        ]
        for name in expired:
            del ids[name]
        partition = self._manager.partition(TRANSACTION_STATE)
        rewrite_locked(partition, map(_completed, ids.values()), now_ms)
        for name in expired:
            self._files.remove(self._path(name))

    def scan_again(self) -> None:
        """Have `last` scan __transaction_state, and rebuild the files."""
        self._files.remove(self._whole)

    @property
    def _is_apart(self) -> bool:
        """True if logs lie on other disks than PATH and these files."""
        return bool(self._manager.metadata.json_files.mirrors.folders)

    def _read_whole(self) -> _Whole | None:
        """Return what is noted of the saved sequences; None if they are not valid."""
        try:
            boot, _, covered = self._files.read(self._whole).decode().partition(" ")
            return _Whole(boot, int(covered) if covered else None)
        except (OSError, ValueError):
            return None

    def _write_whole(self, whole: _Whole) -> None:
        boot, covered = whole
        self._files.replace(
            self._whole, (boot if covered is None else f"{boot} {covered}").encode()
        )

    def _cover(self, since: Mapping[str, LastCommit], whole: _Whole) -> None:
        """Save what was found in the log, then that the files have it; if that fails, it is found again."""
        try:
            if not self._flush and whole.boot == _ALL_FLUSHED:
                whole = whole._replace(boot=boot_id().hex())
            for saved in since.values():
                self._write(saved)
            if self._flush:
                self._files.flush([self._directory])
            self._write_whole(whole)
        except OSError as error:
            logger.warning("more of __transaction_state will be scanned: %s", error)

    def _saved(self, transactional_id: str, replica: Replica) -> LastCommit | None:
        """Return a transactional id's last commit as saved in its file; None if that cannot be trusted."""
        state = replica.state
        try:
            path = self._path(transactional_id)
            content = parse(self._files.read(path), path)
            saved = LastCommit(
                content.text("transactional_id"),
                content.integer("sequence"),
                content.integer("offset"),
                content.integer("is_mirror", 0, 1),
                content.text("evidence"),
            )
            if saved.offset >= state.high_watermark or saved.transactional_id != transactional_id:
                return None
            if saved.offset >= state.log_start_offset:
                found = next(transactions(replica, saved.offset))
                if LastCommit.of(found)._replace(offset=saved.offset) != saved:
                    return None
        except FileNotFoundError:
            return _NONE
        except (OSError, KafkaStorageError, CorruptRecordError):
            return None
        return saved

    def _from_log(self, transactional_id: str, replica: Replica) -> LastCommit:
        """Return a transactional id's last commit from __transaction_state, and rebuild all files from it."""
        state = replica.state
        entries = _last_of_each_id_from(state.log_start_offset, replica)
        try:
            self._files.remove(self._whole)
            self._files.remove_dir(self._directory)
            self._files.make_dir(self._directory)
            for saved in entries.values():
                self._write(saved)
            boot = _ALL_FLUSHED if self._flush else boot_id().hex()
            self._write_whole(_Whole(boot, state.high_watermark if self._is_apart else None))
            if self._flush:
                self._files.flush([self._directory.parent])
        except OSError as error:
            logger.warning("__transaction_state will be scanned again: %s", error)
        return entries.get(transactional_id, _NONE)

    def _write(self, saved: LastCommit) -> None:
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


def _completed(last: Transaction) -> tuple[bytes, bytes]:
    """Return the record that a rewrite keeps of a transactional id."""
    value = last.value._replace(status=COMPLETE_COMMIT, states={})
    return pack_key(last.transactional_id), pack_value(value)


def _last_of_each_id_from(offset: int, replica: Replica) -> dict[str, LastCommit]:
    return {name: LastCommit.of(last) for name, last in last_of_each_id(replica, offset).items()}
