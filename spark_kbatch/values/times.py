"""The units of Avro's times, and of the columns that they become."""

from __future__ import annotations

from typing import NamedTuple

from spark_kbatch.values.avro_schema import LogicalType

INT32, INT64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
_PARTS = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}


class TimeUnit(NamedTuple):
    """The unit of a time: what it counts, and in which parts of a second."""

    family: str  # timestamp, local-timestamp, time or date, which no conversion leads out of
    per_second: int  # 1 for a date, which counts days


def unit_of(logical: LogicalType | None) -> TimeUnit | None:
    """Return the unit of a logical type that is a time, None for any other."""
    if logical is None:
        return None
    family, _, part = logical.name.rpartition("-")
    if part in _PARTS:
        return TimeUnit(family, _PARTS[part])
    return TimeUnit("date", 1) if logical.name == "date" else None


def column_unit(logical: LogicalType | None) -> TimeUnit | None:
    """Return the unit in which the column of a logical type counts: microseconds in place of milliseconds."""
    unit = unit_of(logical)
    if unit is not None and unit.family.endswith("timestamp") and unit.per_second == 1_000:
        return TimeUnit(unit.family, 1_000_000)
    return unit


def default_factor(logical: LogicalType | None) -> int:
    """Return what a number of a logical type is multiplied by to be its column's."""
    written, stored = unit_of(logical), column_unit(logical)
    return stored.per_second // written.per_second if written and stored else 1


def bounds(writer: str, reader: str, factor: int) -> tuple[int, int]:
    """Return the least and the most number of two types, int or long, that fits both and a column.

    `factor` is what it is multiplied by in the column, which has 64 bits.
    """
    least, most = INT32 if "int" in (writer, reader) else INT64
    if factor == 1:
        return least, most
    return max(least, -(INT64[1] // factor)), min(most, INT64[1] // factor)
