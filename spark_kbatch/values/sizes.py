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
    return _fixed_size(schema, {}, 0)


def _fixed_size(schema: Schema, known: dict[RecordSchema, int | None], depth: int) -> int | None:
    match schema:
        case PrimitiveSchema():
            return _FIXED.get(schema.type)
        case FixedSchema():
            return schema.size
        case RecordSchema() if depth < NESTING_MAX:
            if schema not in known:
                known[schema] = None  # for a record that lies in itself, which has no fixed size
                sizes = [_fixed_size(one.type, known, depth + 1) for one in schema.fields]
                if None not in sizes:
                    known[schema] = min(sum(filter(None, sizes)), _MOST)
            return known[schema]
        case _:
            return None


def least_size(schema: Schema) -> int:
    """Return a number of bytes that each value of a type takes at least."""
    return _least_size(schema, {}, 0)


def _least_size(schema: Schema, known: dict[RecordSchema, int], depth: int) -> int:
    match schema:
        case PrimitiveSchema():
            return _FIXED.get(schema.type, 1)
        case FixedSchema():
            return schema.size
        case UnionSchema():
            return 1 + min((_least_size(one, known, depth) for one in schema.branches), default=0)
        case RecordSchema() if depth < NESTING_MAX:
            if schema not in known:
                known[schema] = 0  # for a record that lies in itself; no value is as small
                sizes = (_least_size(one.type, known, depth + 1) for one in schema.fields)
                known[schema] = min(sum(sizes), _MOST)
            return known[schema]
        case RecordSchema():
            return 0
        case _:
            return 1
