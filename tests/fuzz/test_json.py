"""Damaged JSON is an error of its row, or read by the rules; time and memory are bounded."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.conftest import REPOSITORY
from tests.support.fuzz_rounds import ROUNDS
from tests.support.json_damage import VALUES

PEAK_MIB = 300  # of a process, with Arrow and compiled code
SECONDS = 300 + ROUNDS  # ten times what it takes


def test_damaged_values_neither_crash_nor_hang_nor_take_memory() -> None:
    decode_damaged(min(ROUNDS, 60))  # which may have to compile kernels, and that takes more
    found = decode_damaged(ROUNDS)

    assert found["values"] == VALUES * ROUNDS
    assert 0.3 < found["refused"] / found["values"] < 0.95, found
    assert found["peak_mib"] <= PEAK_MIB, found


def decode_damaged(rounds: int) -> dict[str, int]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.json_damage"],
        cwd=REPOSITORY,
        env={**os.environ, "KBATCH_FUZZ_ROUNDS": str(rounds)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, int] = json.loads(ran.stdout)
    return found
