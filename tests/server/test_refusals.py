"""Every kind of request can be answered with an error, in every version."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spark_kbatch.server.refusals import _ANSWERS, refusal
from spark_kbatch.server.requests import Received
from spark_kbatch.server.unwritten import Unwritten
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from tests.support import builders, messages

ERROR = ErrorCode.NOT_COORDINATOR
SEEDS = 5
FETCH_HAS_ONE_ERROR_SINCE = 7
# What only clients of real clusters send, such as transactions, is not among them.
ANSWERED = {ApiKey.PRODUCE, ApiKey.FETCH, *_ANSWERS}
CASES = [one for one in messages.CASES if one[2] == messages.REQUEST and one[0] in ANSWERED]


def test_every_kind_that_a_server_answers_can_be_refused(tmp_path: Path) -> None:
    with builders.a_cluster(tmp_path) as cluster, cluster.serve() as server:
        assert {*server._dispatch.supported()} == ANSWERED


def errors_in(value: Any) -> Iterator[int]:
    """Yield every error code in an answer, at any depth."""
    if dataclasses.is_dataclass(value):
        yield from errors_in(
            {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        )
    elif isinstance(value, dict):
        for key, one in value.items():
            if key == "error_code":
                yield one
            else:
                yield from errors_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from errors_in(one)


@pytest.mark.parametrize("case", CASES, ids=messages.case_id)
def test_a_refusal_has_only_the_given_error(case: tuple[int, int, int]) -> None:
    key, version, _ = case
    said = 0
    for seed in range(SEEDS):
        frame = memoryview(messages.a_frame(case, Random(seed)))
        body = protocol.decode_request(frame).body
        received = Received(key, version, "client", "host", ("host", 1), Unwritten(), body)

        answer = refusal(received, ERROR)

        if answer is None:
            assert key == ApiKey.PRODUCE
            assert body.acks == 0
            continue
        pieces = protocol.encode_response(key, version, 7, answer)
        decoded = protocol.decode_response(key, version, memoryview(b"".join(pieces)))
        assert decoded.correlation_id == 7
        found = decoded.body
        errors = set(errors_in(found if dataclasses.is_dataclass(found) else found.to_dict()))
        if key == ApiKey.FETCH and version < FETCH_HAS_ONE_ERROR_SINCE:
            errors.discard(0)  # the field that this version lacks
        assert errors <= {ERROR}
        said += len(errors)
    assert said
