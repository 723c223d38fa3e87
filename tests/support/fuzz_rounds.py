"""Reproducible random damage: each round has its own random generator.

KBATCH_FUZZ_ROUNDS   number of rounds of a test; few by default, many with `make fuzz`
KBATCH_FUZZ_FIRST    number of the first round; a failure names its round

KBATCH_FUZZ_FIRST=4711 KBATCH_FUZZ_ROUNDS=1 pytest tests/fuzz -k the_test_that_failed
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable

ROUNDS = int(os.environ.get("KBATCH_FUZZ_ROUNDS", "60"))
FIRST = int(os.environ.get("KBATCH_FUZZ_FIRST", "0"))

# Bytes and numbers that upset lengths, counts and varints.
_BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)
_NUMBERS = (-(2**31), -2, -1, 0, 1, 13, 49, 2**31 - 1)


def for_each_round(
    name: str, run: Callable[[random.Random], None], *, rounds: int = ROUNDS
) -> None:
    """Call `run` once per round; tests with different names get different rounds."""
    for number in range(FIRST, FIRST + rounds):
        try:
            run(random.Random(f"{name}-{number}"))
        except BaseException as error:
            error.add_note(f"round {number}: KBATCH_FUZZ_FIRST={number} KBATCH_FUZZ_ROUNDS=1")
            raise


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Return `data` with one to four changes, which may cancel out."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        size = rng.choice((1, 1, 2, 4, 8, 61, 300))
        match rng.randrange(9):
            case 0 | 1 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 2 if at < len(out):
                out[at] = rng.choice(_BYTES)
            case 3 if at + 4 <= len(out):
                struct.pack_into(">i", out, at, rng.choice((*_NUMBERS, len(out), len(out) - at)))
            case 4:
                del out[at:]
            case 5:
                del out[at : at + size]
            case 6:
                out[at:at] = rng.randbytes(size)
            case 7:
                out[at : at + size] = bytes(len(out[at : at + size]))
            case _:
                other = rng.randrange(len(out) + 1)
                out[at:at] = out[other : other + size]
    return bytes(out)
