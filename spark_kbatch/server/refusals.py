"""Answers that consist of an error: to a request whose handler failed, or that a test refuses.

They follow from the fields of both messages. A response has one error for the whole request, or one for each
thing that the request's first array names: a group, a topic, each of a topic's partitions. These are named
in the response, too, and everything else has its default.

Source: Kafka clients/.../common/requests/AbstractRequest.java getErrorResponse.
"""

from __future__ import annotations

from typing import Any

from spark_kbatch.server.requests import Received
from spark_kbatch.wire.codec import Field, Structure
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey, response_class

# Where the field's default would say more than that there is an error.
_UNKNOWN = {
    "aborted_transactions": None,
    "base_offset": -1,
    "committed_offset": -1,
    "high_watermark": -1,
    "node_id": -1,
    "port": -1,
}


def refusal(received: Received, error: ErrorCode) -> Any | None:
    """Return a response to a request with only this error; None for a Produce with acks=0."""
    if received.api_key == ApiKey.PRODUCE and received.body.acks == 0:
        return None
    kind, version = response_class(received.api_key), received.version
    answer: Any = _refused(kind, received.body, version, error)
    if received.api_key == ApiKey.METADATA:
        answer.topics = _refused_things(kind, received.body, version, error)["topics"]
        for topic in answer.topics:
            topic.name = topic.name or ""  # of one that was asked for by its id
    return answer


def _refused(kind: type[Structure], asked: Any, version: int, error: ErrorCode) -> Structure:
    """Return the answer, or a structure of it, to a request or to one of the things that it names."""
    fields = _fields(kind, version)
    values = {one.name: _UNKNOWN[one.name] for one in fields if one.name in _UNKNOWN}
    errors = {one.name: error for one in fields if _is_error(one)}
    return kind(**values, **(errors or _refused_things(kind, asked, version, error)))


def _refused_things(
    kind: type[Structure], asked: Any, version: int, error: ErrorCode
) -> dict[str, Any]:
    """Return the array of errors for each thing that a request, or a structure of it, names, as a field."""
    things = next(one.name for one in _fields(type(asked), version) if one.is_array)
    field = next(one for one in _fields(kind, version) if _has_errors(one, version))
    assert field.structure is not None
    answers = []
    for one in getattr(asked, things) or ():
        answer = _refused(field.structure, one, version, error)
        _name(answer, one, version)
        answers.append(answer)
    return {field.name: answers}


def _name(answer: Structure, asked: Any, version: int) -> None:
    """Copy what an answer's structure is known by from the request."""
    first, *others = (
        one.name
        for one in _fields(type(answer), version)
        if not (one.is_array or one.default or "error_" in one.name)
    )
    if not isinstance(asked, Structure):
        setattr(answer, first, asked)
        return
    setattr(answer, first, getattr(asked, first, getattr(asked, asked.FIELDS[0].name)))
    for name in others:
        if hasattr(asked, name):
            setattr(answer, name, getattr(asked, name))


def _fields(kind: type[Structure], version: int) -> list[Field]:
    return [one for one in kind.FIELDS if version in one.versions and one.tag is None]


def _is_error(field: Field) -> bool:
    return field.name.endswith("error_code")


def _has_errors(field: Field, version: int) -> bool:
    return field.structure is not None and any(
        _is_error(one) or _has_errors(one, version) for one in _fields(field.structure, version)
    )
