"""Damaged Avro values are errors of their rows, or read as fastavro reads them; their neighbours are right.

What they make is bounded too: the number of items by the size of the values, and the memory by both.
"""

from __future__ import annotations

import json
import random

import pyarrow as pa

from spark_kbatch.kernels.slots import MEMORY_FREE, MEMORY_PER_BYTE
from spark_kbatch.values.avro_decoder import decode
from spark_kbatch.values.avro_schema import parse
from tests.support import avro
from tests.support.fuzz_rounds import ROUNDS, for_each_round, mutated


def test_mutated_values_are_read_as_fastavro_reads_them_or_refused() -> None:
    outcomes = {"read": 0, "refused": 0}

    def one(rng: random.Random) -> None:
        schemas = avro.Schemas(rng, times=False)  # Python has no dates after the year 9999
        writer = schemas.record(3)
        reader = avro.evolved(rng, writer, schemas, steps=rng.choice((0, 1, 3)))
        parsed = {1: parse(json.dumps(writer)), 2: parse(json.dumps(reader))}
        good, hurt = (avro.encode(parsed[1], avro.a_value(rng, parsed[1])) for _ in range(2))
        damaged = mutated(rng, hurt)
        rows = [avro.framed(1, data) for data in (good, damaged, good)]

        found = decode(pa.array(rows), parsed[2], parsed)
        alone = decode(pa.array(rows[:1]), parsed[2], parsed)

        found.values.validate(full=True)
        assert found.values[0].as_py() == found.values[2].as_py() == alone.values[0].as_py()
        if reader == writer:
            size, items = sum(map(len, rows)), items_count(found.values)
            places = len(rows) + items + 1
            assert found.values.nbytes <= places * width(found.values.type) + size, damaged.hex()
            free = len(rows) * (MEMORY_FREE + width(found.values.type))
            assert found.values.nbytes <= 4 * MEMORY_PER_BYTE * size + free, damaged.hex()
        if any(error.row == 1 for error in found.errors):
            outcomes["refused"] += 1
            assert found.values[1].as_py() is None
        else:
            outcomes["read"] += 1
            try:
                read = avro.decoded_by_fastavro(damaged, writer, reader)
            except UnicodeDecodeError:
                return  # a string that the reader takes as bytes; fastavro makes text of it first
            value = avro.in_column(read, parsed[2])
            kind = found.values.type
            assert avro.deduplicated(found.values[1].as_py(), kind) == value, damaged.hex()

    for_each_round("avro", one)
    assert min(outcomes.values()) > ROUNDS // 50, outcomes


def items_count(array: pa.Array) -> int:
    """Return the number of items of all lists and maps, in each other too."""
    kind = array.type
    if pa.types.is_struct(kind):
        return sum(items_count(array.field(index)) for index in range(kind.num_fields))
    if pa.types.is_map(kind):
        return len(array.keys) + items_count(array.items)
    return len(array.values) + items_count(array.values) if pa.types.is_list(kind) else 0


def width(kind: pa.DataType) -> int:
    """Return the bytes that a value takes in columns, with one item in each list, without the bytes of texts."""
    if pa.types.is_struct(kind):
        return 1 + sum(width(one.type) for one in kind)
    if pa.types.is_map(kind):
        return 5 + width(kind.key_type) + width(kind.item_type)
    if pa.types.is_list(kind):
        return 5 + width(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 5 + len("CC")  # a symbol of an enum, which has one byte in Avro
    return 1 if pa.types.is_null(kind) else 1 + (kind.bit_width + 7) // 8
