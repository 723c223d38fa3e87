"""The checkpoint of a streaming query, of which a commit reads what Spark has planned.

    CHECKPOINT/metadata     {"id": the query's}
    CHECKPOINT/offsets/N    created once, when micro-batch N is planned, and never written again:
                            a version, settings and time, and a line for each source: where N ends
    CHECKPOINT/commits/N    created after N was committed; without it N is to be repeated

A location without a scheme may be on a file system that only Hadoop knows, and one with a scheme
nearly always is. So a folder is believed only if it has the query's id, and N is the last that was
planned and is not committed: otherwise nothing is known. No lock is held meanwhile, so that a disk
that hangs stops one query alone.

Source: Spark sql/core/.../streaming/checkpointing/OffsetSeqLog.scala, HDFSMetadataLog.scala.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from spark_kbatch.store.repetitions import UNREAD, PlannedOffsets

_SOURCES_MAX = 4096  # characters


def planned_offsets(location: str, query_id: str, number: int) -> PlannedOffsets:
    """Return what a query's checkpoint says of a micro-batch; `UNREAD` if that is not certain."""
    # Hadoop takes a path as it is written: %20 stands for itself.
    folder = Path(location.removeprefix("file:"))
    try:
        planned = (folder / "offsets" / str(number)).read_bytes()
        later = f"offsets/{number + 1}", f"commits/{number}"
        if (
            any((folder / name).exists() for name in later)
            or query_id != (json.loads((folder / "metadata").read_bytes())["id"])
        ):
            return UNREAD
        sources = planned.decode().split("\n", 2)[2]
        return hashlib.sha256(planned).hexdigest(), sources if len(sources) <= _SOURCES_MAX else ""
    except (OSError, ValueError, TypeError, LookupError):
        return UNREAD
