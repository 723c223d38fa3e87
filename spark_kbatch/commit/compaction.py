"""The compaction of `__transaction_state`, which keeps the last record of each transactional id.

The last sequence of each transactional id is kept, with a mirror's progress, as
a CompleteCommit without states. Jobs without a sequence are dropped, and so are ids that have not
committed for transactional.id.expiration.ms, if that is set; but no mirror's, which could not go on. The
committer does this when nothing is pending; it holds the commit lock and has called `ready_locked`.
"""

from __future__ import annotations

from spark_kbatch.commit.internal_topics import TRANSACTION_STATE, rewrite_locked
from spark_kbatch.commit.snapshot import Transaction, last_of_each_id
from spark_kbatch.commit.state_records import (
    COMPLETE_COMMIT,
    pack_key,
    pack_value,
)
from spark_kbatch.replica.manager import ReplicaManager

REWRITE_BYTES = 4 << 20  # of records since the last rewrite


def maybe_rewrite(
    manager: ReplicaManager, *, now_ms: int, expiration_ms: int | None = None
) -> list[str]:
    """Compact `__transaction_state` if it has grown by `REWRITE_BYTES`.

    The caller holds the commit lock.

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


def _record(last: Transaction) -> tuple[bytes, bytes]:
    value = last.value._replace(status=COMPLETE_COMMIT, states={})
    return pack_key(last.transactional_id), pack_value(value)
