"""A mirror to be killed: `python -m tests.support.killed_mirror SOURCE TARGET TOPICS STEPS`.

It takes small steps, each of which it tells with a line, so that a test can kill it at any of them. After
STEPS of them it waits to be killed, so that a fast one is not done before; with 0 it goes on to its end.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import spark_kbatch
from spark_kbatch.mirroring import copying
from tests.conftest import REPOSITORY

STEP_BYTES = 32 * 1024
_STEPS_MAX = 10  # of a process, before it is killed
_PAUSE_MAX_S = 0.05
_STARTUP_S = 4
TIMEOUT_S = 300


def killed_runs(seed: int, kills: int, *words: object, folder: Path) -> int:
    """Run mirrors that are killed at random moments, then one to its end; return the steps that were told."""
    rng, steps = random.Random(seed), 0
    for number in range(kills):
        with _running(words, folder, _STEPS_MAX) as process:
            if number % 4 == 3:  # at any time from its start on
                time.sleep(rng.random() * _STARTUP_S)
            else:
                told = _steps(process, 1 + rng.randrange(_STEPS_MAX))
                assert told, f"it failed, or was done after {steps} steps, before all kills"
                steps += told
                time.sleep(rng.random() * _PAUSE_MAX_S)
            process.kill()
            assert process.wait() == -9, f"it ended after {steps} steps, before all kills"
    with _running(words, folder, 0) as process:
        steps += _steps(process, None)
        assert process.wait(TIMEOUT_S) == 0, (folder / "errors").read_text()
    return steps


def _running(words: tuple[object, ...], folder: Path, steps: int) -> subprocess.Popen[bytes]:
    with (folder / "errors").open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.killed_mirror", *map(str, words), str(steps)],
            stdout=subprocess.PIPE, stderr=errors, cwd=folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip


def _steps(process: subprocess.Popen[bytes], most: int | None) -> int:
    """Wait until the process has told so many steps, or all; return their number."""
    assert process.stdout is not None
    lines = itertools.islice(process.stdout, most)
    return sum(1 for _ in lines)


def main(source: str, target: str, topics: str, steps: str) -> None:
    """Mirror, and tell each step."""
    told = itertools.count(1)

    def tell(_done: object) -> None:
        print(".", flush=True)
        if next(told) == int(steps):
            time.sleep(TIMEOUT_S)

    copying.FETCH_BYTES = STEP_BYTES
    is_address = ":" in source
    done = spark_kbatch.mirror(
        source,
        target,
        topics.split(","),
        name="killed",
        unit_bytes=2 * STEP_BYTES,
        source_config={"max.partition.fetch.bytes": STEP_BYTES} if is_address else None,
        on_progress=tell,
    )
    assert done.offsets_left == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
