"""The end of a ledger that is given up for another one: a last entry after which no one commits.

    format    with CLOSED, which no version knows: each writer reads it before its next commit,
              and is refused

It is created as any entry is. So whoever has committed is before it, and whoever comes later learns
of it: no one is told that something is committed which is not in what was read of the ledger after
it was closed. Readers go on.
"""

from __future__ import annotations

import random

from spark_kbatch.bucket import names
from spark_kbatch.bucket.entries import CLOSED, NO_ENTRY_ID, Entry, NewFormat, encode
from spark_kbatch.bucket.objects import Objects, create_or_get
from spark_kbatch.clock import now_ms, sleep_ms


def is_closing(entry: Entry | None) -> bool:
    """Return True if an entry closes its ledger."""
    return entry is not None and entry.content == NewFormat(CLOSED)


def try_to_close(objects: Objects, last: int, before: Entry | None, by: str) -> None:
    """Close a ledger, unless another entry is first, after which it is to be looked at again.

    Args:
        objects: the cluster's.
        last: the number of the last entry.
        before: that entry; None if it cannot be read, after which no one commits either.
        by: who closes it.

    Raises:
        ObjectStoreError, ObjectAccessDeniedError: the store fails.
    """
    entry_id, time_ms = (before.entry_id, before.time_ms) if before else (NO_ENTRY_ID, 0)
    time_ms, own_id = max(time_ms, now_ms()), names.random_id(random.Random())
    entry = Entry(last + 1, own_id, entry_id, time_ms, NewFormat(CLOSED), by)
    name, data = names.entry_name(last + 1), encode(entry)
    create_or_get(objects, name, data, attempts=8, pause_ms=100, sleep_ms=sleep_ms)
