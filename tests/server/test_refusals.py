"""Every kind of request can be answered with an error, in every version."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from spark_kbatch.server.refusals import refusal
from spark_kbatch.server.requests import Received
from spark_kbatch.server.unwritten_batches import UnwrittenBatches
from spark_kbatch.wire import protocol
from spark_kbatch.wire.codec import Structure
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from tests.support import messages

ERROR = ErrorCode.NOT_COORDINATOR
SEEDS = 5
CASES = [one for one in messages.CASES if one[2] == messages.REQUEST]


def errors_in(value: Any, version: int) -> Iterator[int]:
    """Yield every error code in an answer, at any depth."""
    if isinstance(value, Structure):
        for field in value.FIELDS:
            one = getattr(value, field.name)
            if field.name.endswith("error_code") and field.tag is None:
                if version in field.versions:
                    yield one
            else:
                yield from errors_in(one, version)
    elif isinstance(value, list):
        for one in value:
            yield from errors_in(one, version)


@pytest.mark.parametrize("case", CASES, ids=messages.case_id)
def test_a_refusal_has_only_the_given_error(case: tuple[int, int, int]) -> None:
    key, version, _ = case
    said = 0
    for seed in range(SEEDS):
        frame = memoryview(messages.a_frame(case, Random(seed)))
        body = protocol.decode_request(frame).body
        received = Received(key, version, "client", "host", ("host", 1), UnwrittenBatches(), body)

        answer = refusal(received, ERROR)

        if answer is None:
            assert key == ApiKey.PRODUCE
            assert body.acks == 0
            continue
        pieces = protocol.encode_response(key, version, 7, answer)
        decoded = protocol.decode_response(key, version, memoryview(b"".join(pieces)))
        assert decoded.correlation_id == 7
        errors = set(errors_in(decoded.body, version))
        assert errors <= {ERROR}
        said += len(errors)
    assert said
