"""How many bytes a value of an Avro type takes: always, or at least."""

from __future__ import annotations

from spark_kbatch.values.avro_schema import (
    FixedSchema,
    PrimitiveSchema,
    RecordSchema,
    Schema,
    UnionSchema,
)

_FIXED = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def fixed_size(schema: Schema) -> int | None:
    """Return the bytes that each value of a type takes, None if that depends on the value."""
    return _fixed_size(schema, ())


def _fixed_size(schema: Schema, inside: tuple[RecordSchema, ...]) -> int | None:
    match schema:
        case PrimitiveSchema():
            return _FIXED.get(schema.type)
        case FixedSchema():
            return schema.size
        case RecordSchema() if schema not in inside:
            total = 0
            for field in schema.fields:
                size = _fixed_size(field.type, (*inside, schema))
                if size is None:
                    return None
                total += size
            return total
        case _:
            return None


def least_size(schema: Schema) -> int:
    """Return the fewest bytes that a value of a type can take."""
    return _least_size(schema, ())


def _least_size(schema: Schema, inside: tuple[RecordSchema, ...]) -> int:
    match schema:
        case PrimitiveSchema():
            return _FIXED.get(schema.type, 1)
        case FixedSchema():
            return schema.size
        case UnionSchema():
            return 1 + min((_least_size(one, inside) for one in schema.branches), default=0)
        case RecordSchema():
            if schema in inside:
                return 0  # no value is that small, but this is enough to bound a count
            return sum(_least_size(one.type, (*inside, schema)) for one in schema.fields)
        case _:
            return 1
