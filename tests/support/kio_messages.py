"""Messages of Kafka's protocol in kio, a second implementation generated from Kafka's schemas."""

from __future__ import annotations

import dataclasses
import datetime
import io
import typing
import uuid
from random import Random
from typing import Any

from kio.index import UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from spark_kbatch.wire.codec import Structure
from tests.support.messages import CASES, REQUEST

_MILLISECOND = datetime.timedelta(milliseconds=1)
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_LETTERS = "ab-_.0\u00e9\u20ac\U0001f600"
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def kio_class(case: tuple[int, int, int]) -> Any:
    """Return kio's class of a message; None for Produce before 3, which it does not have."""
    key, version, side = case
    try:
        load = load_request_schema if side == REQUEST else load_response_schema
        return load(key, version)
    except UnknownEntity:
        return None


KIO_CASES = [case for case in CASES if kio_class(case) is not None]


def decoded(kind: Any, data: bytes) -> Any:
    """Decode a body with kio, which must use all bytes."""
    message, size = entity_reader(kind)(data, 0)
    assert size == len(data)
    return message


def encoded(message: Any) -> bytes:
    """Encode a body with kio."""
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def a_kio_message(kind: Any, random: Random) -> Any:
    """Return a random message, within what kio's types can hold."""
    values = {}
    for field in dataclasses.fields(kind):
        value = _value(field, random)
        if value is not dataclasses.MISSING:
            values[field.name] = value
    return kind(**values)


def _is_left_out(field: Any) -> bool:
    """Return True for the assignment of ConsumerGroupHeartbeat, which is always null here."""
    return field.name == "assignment" and "kafka_type" not in field.metadata


def _value(field: Any, random: Random) -> Any:
    options = typing.get_args(field.type) if typing.get_origin(field.type) is not tuple else ()
    if type(None) in options and (_is_left_out(field) or random.random() < 0.2):
        return None
    if "tag" in field.metadata and random.random() < 0.3:
        return dataclasses.MISSING  # its default
    kind = next((one for one in options if one is not type(None)), field.type)
    if typing.get_origin(kind) is tuple:
        element = typing.get_args(kind)[0]
        return tuple(_element(element, field, random) for _ in range(random.choice((0, 1, 1, 3))))
    return _element(kind, field, random)


def _element(kind: Any, field: Any, random: Random) -> Any:
    if dataclasses.is_dataclass(kind):
        return a_kio_message(kind, random)
    name = field.metadata["kafka_type"]
    if name in _BITS:
        half: int = 2 ** (_BITS[name] - 1)
        return random.choice((-half, -1, 0, 1, random.randrange(-half, half), half - 1))
    match name:
        case "string":
            return "".join(random.choices(_LETTERS, k=random.choice((0, 1, 5, 130))))
        case "bytes" | "records":
            return random.randbytes(random.choice((0, 1, 9, 130)))
        case "bool":
            return random.random() < 0.5
        case "uuid":
            return random.choice((None, uuid.UUID(int=random.randrange(1, 2**128))))
        case "error_code":
            return random.choice(list(ErrorCode))
        case "timedelta_i32":
            return random.choice((-1, 0, 5, 2**31 - 1)) * _MILLISECOND
        case "timedelta_i64":
            return random.choice((-1, 0, 5, 2**40)) * _MILLISECOND
        case "datetime_i64":
            return _EPOCH + random.choice((0, 5, 2**40)) * _MILLISECOND
    raise TypeError(f"no values for {name}")


def assert_equal(kios: Any, ours: Structure) -> None:
    """Compare a message of kio with one of ours, field by field, by name."""
    for field in dataclasses.fields(kios):
        value = getattr(kios, field.name)
        if value is None and (
            field.metadata.get("kafka_type") == "datetime_i64" or _is_left_out(field)
        ):
            value = -1
        _assert_equal(value, _named(ours, field.name), field.name)


def _named(ours: Structure, name: str) -> Any:
    """Return our field for a name of kio, which leaves units out."""
    names = {one.name for one in ours.FIELDS}
    candidates = (name, f"{name}_ms", f"{name}_timestamp_ms")
    return getattr(ours, next(one for one in candidates if one in names))


def _assert_equal(kios: Any, ours: Any, name: str) -> None:
    if dataclasses.is_dataclass(kios):
        if ours is None:
            assert kios == type(kios)(), name  # a tagged structure with its defaults is left out
        else:
            assert_equal(kios, ours)
    elif isinstance(kios, tuple):
        assert len(kios) == len(ours), name
        for one, other in zip(kios, ours, strict=True):
            _assert_equal(one, other, name)
    else:
        assert _plain(kios) == _plain(ours), name


def _plain(value: Any) -> Any:
    """Return a value that both have in common."""
    match value:
        case datetime.timedelta():
            return value // _MILLISECOND
        case datetime.datetime():
            return (value - _EPOCH) // _MILLISECOND
        case memoryview():
            return bytes(value)
    return value
