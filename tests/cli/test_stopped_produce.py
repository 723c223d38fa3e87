"""`kbatch produce` that is interrupted, or meets a full disk: what it says it wrote is what is in the log."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import spark_kbatch
from tests.support.small_disk import fill, kbatch, on_small_disk

FEW_SECONDS = 15  # on a machine that does other things too; retries would go on for two minutes


def lines(file: Path, size_in_bytes: int) -> Path:
    """Write lines of random digits into a file."""
    rng = random.Random(1)
    text = "".join(f"{rng.getrandbits(3200):x}\n" for _ in range(1000))
    file.write_text(text * (size_in_bytes // len(text)))
    return file


def told_and_found(path: Path, out: str) -> tuple[int, int]:
    """Return how many records a command said that it has written, and how many there are."""
    told = re.fullmatch(r"Wrote ([\d,]+) records? to events\.\n", out)
    assert told is not None, out
    with spark_kbatch.open(path) as cluster:
        (row,) = cluster.describe(["events"])
    return int(told[1].replace(",", "")), row.offsets.high_watermark


def started(path: Path, file: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "spark_kbatch", "produce", path, "events", file]
    return subprocess.Popen(
        [*map(str, command), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end_on_a_full_disk(disk: Path) -> None:
    file = lines(disk.parent / "lines.txt", 12 << 20)
    times = ["delivery.timeout.ms=3000", "request.timeout.ms=2000", "max.block.ms=2000"]
    settings = [word for one in times for word in ("--config", one)]
    kbatch("create-topic", disk / "cluster", "events")
    done = kbatch("produce", disk / "cluster", "events", file, *settings)
    assert done.returncode == 1, done
    told, found = told_and_found(disk / "cluster", done.stdout)
    assert told == found > 1000, (told, found)
    warning, *_, last = done.stderr.splitlines()
    assert warning.startswith("WARNING "), done.stderr
    assert "retrying a batch of events-0: /" in warning
    assert ".log: No space left on device; delete topics or records" in warning
    assert last.startswith("kbatch: "), done.stderr
    assert "No space left on device" in last, done.stderr


def interrupt_on_a_full_disk(disk: Path) -> None:
    file = lines(disk.parent / "lines.txt", 12 << 20)
    kbatch("create-topic", disk / "cluster", "events")
    with started(disk / "cluster", file) as running:
        assert running.stderr is not None
        assert "No space left on device" in running.stderr.readline(), "it is said at once"
        asked = time.monotonic()
        running.send_signal(signal.SIGINT)
        out, told = running.communicate(timeout=60)
        assert time.monotonic() - asked < FEW_SECONDS
    assert running.returncode == 130
    assert "kbatch: interrupted; the last attempt to write failed: /" in told, told
    assert ".log: No space left on device; delete topics or records" in told, told
    written, found = told_and_found(disk / "cluster", out)
    assert written == found > 1000, (written, found)


def start_on_a_full_disk(disk: Path) -> None:
    kbatch("create-topic", disk / "cluster", "events")
    fill(disk)
    with started(disk / "cluster", lines(disk.parent / "lines.txt", 1 << 20)) as running:
        assert running.stderr is not None
        assert "No space left on device" in running.stderr.readline(), "it is said at once"
        running.send_signal(signal.SIGINT)
        out, told = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, "")
    assert "No space left on device" in told, told


@pytest.mark.parametrize(
    "work",
    [
        interrupt_on_a_full_disk,
        pytest.param(end_on_a_full_disk, marks=pytest.mark.slow),
        pytest.param(start_on_a_full_disk, marks=pytest.mark.slow),
    ],
)
def test_on_a_full_disk_the_count_is_true_and_the_cause_is_said(work, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    on_small_disk(work, tmp_path)


def test_the_count_after_an_interrupt_is_what_is_in_the_log(tmp_path: Path) -> None:
    file = lines(tmp_path / "lines.txt", 256 << 20)
    for number in range(3):
        path = tmp_path / f"cluster-{number}"
        kbatch("create-topic", path, "events")
        with started(path, file) as running:
            log = path / "broker-0/events-0/00000000000000000000.log"
            until = time.monotonic() + 60
            while not log.exists() or log.stat().st_size < (20 << 20) * (number + 1):
                assert running.poll() is None
                assert time.monotonic() < until
                time.sleep(0.005)
            running.send_signal(signal.SIGINT)
            out, told = running.communicate(timeout=60)
        assert (running.returncode, told) == (130, "kbatch: interrupted\n")
        written, found = told_and_found(path, out)
        assert written == found < 256_000
