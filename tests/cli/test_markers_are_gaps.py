"""Numbers that commands print of a topic with a marker, and aborted records, in each partition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from tests.support.client_transactions import (
    GAPS_END,
    GIVEN,
    with_gaps_and_a_record_held_back,
)

RECORDS = 2 * len(GIVEN)
OFFSETS = 2 * GAPS_END + 3


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return with_gaps_and_a_record_held_back(tmp_path)


def printed(command: str, cluster: Cluster, *words: object, code: int = 0) -> str:
    done = CliRunner().invoke(cli, [command, str(cluster.path), *map(str, words)])
    assert done.exit_code == code, done.output
    return done.stdout


def rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a table as it goes into a pipe, by heading."""
    headings, *lines = [line.split("\t") for line in text.splitlines()]
    return [dict(zip(headings, line, strict=True)) for line in lines]


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_topics_count_offsets(cluster: Cluster) -> None:
    (whole,) = rows(printed("topics", cluster))
    by_partition = rows(printed("topics", cluster, "--verbose"))

    assert whole["offsets"] == str(OFFSETS)
    assert [one["offsets"] for one in by_partition] == [str(GAPS_END + 3), str(GAPS_END)]
    (as_json,) = objects(printed("topics", cluster, "--json"))
    for shown in (*by_partition, whole, *as_json["partitions"]):
        assert not [key for key in shown if "record" in key]


def test_consumed_records_are_counted_one_by_one(cluster: Cluster) -> None:
    def consumed(*words: object) -> list[int]:
        return [
            one["offset"]
            for one in objects(printed("consume", cluster, "events", "--json", *words))
        ]

    assert consumed() == [0, 1, 6, 0, 1, 6]
    assert consumed("--last", 2) == [1, 6, 1, 6]
    assert consumed("--max-records", 4) == [0, 1, 6, 0]
    assert consumed("--start", 3) == [6, 6]
    assert consumed("-p", 1, "--isolation-level", "read_uncommitted") == [0, 1, 3, 4, 6]


def test_exported_records_are_counted_one_by_one(cluster: Cluster, tmp_path: Path) -> None:
    (told,) = objects(printed("export", cluster, "events", tmp_path / "out.jsonl", "--json"))

    assert told["records"] == RECORDS
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == RECORDS


def test_what_is_deleted_is_told_in_offsets(cluster: Cluster) -> None:
    words = ("events", "0:4", "--dry-run")
    (below,) = objects(printed("delete-records", cluster, *words, "--json"))
    (topic,) = objects(printed("delete-topic", cluster, "events", "--dry-run", "--json"))

    assert (below["offsets"], topic["offsets"]) == (4, OFFSETS)
    assert "4 offsets would be deleted" in printed("delete-records", cluster, *words)
    assert f"{OFFSETS} offsets" in printed("delete-topic", cluster, "events", "--dry-run")
    assert not [key for key in (*below, *topic) if "record" in key]


def test_lags_are_in_offsets_up_to_the_high_watermark(cluster: Cluster) -> None:
    cluster.alter_group_offsets("behind", {("events", 0): GAPS_END, ("events", 1): 2})

    group = rows(printed("groups", cluster, "behind"))
    assert [(one["next offset"], one["lag"]) for one in group] == [
        (str(GAPS_END + 3), "3"), (str(GAPS_END), str(GAPS_END - 2)),
    ]  # fmt: skip
    assert printed("offsets", cluster, "events", "--group", "behind").splitlines() == [
        f"0\t{GAPS_END}\t{GAPS_END + 3}\t3", f"1\t2\t{GAPS_END}\t{GAPS_END - 2}",
    ]  # fmt: skip


def test_the_latest_offset_is_where_the_first_open_transaction_starts(cluster: Cluster) -> None:
    latest = ("events", "--time", "latest")
    uncommitted = (*latest, "--isolation-level", "read_uncommitted")

    assert printed("offsets", cluster, *latest) == f"0\t{GAPS_END}\t-\n1\t{GAPS_END}\t-\n"
    assert printed("offsets", cluster, *uncommitted) == f"0\t{GAPS_END + 3}\t-\n1\t{GAPS_END}\t-\n"


def test_markers_are_no_faults(cluster: Cluster) -> None:
    assert "none with faults" in printed("verify", cluster)
    assert all("ok" in line for line in printed("repair", cluster, "--dry-run").splitlines())
    assert printed("gc", cluster) == "Nothing to delete.\n"
