"""Rewriting an internal topic, so that it stays small: an overwrite of its own.

Of `__transaction_state` the last sequence of each transactional id is kept, with a mirror's progress, as
a CompleteCommit without states. Jobs without a sequence are dropped, and so are ids that have not
committed for transactional.id.expiration.ms, if that is set; but no mirror's, which could not go on. The
committer does this when nothing is pending. The caller holds the partition's lock, which for
`__transaction_state` is the commit lock, and has called `ready_locked`:

    1. discard what is past the end; then a segment at the log's end: what is kept, followed by an
       empty segment; not visible yet
    2. flush its files and the directory
    3. write and flush the slot: log start, log end and active segment; from here on it counts (with
       several replicas the leader's slot, then the copies)
    4. rename old segments to .deleted; they are removed after their delay

A crash before 3 leaves files past the end, which the next writer discards; a crash after 3 leaves
segments below the log start, which the next rewrite deletes. Offsets never restart, so a reader that
was overtaken notices by the log start, and starts over.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.commit.snapshot import Transaction, last_of_each_id
from spark_kbatch.commit.state_records import (
    COMPLETE_COMMIT,
    pack_key,
    pack_value,
)
from spark_kbatch.log import retention
from spark_kbatch.log.append import LogAppender
from spark_kbatch.record import scalar
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.partition import Partition

REWRITE_BYTES = 4 << 20  # of records since the last rewrite
_BATCH_RECORDS = 1000


def maybe_rewrite(
    manager: ReplicaManager, *, now_ms: int, expiration_ms: int | None = None
) -> list[str]:
    """Rewrite the log if it has grown by `REWRITE_BYTES`. The caller holds the commit lock.

    Args:
        manager: of the cluster.
        now_ms: the time.
        expiration_ms: how long to keep an id that does not commit any more; None for ever.

    Returns:
        The ids that were dropped though they had a sequence.
    """
    replica = manager.replica(TRANSACTION_STATE)
    if replica.state.segment_size < REWRITE_BYTES or replica.state.has_pending_commit:
        return []
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

    rewrite_locked(manager.partition(TRANSACTION_STATE), map(_record, ids.values()), now_ms)
    return expired


def rewrite_locked(
    partition: Partition, records: Iterable[tuple[bytes, bytes | None]], now_ms: int
) -> int:
    """Have a log hold these records only, in an old segment before an empty one; return their bytes.

    The caller holds the partition's lock, and keeps brokers out.
    """
    rest, size = iter(records), 0
    with partition.leading_locked() as log:
        state = log.discard_unrecorded(log.state())
        appender = LogAppender(log, state, now_ms=now_ms)
        appender.start_segment()
        while some := list(itertools.islice(rest, _BATCH_RECORDS)):
            batch = scalar.encode(some, now_ms)
            appender.append(batch)
            size += len(batch)
        # So that the size of the active segment tells how much was appended since.
        appender.start_segment()
        after = appender.finish(flush=True, prepare_offset=-1)
    # Flushed even if the caller does not flush: an older state would name segments that are gone.
    partition.publish_locked(after._replace(log_start_offset=state.log_end_offset), flush=True)
    with partition.leading_locked() as log:
        retention.delete_old_segments(log, log.state(), now_ms)
    return size


def _record(last: Transaction) -> tuple[bytes, bytes]:
    value = last.value._replace(status=COMPLETE_COMMIT, states={})
    return pack_key(last.transactional_id), pack_value(value)
