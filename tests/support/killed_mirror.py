"""A mirror to be killed: `python -m tests.support.killed_mirror SOURCE TARGET TOPICS`.

It takes small steps, each of which it tells with a line, so that a test can kill it at any of them.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import spark_kbatch
from spark_kbatch.mirroring import copying
from tests.conftest import REPOSITORY

STEP_BYTES = 256 * 1024
_STEPS_MAX = 25  # of a process, before it is killed
_PAUSE_MAX_S = 0.05
TIMEOUT_S = 300


def killed_runs(seed: int, kills: int, *words: object, folder: Path) -> int:
    """Run mirrors that are killed at random moments, then one to its end; return the steps of all."""
    rng, steps = random.Random(seed), 0
    for _ in range(kills):
        found, ended = _run(words, folder, rng.randrange(_STEPS_MAX), rng.random() * _PAUSE_MAX_S)
        assert not ended, f"it was done after {steps + found} steps, before all kills"
        steps += found
    found, ended = _run(words, folder, None, 0)
    assert ended
    return steps + found


def _run(
    words: tuple[object, ...], folder: Path, until: int | None, pause_s: float
) -> tuple[int, bool]:
    """Run one process, kill it after so many steps; return the steps that it told, and whether it ended."""
    with (
        (folder / "errors").open("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.killed_mirror", *map(str, words)],
            stdout=subprocess.PIPE, stderr=errors, cwd=folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        steps = 0
        while until is None or steps <= until:
            if not process.stdout.readline():
                break
            steps += 1
        else:
            time.sleep(pause_s)
            process.kill()
        code = process.wait(TIMEOUT_S)
        errors.seek(0)
        assert code in (0, -9), errors.read()
        return steps, code == 0


def main(source: str, target: str, topics: str) -> None:
    """Mirror, and tell each step."""
    copying.FETCH_BYTES = STEP_BYTES
    is_address = ":" in source
    done = spark_kbatch.mirror(
        source,
        target,
        topics.split(","),
        name="killed",
        unit_bytes=2 * STEP_BYTES,
        source_config={"max.partition.fetch.bytes": STEP_BYTES} if is_address else None,
        on_progress=lambda _done: print(".", flush=True),
    )
    assert done.offsets_left == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
