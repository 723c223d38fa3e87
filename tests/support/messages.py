"""Messages of Kafka's protocol: random ones of each kind and version."""

from __future__ import annotations

import uuid
from random import Random
from typing import Any

from spark_kbatch.wire.codec import Field, Structure
from spark_kbatch.wire.protocol import (
    SUPPORTED,
    ApiKey,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    request_class,
    response_class,
)

REQUEST, RESPONSE = range(2)
SIDES = ("request", "response")

# Every kind, version and side that is supported: api key, version, side.
CASES = [
    (key, version, side)
    for key, versions in SUPPORTED.items()
    for version in range(versions.first, versions.last + 1)
    for side in (REQUEST, RESPONSE)
]


def case_id(case: tuple[int, int, int]) -> str:
    key, version, side = case
    return f"{ApiKey(key).name}-{version}-{SIDES[side]}"


def message_class(api_key: int, side: int) -> type[Structure]:
    return request_class(api_key) if side == REQUEST else response_class(api_key)


_INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_LETTERS = "ab-_.0\u00e9\u20ac\U0001f600"


def message(api_key: int, version: int, side: int, random: Random) -> Any:
    """Return a random message, with all fields of the version."""
    return _structure(message_class(api_key, side), version, random)


def a_frame(case: tuple[int, int, int], random: Random) -> bytes:
    """Return a random message with its header, without its size."""
    return encode(case, message(*case, random))


def encode(case: tuple[int, int, int], body: Any) -> bytes:
    key, version, side = case
    if side == REQUEST:
        return b"".join(encode_request(key, version, 7, "a client", body))
    return b"".join(encode_response(key, version, 7, body))


def decode(case: tuple[int, int, int], frame: bytes) -> Any:
    key, version, side = case
    data = memoryview(frame)
    return decode_request(data) if side == REQUEST else decode_response(key, version, data)


def _structure(kind: type[Structure], version: int, random: Random) -> Structure:
    fields = [one for one in kind.FIELDS if version in one.versions]
    return kind(**{one.name: _value(one, version, random) for one in fields})


def _value(field: Field, version: int, random: Random) -> Any:
    if field.nullable is not None and version in field.nullable and random.random() < 0.2:
        return None
    if field.is_array:
        return [_element(field, version, random) for _ in range(random.choice((0, 1, 1, 3)))]
    return _element(field, version, random)


def _element(field: Field, version: int, random: Random) -> Any:
    if field.structure is not None:
        return _structure(field.structure, version, random)
    return _simple(field.kind, random)


def _simple(kind: str, random: Random) -> Any:
    if kind in _INTEGERS:
        half: int = 2 ** (_INTEGERS[kind] - 1)
        return random.choice((-half, -1, 0, 1, random.randrange(-half, half), half - 1))
    if kind == "string":
        size = random.choice((0, 1, 5, 130))  # 130 needs two bytes of a varint
        return "".join(random.choices(_LETTERS, k=size))
    if kind in ("bytes", "records"):
        return random.randbytes(random.choice((0, 1, 9, 130)))
    if kind == "uuid":
        return random.choice((None, uuid.UUID(int=random.randrange(1, 2**128))))
    return {"bool": random.random() < 0.5}[kind]
