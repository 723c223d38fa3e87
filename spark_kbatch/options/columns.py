"""The names of the columns of rows, and what is said of a name to be written that looks like one.

Names are case-sensitive. A column of any other name is not written.

Source: Spark connector/kafka-0-10-sql/.../KafkaWriter.scala.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from spark_kbatch.options.option import nearest

logger = logging.getLogger(__name__)

READ = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
WRITTEN = ("topic", "key", "value", "headers", "partition", "timestamp")
# Rows that were read from a topic may be written unchanged, with columns that only reads have.
ONLY_READ = ("offset", "timestampType")
_KNOWN = frozenset((*WRITTEN, *ONLY_READ))


def warn_of_misspelt(names: Sequence[str], warned: set[str] | None = None) -> None:
    """Log a warning for each column that is not written and whose name is close to a missing column's.

    Args:
        names: of the columns of rows to be written.
        warned: unknown names that were looked at before, which are left out; those of `names` are added.
    """
    unknown = [name for name in dict.fromkeys(names) if name not in _KNOWN]
    if warned is not None:
        unknown = [name for name in unknown if name not in warned]
        warned.update(unknown)
    absent = [name for name in WRITTEN if name not in names]
    for name in unknown:
        near = nearest(name, absent)
        if near is not None:
            logger.warning(
                "column %r is ignored; did you mean %r? The columns of a write are: %s",
                name, near, ", ".join(WRITTEN),
            )  # fmt: skip


def meant_for(wanted: str, names: Iterable[str]) -> str | None:
    """Return the column that looks like a misspelt `wanted`, which is missing; None if none does."""
    return nearest(wanted, [name for name in names if name not in _KNOWN])
