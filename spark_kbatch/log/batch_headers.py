"""Batch headers of one `.log` file: found by position, by walking, or through the index.

Index entries are checked here: an entry counts if it leads to a batch that has the last offset which the
entry names, or to a whole valid batch that starts no later. If no entry does, the segment is walked from
its start. So a damaged, truncated or missing index costs time and changes no answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from spark_kbatch.errors import CorruptRecordError, KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.log.segment import SegmentView, candidates
from spark_kbatch.log.segment_scan import valid_batch_at
from spark_kbatch.record import header
from spark_kbatch.record.header import (
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    walk,
    whole_size,
)

logger = logging.getLogger(__name__)

WALKED_BYTES = (
    16 * 1024
)  # read at once: many small batches, or a large one whose records are skipped


def header_at(
    files: Files, descriptor: int, path: Path, position: int, end_position: int
) -> BatchHeader:
    """Return the header of the record batch at `position` of a `.log` file.

    Raises:
        CorruptRecordError: there is none, or one that does not end by `end_position`.
        KafkaStorageError: the file ends before `end_position`.
    """
    # A message of an older format may be shorter than a batch's header.
    size = max(min(RECORD_BATCH_OVERHEAD, end_position - position), 0)
    view = memoryview(bytearray(size))
    if files.pread_into(descriptor, position, view) < size:
        raise too_short(files, path, position + size)
    try:
        return header.header_at(view, 0, size, room=end_position - position)
    except CorruptRecordError as error:
        raise error.at(str(path), position) from None


def walk_batch_headers(
    files: Files,
    descriptor: int,
    path: Path,
    position: int,
    end_position: int,
    *,
    messages_together: bool = False,
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch of a `.log` file from `position` to `end_position`.

    A batch starts at `position`. Messages of the older formats come one by one, or with
    `messages_together` uncompressed ones in runs, as from `walk`.

    Raises:
        As `header_at`.
    """
    buffer = memoryview(bytearray(max(min(WALKED_BYTES, end_position - position), 0)))
    while position < end_position:
        view = buffer[: max(min(len(buffer), end_position - position), 0)]
        if files.pread_into(descriptor, position, view) < len(view):
            raise too_short(files, path, position + len(view))
        whole = whole_size(view)
        try:
            run_bytes_max = WALKED_BYTES if messages_together else 1
            for at, found in walk(view, 0, whole, run_bytes_max=run_bytes_max):
                yield position + at, found
        except CorruptRecordError as error:
            raise error.at(str(path), position) from None
        if not whole:
            found = header_at(files, descriptor, path, position, end_position)
            yield position, found
            whole = found.size_in_bytes
        position += whole


def indexed_batch(
    files: Files, descriptor: int, view: SegmentView, offset: int
) -> tuple[int, BatchHeader]:
    """Return the position and header of the last batch in the `.index` from which a walk reaches `offset`.

    Raises:
        As `header_at`, for the segment's first batch.
    """
    path, end_position = view.log, view.size_in_bytes
    for known, position in candidates(files, view.segment, offset, view.index_size):
        if position == 0:
            break
        found = follow(files, descriptor, path, known, position, end_position, trusting=True)
        if found is not None:
            return position, found
        _warn(view.segment.offset_index, known, position)
    return 0, header_at(files, descriptor, path, 0, end_position)


def follow(
    files: Files,
    descriptor: int,
    path: Path,
    last_offset: int,
    position: int,
    end_position: int,
    *,
    trusting: bool,
) -> BatchHeader | None:
    """Check an `.index` entry: return the header of the batch to which it leads; None if it leads to none.

    When several batches were appended at once, a broker's entry has the first one's position, but the
    last one's last offset. So a whole valid batch that does not start above that offset will do.

    Args:
        trusting: whether a batch with exactly that last offset will do without a look at its CRC.
    """
    if trusting and position < end_position:
        try:
            found = header_at(files, descriptor, path, position, end_position)
        except CorruptRecordError:
            return None
        if found.last_offset == last_offset:
            return found
        if found.base_offset > last_offset:
            return None
    valid = valid_batch_at(files, descriptor, position, end_position)
    return valid if valid is not None and valid.base_offset <= last_offset else None


@lru_cache(maxsize=1024)  # once per entry, not at every read
def _warn(path: Path, offset: int, position: int) -> None:
    logger.warning(
        "%s says that a batch with last offset %d is at position %d, but there is none: reading "
        "ignores the entry; `kbatch repair` rebuilds the index",
        path, offset, position,
    )  # fmt: skip


def too_short(files: Files, path: Path, size: int) -> KafkaStorageError:
    """Return the error for a file that has fewer than the recorded `size` bytes."""
    found = files.size(path) if files.exists(path) else 0
    return KafkaStorageError(
        f"{path} has {found} bytes, fewer than the {size} that {path.parent.name}/kbatch.state "
        "records: the file was truncated or replaced by something else, or a power loss took what "
        "was not flushed; `kbatch repair` keeps what is valid"
    )
