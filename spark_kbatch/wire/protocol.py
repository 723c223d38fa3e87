"""Requests and responses <-> bytes, for both sides of a connection.

    from spark_kbatch.wire.protocol import ListOffsetsRequest

A server decodes requests and encodes responses, a client the reverse; `framing` frames both. The classes of
all messages are attributes of this module, made from the entries in `messages` when they are first used.

Source: Kafka clients/.../common/requests/RequestHeader.java, ApiVersionsResponse.java; KIP-511;
generator/.../message/MessageDataGenerator.java.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from spark_kbatch.errors import UnsupportedVersionError
from spark_kbatch.record.checksums import Buffer
from spark_kbatch.wire import codec
from spark_kbatch.wire.codec import INT16, Codec, Reader, Structure, Versions, Writer
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.messages import ApiKey

__all__ = [
    "OF_CLIENTS",
    "SUPPORTED",
    "ApiKey",
    "Request",
    "Response",
    "Versions",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "request_class",
    "response_class",
]

SUPPORTED: dict[int, Versions] = {
    key: Versions.parse(key.text.split(maxsplit=1)[0]) for key in ApiKey
}
BY_TOPIC_ID_SINCE = 13  # of Produce and Fetch
# What our own client sends: it knows topics by their names.
OF_CLIENTS: Mapping[int, Versions] = SUPPORTED | {
    key: SUPPORTED[key]._replace(last=BY_TOPIC_ID_SINCE - 1)
    for key in (ApiKey.PRODUCE, ApiKey.FETCH)
}
PRODUCE_MIN_VERSION = 3  # the lowest version that is accepted
PRODUCE_MAX_VERSION_OF_TRANSACTIONS = 11

# Limit on the elements of all arrays of a message: it bounds the memory to about 20 MB, the time to a second.
MAX_REQUEST_ELEMENTS = 2**16
# A cluster's metadata has several for each partition.
MAX_RESPONSE_ELEMENTS = 2**21


class Request(NamedTuple):
    """A decoded request."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Any


class Response(NamedTuple):
    """A decoded response; its kind and version are those of the request."""

    correlation_id: int
    body: Any


def decode_request(frame: memoryview, max_elements: int = MAX_REQUEST_ELEMENTS) -> Request:
    """Decode a request from a frame.

    Args:
        frame: without its size. The records of a Produce refer to it, everything else is copied. Bytes
            after the body are ignored, as in Kafka.
        max_elements: of all its arrays together; a request with more is refused.

    Raises:
        UnsupportedVersionError: its kind or version is not supported. The error has the correlation id,
            because ApiVersions is answered even then, in version 0.
        ProtocolError: the bytes are not a request, or one of its strings is longer than Kafka accepts.
    """
    reader = Reader(frame, "request", max_elements=max_elements, max_string=codec.STRING_MAX)
    api_key, version, correlation_id = reader.unpack(_REQUEST_HEADER, "header")
    _ensure_supported(api_key, version, correlation_id)
    kind = _kind(api_key, version, _REQUEST)
    reader.message = kind.name
    client_id = _CLIENT_ID.decode(reader)
    if kind.is_flexible:
        reader.tagged_fields("header", {}, None)
    return Request(api_key, version, correlation_id, client_id, kind.body.decode(reader))


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, body: Any
) -> list[Buffer]:
    """Encode a request, header and body, as the pieces of a frame.

    Returns:
        the frame without its size, in pieces; the records of a Produce are separate pieces.

    Raises:
        ValueError: a value does not fit into its field.
    """
    _ensure_supported(api_key, version, correlation_id)
    kind = _kind(api_key, version, _REQUEST)
    writer = Writer()
    writer += _REQUEST_HEADER.pack(api_key, version, correlation_id)
    _CLIENT_ID.encode(writer, client_id)
    if kind.is_flexible:
        writer.append(0)
    return _with_body(writer, kind, body)


def decode_response(api_key: int, version: int, frame: memoryview) -> Response:
    """Decode the response to a request of this kind and version.

    Args:
        api_key: the kind.
        version: the request's. A server that does not know this version of ApiVersions answers in
            version 0, with the error UNSUPPORTED_VERSION.
        frame: without its size. The records of a Fetch refer to it, everything else is copied.

    Raises:
        ProtocolError: the bytes are not such a response.
    """
    _ensure_supported(api_key, version)
    kind = _kind(api_key, version, _RESPONSE)
    reader = Reader(frame, kind.name, max_elements=MAX_RESPONSE_ELEMENTS)
    (correlation_id,) = reader.unpack(_RESPONSE_HEADER, "correlation_id")
    if api_key == ApiKey.API_VERSIONS:
        start = reader.position
        if reader.unpack(INT16, "error_code")[0] == ErrorCode.UNSUPPORTED_VERSION:
            kind = _kind(api_key, 0, _RESPONSE)
        reader.position = start
    elif kind.is_flexible:
        reader.tagged_fields("header", {}, None)
    return Response(correlation_id, kind.body.decode(reader))


def encode_response(api_key: int, version: int, correlation_id: int, body: Any) -> list[Buffer]:
    """Encode a response, header and body, as the pieces of a frame.

    Returns:
        the frame without its size, in pieces; the records of a Fetch are separate pieces.

    Raises:
        ValueError: a value does not fit into its field.
    """
    _ensure_supported(api_key, version, correlation_id)
    kind = _kind(api_key, version, _RESPONSE)
    writer = Writer()
    writer += _RESPONSE_HEADER.pack(correlation_id)
    if kind.is_flexible and api_key != ApiKey.API_VERSIONS:
        # No tagged fields. A client of ApiVersions does not know the server's versions.
        writer.append(0)
    return _with_body(writer, kind, body)


def request_class(api_key: int) -> type[Structure]:
    """Return the class of a request."""
    return _class(ApiKey(api_key), _REQUEST)


def response_class(api_key: int) -> type[Structure]:
    """Return the class of a response."""
    return _class(ApiKey(api_key), _RESPONSE)


_REQUEST, _RESPONSE = "Request", "Response"
_REQUEST_HEADER = struct.Struct(">hhi")  # api key, version, correlation id
_RESPONSE_HEADER = struct.Struct(">i")
_CLIENT_ID = codec.string("client_id", flexible=False, nullable=True)
_NAMES = {
    key.name.title().replace("_", "") + side: (key, side)
    for key in ApiKey
    for side in (_REQUEST, _RESPONSE)
}


def _attribute(name: str) -> type[Structure]:
    """Return the class of a message, such as `ListOffsetsRequest`."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _class(*_NAMES[name])


__getattr__: Any = _attribute  # by which type checkers take each of the classes for any


# Only added to, so that all threads get one.
_classes: dict[tuple[ApiKey, str], type[Structure]] = {}


def _class(key: ApiKey, side: str) -> type[Structure]:
    found = _classes.get((key, side))
    if found is None:
        _, request, response = re.split(r"\n +(?:request|response)\n", key.text)
        name = key.name.title().replace("_", "") + side
        made = codec.parse(name, request if side == _REQUEST else response)
        found = _classes.setdefault((key, side), made)
    return found


def _ensure_supported(api_key: int, version: int, correlation_id: int = -1) -> None:
    versions = SUPPORTED.get(api_key)
    if versions is None or version not in versions:
        name = "" if versions is None else ApiKey(api_key).name
        supported = None if versions is None else (versions.first, versions.last)
        raise UnsupportedVersionError(api_key, name, version, supported, correlation_id)


class _Kind(NamedTuple):
    """A request or response type in one version: its name, its flexibility, and its body's codec."""

    name: str
    is_flexible: bool
    body: Codec


@functools.cache
def _kind(api_key: int, version: int, side: str) -> _Kind:
    key = ApiKey(api_key)
    flexible = re.match(r"\S+ flexible (\S+)", key.text)
    is_flexible = flexible is not None and version in Versions.parse(flexible[1])
    body = codec.structure(_class(key, side), version, flexible=is_flexible)
    return _Kind(f"{key.name} {side.lower()}, version {version}", is_flexible, body)


def _with_body(writer: Writer, kind: _Kind, body: Any) -> list[Buffer]:
    try:
        kind.body.encode(writer, body)
    except struct.error as error:
        raise ValueError(f"a {kind.name} has a value that does not fit: {error}") from error
    return writer.pieces()
