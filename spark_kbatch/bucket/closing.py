"""The end of a ledger that is given up for another one: a last entry after which no one commits.

    format    with CLOSED, which no version knows: each writer reads it before its next commit, and is refused

It is created as any entry is. So whoever has committed is before it, and whoever comes later learns of it: no one is
told that something is committed which is not in what was read of the ledger after it was closed. Readers go on.
"""

from __future__ import annotations

import random

from spark_kbatch.bucket import names
from spark_kbatch.bucket.entries import CLOSED, NO_ENTRY_ID, Entry, NewFormat, decode, encode
from spark_kbatch.bucket.objects import Objects, create_or_get
from spark_kbatch.clock import now_ms, sleep_ms
from spark_kbatch.errors import KBatchError

_ATTEMPTS_MAX, _PAUSE_MS = 8, 100


def is_closing(entry: Entry | None) -> bool:
    """Return True if an entry closes its ledger."""
    return entry is not None and entry.content == NewFormat(CLOSED)


def close(objects: Objects, last: int, before: Entry | None, by: str) -> bool:
    """Try to close a ledger; return False if an entry was there first, after which it is to be tried again.

    Args:
        objects: the cluster's.
        last: the number of the last entry.
        before: that entry; None if it cannot be read, after which no one commits either.
        by: who closes it.

    Raises:
        ObjectStoreError, ObjectAccessDeniedError: the store fails.
    """
    entry_id, time_ms = (before.entry_id, before.time_ms) if before else (NO_ENTRY_ID, 0)
    entry = Entry(
        last + 1,
        names.random_id(random.Random()),
        entry_id,
        max(time_ms, now_ms()),
        NewFormat(CLOSED),
        by,
    )
    name = names.entry_name(entry.number)
    there = create_or_get(
        objects,
        name,
        encode(entry),
        attempts=_ATTEMPTS_MAX,
        pause_ms=_PAUSE_MS,
        sleep_ms=sleep_ms,
    )
    try:
        return is_closing(decode(there, name))
    except KBatchError:
        return False
