"""How many bytes a value of an Avro type takes: always, or at least."""

from __future__ import annotations

from spark_kbatch.values.avro_schema import (
    NESTING_MAX,
    FixedSchema,
    PrimitiveSchema,
    RecordSchema,
    Schema,
    UnionSchema,
)

# No value is as large, so a larger type need not be told from one of this size.
_MOST = 2**31
_FIXED = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def fixed_size(schema: Schema) -> int | None:
    """Return the bytes that each value of a type takes, None if that depends on the value."""
    size, is_fixed = _size(schema, {}, 0)
    return size if is_fixed else None


def least_size(schema: Schema) -> int:
    """Return a number of bytes that each value of a type takes at least."""
    return _size(schema, {}, 0)[0]


def _size(
    schema: Schema, known: dict[RecordSchema, tuple[int, bool]], depth: int
) -> tuple[int, bool]:
    """Return the least size of a type's values, and whether all have it."""
    match schema:
        case PrimitiveSchema():
            return _FIXED.get(schema.type, 1), schema.type in _FIXED
        case FixedSchema():
            return schema.size, True
        case UnionSchema():
            least = (_size(one, known, depth)[0] for one in schema.branches)
            return 1 + min(least, default=0), False
        case RecordSchema() if depth < NESTING_MAX:
            if schema not in known:
                known[schema] = 0, False  # for a record that lies in itself; no value is as small
                sizes = [_size(one.type, known, depth + 1) for one in schema.fields]
                least_of_all = min(sum(size for size, _ in sizes), _MOST)
                known[schema] = least_of_all, all(is_fixed for _, is_fixed in sizes)
            return known[schema]
        case RecordSchema():
            return 0, False
        case _:
            return 1, False
