"""Offsets for `earliest` and `latest` on which the tasks of one Spark action agree.

    agreements/DAY/ACTION       [[topic, partition, start, end], ...], with its sum; DAY is days since 1970

The first task creates it, and the others find it. Days let old ones be found without a list of all.

Around midnight one task may look under the old day and another under the new one, and one may stall in between.
So a task that finds no answer first creates an empty one under the day before: whoever comes too late for that
day finds it, and goes on to the next. A task may also start days after the first one: before it resolves anything
itself, it looks under all days that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from spark_kbatch import clock
from spark_kbatch.bucket.objects import Objects, create_or_get
from spark_kbatch.errors import ConfigError, ObjectAccessDeniedError
from spark_kbatch.ledger import checksummed_json
from spark_kbatch.ledger.codec import ObjectReader, form_of
from spark_kbatch.ledger.names import DAY_MS, agreement_name
from spark_kbatch.model import TopicPartition

_DAYS_KEPT = 9  # for a task that starts late; collectors keep them as long
_ATTEMPTS_MAX = 6
_PAUSE_MS = 50
_ROWS = form_of(tuple[tuple[str, int, int, int], ...])  # topic, partition, start, end

AgreedOffsets: TypeAlias = Mapping[TopicPartition, tuple[int, int]]


def agree(
    objects: Objects, action: str, resolve: Callable[[], AgreedOffsets], now_ms: int
) -> AgreedOffsets:
    """Return the offsets of an action, after resolving and storing them if there are none.

    Args:
        objects: of the cluster.
        action: its name: letters, digits, '-'.
        resolve: returns the offsets as they are now.
        now_ms: the time of day.

    Raises:
        ConfigError: there are none, and they cannot be stored without the right to write.
        ObjectStoreError: the store fails.
    """
    day = now_ms // DAY_MS
    found_at = [agreement_name(one, action) for one in (day - 1, day, day + 1)]
    older = [agreement_name(one, action) for one in range(day - _DAYS_KEPT, day - 1)]
    found = _found(objects, found_at) or _found(objects, older)
    if found:
        return found
    resolved = resolve()
    rows = [[*tp, *offsets] for tp, offsets in sorted(resolved.items())]
    try:
        found = _create(objects, found_at[0], [])
        if found:
            return found
        # A clock that is behind finds the day closed, and goes on to the next.
        return (
            _create(objects, found_at[1], rows) or _create(objects, found_at[2], rows) or resolved
        )
    except ObjectAccessDeniedError as error:
        raise ConfigError(
            f"the tasks of this read cannot agree on what 'earliest' and 'latest' are: {error}; give offsets as "
            "numbers, or the right to write below agreements/"
        ) from None


def _found(objects: Objects, wanted: list[str]) -> AgreedOffsets:
    answers = zip(wanted, objects.get_many(wanted), strict=True)
    return next(filter(None, (_parsed(data, name) for name, data in answers)), {})


def _create(objects: Objects, name: str, rows: list[list[object]]) -> AgreedOffsets:
    """Create an answer, and return the one that is there then."""
    data = checksummed_json.encode({"offsets": rows, "v": 1})
    there = create_or_get(
        objects, name, data, attempts=_ATTEMPTS_MAX, pause_ms=_PAUSE_MS, sleep_ms=clock.sleep_ms
    )
    return _parsed(there, name)


def _parsed(data: bytes | None, name: str) -> AgreedOffsets:
    if data is None:
        return {}
    found = checksummed_json.decode(data, name)
    found.integer("v", 1, 1)
    rows = ObjectReader(found).at("offsets", _ROWS, found.values.get("offsets"))
    return {TopicPartition(topic, number): (start, end) for topic, number, start, end in rows}
