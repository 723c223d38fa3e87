"""The names of a partition's files once a starting broker has resolved .swap, .cleaned and .deleted ones.

    *.deleted      removed
    *.cleaned      removed: the cleaner, or a split of a segment, did not finish
    *.swap         removed if its base offset is not below that of every .cleaned; else it is renamed to
                   the name without the suffix, and every other file whose stem is in
                   [smallest base offset of a .log.swap, largest next offset in one) is removed: the
                   .swap was made from it

A broker does this on disk before it loads segments. Here it is only worked out, so that a read-only
directory is read as the broker would read it.

Source: Kafka storage/.../log/LogLoader.load, removeTempFilesAndCollectSwapFiles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_STEM = re.compile(r"([0-9]{1,19}|0[0-9]{19})\.")
_SNAPSHOT_OF_METADATA = ".checkpoint.deleted"


def names_after_start(names: Iterable[str], next_offset_of: Callable[[str], int]) -> dict[str, str]:
    """Return the file names that a partition has after a broker starts, each with the current name.

    Args:
        names: of the regular files in the directory.
        next_offset_of: returns the offset after the last batch of a .log.swap, given its name.
    """
    kept, swaps, cleaned = [], [], []
    for name in names:
        if name.endswith(".cleaned"):
            cleaned.append(name)
        elif name.endswith(".swap"):
            swaps.append(name)
        elif not name.endswith(".deleted") or name.endswith(_SNAPSHOT_OF_METADATA):
            kept.append(name)
    if not swaps:
        return {name: name for name in kept}
    first_cleaned = min((stem for stem in map(_stem, cleaned) if stem is not None), default=None)
    valid = [
        name
        for name in swaps
        if (stem := _stem(name)) is not None and (first_cleaned is None or stem < first_cleaned)
    ]
    logs = [name for name in valid if name.endswith(".log.swap")]
    if logs:
        low = min(stem for stem in map(_stem, logs) if stem is not None)
        high = max(map(next_offset_of, logs))
        kept = [name for name in kept if (stem := _stem(name)) is None or not low <= stem < high]
    return {name: name for name in kept} | {name.removesuffix(".swap"): name for name in valid}


def _stem(name: str) -> int | None:
    """Return the base offset before the first dot of a file's name; None if there is none."""
    found = _STEM.match(name)
    return int(found[1]) if found else None
