"""The checkpoint of a streaming query, of which a commit reads what Spark has planned.

    CHECKPOINT/metadata     {"id": the query's}
    CHECKPOINT/offsets/N    created once, when micro-batch N is planned, and never written again:
                            a version, settings with the time, and a line for each source: where N ends
    CHECKPOINT/commits/N    created after N was committed; with `offsets/N` alone, N is to be repeated

A location without a scheme may be on a file system that only Hadoop knows, one with a scheme nearly always is. So a
folder is believed only if it has the query's id, and N as the last that was planned and is not committed: otherwise
nothing is known. Nothing here waits for a lock, so that a disk that hangs stops one query alone.

Source: Spark sql/core/.../streaming/checkpointing/OffsetSeqLog.scala, HDFSMetadataLog.scala.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from spark_kbatch.store.repetitions import UNREAD, PlannedOffsets

_SOURCES_BYTES_MAX = 4096
_LINES_BEFORE = 2  # the sources


def planned_offsets(location: str, query_id: str, number: int) -> PlannedOffsets:
    """Return what a query's checkpoint says of a micro-batch; `UNREAD` if that is not certain."""
    # Hadoop takes a path as it is written: %20 stands for itself.
    folder = Path(location.removeprefix("file:"))
    try:
        metadata = json.loads((folder / "metadata").read_bytes())
        names = [path.name for path in (folder / "offsets").iterdir()]
        newest = max((int(name) for name in names if name.isdecimal()), default=-1)
        planned = (folder / "offsets" / str(number)).read_bytes()
        is_committed = (folder / "commits" / str(number)).exists()
        if metadata["id"] != query_id or newest != number or is_committed:
            return UNREAD
        sources = b"\n".join(planned.split(b"\n")[_LINES_BEFORE:])
        is_short = len(sources) <= _SOURCES_BYTES_MAX
        return hashlib.sha256(planned).hexdigest(), sources.decode() if is_short else ""
    except (OSError, ValueError, TypeError, KeyError):
        return UNREAD
