"""Random values of random schemas decode as fastavro decodes them, or both refuse."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch.values.avro_decoder import decode
from spark_kbatch.values.avro_schema import parse
from tests.support import avro, draws
from tests.support.avro import Schemas, decoded_by_fastavro, framed, in_column

# Each takes a few milliseconds: `make test` runs 500, `make soak` 4,000.
EXAMPLES = 500 if settings.default.max_examples < 100 else draws.many(4000)
randoms = st.integers(0, 2**48).map(random.Random)
WRITER, READER = 3, 70_000  # schema ids


@settings(max_examples=EXAMPLES)
@given(randoms)
def test_what_a_schema_wrote_is_decoded_with_it_as_fastavro_does(rng: random.Random) -> None:
    schema = Schemas(rng).any(3)
    parsed = parse(json.dumps(schema))
    data = [avro.encode(parsed, avro.a_value(rng, parsed)) for _ in range(rng.randrange(4))]

    found = decode(pa.array(data, pa.binary()), parsed, framing="none")

    found.values.validate(full=True)
    assert found.errors == ()
    assert found.values.to_pylist() == [in_column(decoded_by_fastavro(one, schema, schema), parsed) for one in data]  # fmt: skip


@pytest.mark.more_in_soak
def test_readers_that_evolved_decode_as_fastavro_does_or_both_refuse() -> None:
    outcomes = Counter[str]()

    @settings(max_examples=EXAMPLES)
    @given(randoms)
    def one(rng: random.Random) -> None:
        schemas = Schemas(rng)
        writer = schemas.record(3)
        reader = avro.evolved(rng, writer, schemas, steps=rng.randrange(1, 6))
        parsed = {WRITER: parse(json.dumps(writer)), READER: parse(json.dumps(reader))}
        rows: list[bytes | None] = []
        expected: list[Any] = []
        for _ in range(rng.randrange(1, 6)):
            schema_id = rng.choice((WRITER, WRITER, READER))
            data = avro.encode(parsed[schema_id], avro.a_value(rng, parsed[schema_id]))
            rows += [framed(schema_id, data), rng.choice((None, framed(schema_id, data + b"\0")))]
            expected += [as_fastavro(data, writer if schema_id == WRITER else reader, reader, parsed[READER]), None]  # fmt: skip
            if schema_id == WRITER:
                outcomes["refused" if expected[-2] is None else "decoded"] += 1

        found = decode(pa.array(rows, pa.binary()), parsed[READER], parsed)

        found.values.validate(full=True)
        assert found.values.to_pylist() == expected, (writer, reader, found.errors)
        bad = {error.row for error in found.errors}
        assert bad == {
            row for row, value in enumerate(expected) if value is None and rows[row] is not None
        }

    one()
    assert outcomes["decoded"] >= 0.8 * outcomes.total(), outcomes
    assert outcomes["refused"] > 0, outcomes


def as_fastavro(data: bytes, writer: Any, reader: Any, parsed: Any) -> Any:
    """The value, None if fastavro refuses it."""
    try:
        value = decoded_by_fastavro(data, writer, reader)
    except Exception:  # noqa: BLE001  of any kind
        return None
    return in_column(value, parsed)
