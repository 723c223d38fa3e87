"""Answers that consist of an error: to a request whose handler failed, or that a test refuses.

They follow from the fields of both messages. A response has one error for the whole request, or one for each
thing that the request's first array names: a group, a topic, each of a topic's partitions. These are named
in the response, too, and everything else has its default.

Source: Kafka clients/.../common/requests/AbstractRequest.java getErrorResponse.
"""

from __future__ import annotations

import functools
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
        # Versions with an error for the whole request have one for each topic, too.
        answer.topics = (
            answer.topics or _refused_things(kind, received.body, version, error)["topics"]
        )
        for topic in answer.topics:
            topic.name = topic.name or ""  # of one that was asked for by its id
    return answer


def _refused(kind: Any, asked: Any, version: int, error: ErrorCode) -> Any:
    """Return the answer, or a structure of it, to a request or to one of the things that it names."""
    values, errors, _ = _plan(kind, version)
    if errors:
        return kind(**values, **dict.fromkeys(errors, error))
    return kind(**values, **_refused_things(kind, asked, version, error))


def _refused_things(kind: Any, asked: Any, version: int, error: ErrorCode) -> dict[str, Any]:
    """Return the array of errors for each thing that a request, or a structure of it, names, as a field."""
    things = next(one.name for one in _fields(asked.__class__, version) if one.is_array)
    _, _, field = _plan(kind, version)
    assert field is not None
    structure: Any = field.structure
    answers = []
    for one in getattr(asked, things) or ():
        answer = _refused(structure, one, version, error)
        first, source, others = _named(structure, one.__class__, version)
        setattr(answer, first, one if source is None else getattr(one, source))
        for name in others:
            setattr(answer, name, getattr(one, name))
        answers.append(answer)
    return {field.name: answers}


# What follows from classes and versions alone is kept: one request may name 65,000 things. (Classes are Any here:
# mypy takes a class for as hard to hash as its objects.)


@functools.cache
def _plan(kind: Any, version: int) -> tuple[dict[str, Any], tuple[str, ...], Field | None]:
    """Return what an answer's structure has besides the error, its fields of errors, and that of things with errors."""
    fields = _fields(kind, version)
    values = {one.name: _UNKNOWN[one.name] for one in fields if one.name in _UNKNOWN}
    errors = tuple(one.name for one in fields if _is_error(one))
    return values, errors, next((one for one in fields if _has_errors(one, version)), None)


@functools.cache
def _named(kind: Any, asked: Any, version: int) -> tuple[str, str | None, tuple[str, ...]]:
    """Return what an answer's structure is known by, where in the request that is, and what else is copied.

    The second is None if the request names no structure but a value.
    """
    first, *others = (
        one.name
        for one in _fields(kind, version)
        if not (one.is_array or one.default or "error_" in one.name)
    )
    if not issubclass(asked, Structure):
        return first, None, ()
    source = first if first in asked.DEFAULTS else asked.FIELDS[0].name
    return first, source, tuple(name for name in others if name in asked.DEFAULTS)


@functools.cache
def _fields(kind: Any, version: int) -> tuple[Field, ...]:
    return tuple(one for one in kind.FIELDS if version in one.versions and one.tag is None)


def _is_error(field: Field) -> bool:
    return field.name.endswith("error_code")


def _has_errors(field: Field, version: int) -> bool:
    structure: Any = field.structure
    return structure is not None and any(
        _is_error(one) or _has_errors(one, version) for one in _fields(structure, version)
    )
