"""Damaged requests and responses of Kafka's protocol are decoded, or refused by an error of ours."""

from __future__ import annotations

import contextlib
import random

import pytest

from spark_kbatch.errors import ProtocolError, UnsupportedVersionError
from tests.support.fuzz_rounds import for_each_round, mutated
from tests.support.messages import CASES, REQUEST, RESPONSE, SIDES, a_frame, decode

_OF_SIDE = {side: [one for one in CASES if one[2] == side] for side in (REQUEST, RESPONSE)}


@pytest.mark.parametrize("side", [REQUEST, RESPONSE], ids=SIDES)
def test_damaged_message_is_decoded_or_refused(side: int) -> None:
    def run(rng: random.Random) -> None:
        case = rng.choice(_OF_SIDE[side])
        frame = a_frame(case, rng)
        for _ in range(10):
            with contextlib.suppress(ProtocolError, UnsupportedVersionError):
                decode(case, mutated(rng, frame))

    for_each_round(f"protocol-{SIDES[side]}", run)
