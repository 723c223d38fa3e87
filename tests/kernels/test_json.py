"""The kernel of JSON does as plain Python, where numpy checks bounds, what it does when it is compiled; damaged too."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kbatch.kernels import jit
from spark_kbatch.kernels import json as kernels
from spark_kbatch.values.decoded import DecodedValues
from spark_kbatch.values.json_decoder import JsonDecoder

INNER = pa.struct(
    [
        ("flag", pa.bool_()),
        ("small", pa.int8()),
        ("day", pa.date32()),
        ("bytes", pa.binary()),
        ("sum", pa.decimal128(38, 3)),
        ("single", pa.float32()),
    ]
)
KIND = pa.struct(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("number", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("inner", INNER),
        ("items", pa.list_(INNER)),
        ("props", pa.map_(pa.string(), pa.list_(pa.int32()))),
    ]
)
PARTS = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"0", b"9", b".", b"e", b"-", b"null", b"\\u", b"d800", b"\xff", b"\xc3\xa9", b"\0", b" ", b"Z", b"=", b'"id":1,']  # fmt: skip


def a_row(drawn: random.Random) -> bytes:
    """A row of KIND, some fields in another order or missing, or with others between."""
    inner = [
        {
            "flag": drawn.choice([True, False, None]),
            "small": drawn.randint(-128, 127),
            "day": f"{drawn.randint(1, 9999):04}-{drawn.randint(1, 12):02}-{drawn.randint(1, 28):02}",
            "bytes": drawn.choice(["", "AA==", "/+8=", "aGVsbG8="]),
            "sum": drawn.choice([drawn.randint(-(10**9), 10**9), "12.345", "1e20"]),
            "single": drawn.uniform(-1e10, 1e10),
        }
        for _ in range(drawn.randint(1, 4))
    ]
    fields: dict[str, Any] = {
        "id": drawn.randint(-(2**63), 2**63 - 1),
        "text": drawn.choice(["é\U0001f600\n", "", "plain", {"a": [1, None]}, 1.5, 'quo"te\\']),
        "number": drawn.choice([drawn.random(), drawn.randint(0, 10**6), "NaN", 1e300, -0.0]),
        "at": f"2024-01-31T10:00:{drawn.randint(0, 59):02}.123{drawn.choice(['Z', '+02:00', '-0730'])}",
        "local": "2024-01-31 10:00",
        "inner": inner[0],
        "items": inner,
        "props": {f"k{n}é": [n, None] for n in range(drawn.randint(0, 4))},
        "other": [{"deep": [1, "2", {}]}],
    }
    names = [name for name in fields if drawn.random() < 0.9]
    if drawn.random() < 0.3:
        drawn.shuffle(names)
    row = {name: fields[name] for name in names}
    spaced = drawn.choice([(",", ":"), (", ", ": ")])
    return json.dumps(row, ensure_ascii=drawn.random() < 0.5, separators=spaced).encode()


def damaged(row: bytes, drawn: random.Random) -> bytes:
    """A row with some bytes cut out, or others put in."""
    for _ in range(drawn.randint(1, 3)):
        at = drawn.randint(0, len(row))
        row = row[:at] + drawn.choice([b"", *PARTS]) + row[at + drawn.choice([0, 0, 1, 1, 7]) :]
    return row


def told(found: DecodedValues) -> tuple[list[Any], list[str]]:
    found.values.validate(full=True)
    return [str(one) for one in found.values.to_pylist()], [
        f"{one.row} {one}" for one in found.errors
    ]


def by_seed(seed: int, count: int) -> list[bytes]:
    drawn = random.Random(seed)
    rows = [a_row(drawn) for _ in range(count)]
    return [damaged(row, drawn) if drawn.random() < 0.5 else row for row in rows]


@pytest.mark.parametrize("lenient", [(), ("zone", "digits")])
def test_plain_python_decodes_what_compiled_code_does(
    monkeypatch: pytest.MonkeyPatch, lenient: tuple[str, ...]
) -> None:
    rows = pa.array(by_seed(1, 150), pa.binary())
    compiled = told(JsonDecoder(KIND, lenient=lenient).decode(rows))
    plain = jit.PLAIN[kernels.__name__]["decode_rows"]

    def in_python(*arguments: Any) -> Any:
        with np.errstate(over="ignore"):
            return plain(*arguments)

    monkeypatch.setattr(kernels, "decode_rows", in_python)
    assert told(JsonDecoder(KIND, lenient=lenient).decode(rows)) == compiled
    assert 20 < len(compiled[1]) < 100


@pytest.mark.parametrize("lenient", [(), ("zone", "digits")])
def test_a_row_alone_is_the_row_among_others(lenient: tuple[str, ...]) -> None:
    rows = by_seed(2, 1500)
    decoder = JsonDecoder(KIND, lenient=lenient)
    values, errors = told(decoder.decode(pa.array(rows, pa.binary())))
    texts = dict(one.split(" ", 1) for one in errors)
    for number, row in enumerate(rows):
        (value,), alone = told(decoder.decode(pa.array([row], pa.binary())))
        assert value == values[number]
        assert alone == ([f"0 {texts[str(number)]}"] if str(number) in texts else [])
