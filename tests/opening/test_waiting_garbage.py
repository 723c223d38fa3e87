"""`gc` shows what it keeps for now: how much, and until when."""

from __future__ import annotations

import json
import re
from pathlib import Path

import spark_kbatch
from tests.support import builders
from tests.support.small_disk import kbatch

DAY_MS = 86_400_000


def test_gc_shows_what_waits_how_much_and_until_when(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    cluster = spark_kbatch.open(path, create=True)
    assert kbatch("gc", path, "--dry-run").stdout == "Nothing to delete.\n"
    for name in ("events", "gone"):
        cluster.create_topic(name)
        builders.write(cluster, {(name, 0): [builders.batch(n=5)]})
    builders.staged(cluster, {("events", 0): [builders.batch(n=500)]})
    staged = sum(one.stat().st_size for one in path.glob("staging-0/*/*/*") if one.is_file())
    cluster.delete_records({("events", 0): -1})
    cluster.delete_topic("gone")

    for words in (["--dry-run"], []):
        lines = kbatch("gc", path, *words).stdout.splitlines()
        (of_job,) = (line for line in lines if line.startswith("staged by "))
        shown = re.fullmatch(
            r"staged by [0-9a-f]{32}: ([\d,]+) bytes, last written \d+ s ago, kept until (\S+)",
            of_job,
        )
        assert shown is not None, of_job
        assert int(shown[1].replace(",", "")) == staged > 500
        kept = r": [1-9][\d,]* bytes, kept until \S+"
        assert any(re.fullmatch(f"deleted segments of events-0{kept}", line) for line in lines)
        assert any(re.fullmatch(f"files of the deleted topic gone{kept}", line) for line in lines)
        assert lines[-1] == "Nothing to delete yet."

    objects = [json.loads(line) for line in kbatch("gc", path, "--json").stdout.splitlines()]
    assert {one["waiting"]: one["until_ms"] - one["written_ms"] for one in objects}[
        "staged"
    ] == 7 * DAY_MS
    waiting = cluster.collect_garbage(dry_run=True).waiting
    assert {one.what for one in waiting} == {"staged", "deleted segments", "deleted topic"}
    assert len(cluster.collect_garbage(staging_retention_ms=0).abandoned_jobs) == 1
