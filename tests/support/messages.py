"""Messages of Kafka's protocol: random ones of each kind and version, built with kafka-python."""

from __future__ import annotations

import uuid
from random import Random
from typing import Any

from spark_kbatch.wire import protocol  # imports kafka-python without its warnings, so comes first
from spark_kbatch.wire.protocol import SUPPORTED, ApiKey, decode_request, decode_response

from kafka.protocol.consumer import FetchRequest, FetchResponse  # isort: skip
from kafka.protocol.producer import ProduceRequest, ProduceResponse  # isort: skip

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


def library_class(api_key: int, side: int) -> Any:
    """Return kafka-python's class, for Produce and Fetch too."""
    if api_key == ApiKey.PRODUCE:
        return (ProduceRequest, ProduceResponse)[side]
    if api_key == ApiKey.FETCH:
        return (FetchRequest, FetchResponse)[side]
    return protocol._MESSAGES[api_key][side]


_INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_LETTERS = "ab-_.0\u00e9\u20ac\U0001f600"


def message(api_key: int, version: int, side: int, random: Random) -> Any:
    """Return a random kafka-python message, with all fields of the version."""
    kind = library_class(api_key, side)
    return kind(version=version, **_structure(kind.fields.values(), version, random))


def a_frame(case: tuple[int, int, int], random: Random) -> bytes:
    """Return a random message with its header, without its size, as the library encodes both."""
    key, version, side = case
    kind = library_class(key, side)
    body, with_header = message(key, version, side, random), kind(version=version)
    with_header.with_header(**{"correlation_id": 5, "client_id": "c"} if side == REQUEST else {})
    head = with_header.encode_header(flexible=kind.flexible_version_q(version))
    return bytes(head + body.encode(version=version))


def decode(case: tuple[int, int, int], frame: bytes) -> Any:
    """Decode a frame with our decoder."""
    key, version, side = case
    data = memoryview(frame)
    return decode_request(data) if side == REQUEST else decode_response(key, version, data)


def _structure(fields: Any, version: int, random: Random) -> dict[str, Any]:
    return {one.name: _value(one, version, random) for one in fields if one.for_version_q(version)}


def _value(field: Any, version: int, random: Random) -> Any:
    if field.nullable_for_version_q(version) and random.random() < 0.2:
        return None
    if field.is_array():
        return [_element(field, version, random) for _ in range(random.choice((0, 1, 1, 3)))]
    return _element(field, version, random)


def _element(field: Any, version: int, random: Random) -> Any:
    if field.is_struct() or field.is_struct_array():
        values = _structure(field.fields.values(), version, random)
        return field.data_class(version=version, **values)
    return _simple(field.type_str.removeprefix("[]"), random)


def _simple(kind: str, random: Random) -> Any:
    if kind in _INTEGERS:
        half: int = 2 ** (_INTEGERS[kind] - 1)
        return random.choice((-half, -1, 0, 1, random.randrange(-half, half), half - 1))
    if kind == "string":
        size = random.choice((0, 1, 5, 130))  # 130 needs two bytes of a varint
        return "".join(random.choices(_LETTERS, k=size))
    if kind in ("bytes", "records"):
        return random.randbytes(random.choice((0, 1, 9, 130)))
    if kind == "bitfield":
        return random.choice((None, set(random.sample(range(31), random.randrange(4)))))
    return {
        "bool": random.random() < 0.5,
        "uint16": random.randrange(2**16),
        "float64": random.uniform(-1e9, 1e9),
        "uuid": random.choice((None, uuid.UUID(int=random.randrange(1, 2**128)))),
    }[kind]
