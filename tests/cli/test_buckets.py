"""The command line on the URL of a bucket: what it does there, and what it refuses by name."""

from __future__ import annotations

import getpass
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

import spark_kbatch
from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.bucket.objects import CreateAnswer, MemoryObjects, ObjectInfo
from spark_kbatch.bucket.probe import tried
from spark_kbatch.bucket.urls import place_in_memory
from spark_kbatch.cli import consuming
from spark_kbatch.cli.main import cli
from spark_kbatch.cli.output import StopOnceBegun
from spark_kbatch.cli.paths import ANYWHERE, BUCKET, FOLDER
from spark_kbatch.errors import (
    CorruptRecordError,
    KafkaStorageError,
    KBatchError,
    ObjectAccessDeniedError,
    ObjectStoreError,
    OutcomeUnknownError,
)
from tests.conftest import REPOSITORY
from tests.support.bucket_jobs import commit_micro_batch
from tests.support.commands import COMMANDS

_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    return f"memory+bucket://cli-{next(_numbers)}"


def kbatch(*words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, words, prog_name="kbatch", input=stdin)


def done(*words: str, stdin: str = "") -> str:
    result = kbatch(*words, stdin=stdin)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def send_each(url: str, partitions: Iterable[int | None]) -> None:
    """Send a record to each of these partitions of `events`, each as an object of its own."""
    with (
        spark_kbatch.open(url) as cluster,
        cluster.producer(linger_ms=0, maintain_ms=0) as producer,
    ):
        for at, partition in enumerate(partitions):
            producer.send("events", f"{at}", partition=partition).result()


def test_topics_and_records_of_a_bucket(url: str) -> None:
    done("create-topic", url, "events", "--partitions", "2", "--config", "retention.ms=7")
    done("produce", url, "events", "--partition", "1", stdin="a\nb\nc\n")
    assert done("consume", url, "events", "--raw") == "a\nb\nc\n"
    done("delete-records", url, "events", "1:1", "--yes")
    assert done("consume", url, "events", "--raw") == "b\nc\n"
    rows = [json.loads(line) for line in done("offsets", url, "events", "--json").splitlines()]
    assert [row["offset"] for row in rows] == [0, 3]
    done("alter-topic", url, "events", "--config", "retention.ms=9")
    done("create-partitions", url, "events", "3")
    (row,) = done("topics", url, "--json", "events").splitlines()
    assert len(json.loads(row)["partitions"]) == 3
    done("delete-topic", url, "events", "--yes")
    assert done("topics", url, "--json") == ""


def test_a_bucket_without_a_cluster_is_told(url: str) -> None:
    result = kbatch("topics", url)
    assert result.exit_code != 0
    assert f"no cluster is at {url}" in str(result.exception) + result.output


@pytest.mark.parametrize(
    "words",
    [["serve"], ["log-dirs"]],
    ids=lambda words: words[0],
)
def test_commands_for_folders_refuse_a_bucket_by_name(url: str, words: list[str]) -> None:
    command, *rest = words
    result = kbatch(command, url, *rest)
    assert result.exit_code == 2
    assert f"'{url}' is the URL of a bucket; `kbatch {command}` works on a folder" in result.stderr
    instead = {"serve": "no bucket can be served yet"}
    assert instead.get(command, "`kbatch describe`") in " ".join(result.stderr.split())


def test_groups_of_a_bucket(url: str) -> None:
    done("create-topic", url, "events")
    done("produce", url, "events", stdin="a\nb\nc\n")
    assert f"{url} has no consumer groups; it is in a bucket." in kbatch("groups", url).stderr
    done("groups", "reset", url, "billing", "--topic", "events", "--to-offset", "1")

    assert done("groups", url).splitlines()[1:] == ["billing\tEmpty\tevents\t0\t2"]
    assert done("groups", url, "billing").splitlines()[1].startswith("events\t0\t1\t3\t2\t20")
    (one,) = map(json.loads, done("groups", url, "--json").splitlines())
    assert (one["group"], one["server"], one["lag"]) == ("billing", None, 2)
    assert done("offsets", url, "events", "--group", "billing") == "0\t1\t3\t2\n"
    assert done("topics", url).splitlines()[1].endswith("\tbilling: 2")
    assert re.search(r"\tgroup[^\t]*\t1 offset of group billing\t", done("history", url, "--all"))
    done("groups", "reset", url, "billing", "--to-latest")
    assert done("groups", url).splitlines()[1:] == ["billing\tEmpty\tevents\t0\t0"]
    done("groups", "delete", url, "billing", "--yes")
    assert "'billing' does not exist" in str(kbatch("groups", url, "billing").exception)


def test_nothing_is_recovered_or_repaired_where_nothing_is(tmp_path: Path) -> None:
    for command in ("recover", "repair"):
        told = str(kbatch(command, f"file+bucket://{tmp_path}").exception)
        assert "no cluster is at" in told
        assert "nothing that is left of one" in told
        assert "create" not in told


class Failing(MemoryObjects):
    """A store that fails as often as it is told to, once that is set."""

    left = 0

    def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        if self.left > 0:
            self.left -= 1
            raise ObjectStoreError("get", names[0], "503, as the test says")
        return super().get_many(names)


def test_consume_goes_on_following_a_bucket_that_failed(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    objects = Failing()
    place_in_memory(url, objects)
    done("create-topic", url, "events")
    done("produce", url, "events", stdin="first\n")
    looks = itertools.count()

    def look() -> bool:
        turn = next(looks)
        if turn == 3:
            objects.left = 3
        elif turn > 3 and objects.left == 0:
            objects.left = -1
            done("produce", url, "events", stdin="later\n")
        return True

    monkeypatch.setattr(consuming, "_is_read", look)
    found = kbatch("consume", url, "events", "--follow", "--raw", "-n", "2")

    assert (found.exit_code, found.stdout) == (0, "first\nlater\n")
    assert caplog.text.count("503, as the test says; it is asked again") == 1


def test_a_mirror_goes_on_following_where_it_was_after_a_store_failed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, objects = f"{url}-source", f"{url}-target", Failing()
    place_in_memory(source, objects)
    done("create-topic", source, "events")
    done("produce", source, "events", stdin="1\n2\n")
    turns = itertools.count()

    def wait(stop: threading.Event, _seconds: float) -> bool:
        turn = next(turns)
        if turn == 1:
            done("produce", source, "events", stdin="3\n")
            objects.left = 2
        if turn > 10:
            stop.set()
        return stop.is_set()

    monkeypatch.setattr(StopOnceBegun, "wait", wait)
    found = kbatch("mirror", source, target, "events", "--follow", "--unit-seconds", "0")

    assert found.exit_code == 0, (found.output, found.exception)
    assert found.stderr.count("503, as the test says; it goes on where it was") == 2
    assert "Copied 3 records of 1 topic" in found.stdout, "by all runs"
    assert done("consume", target, "events", "--raw") == "1\n2\n3\n"


def test_a_mirror_into_a_store_that_fails_at_once_ends(url: str) -> None:
    place_in_memory(url, objects := Failing())
    done("create-topic", url, "events")
    objects.left = 100

    assert isinstance(
        kbatch("mirror", url, f"{url}-target", "events", "--follow").exception, ObjectStoreError
    )


def test_the_page_of_buckets_lists_the_commands_that_take_one() -> None:
    page = (REPOSITORY / "docs" / "bucket.md").read_text(encoding="utf-8")
    listed = {
        row: {name for name in re.findall(r"`([^`]+)`", names) if "--" not in name}
        for row, names in re.findall(
            r"^\| (as on a folder|there alone|refused) \| (.*) \|$", page, re.M
        )
    }
    taken = {
        name: getattr(one.callback, "args", (ANYWHERE,))[0]
        for name, command in COMMANDS.items()
        for one in command.params
        if one.name in ("path", "source")
    }
    by_kind = {
        "as on a folder": {name for name, takes in taken.items() if {FOLDER, BUCKET} <= {*takes}},
        "there alone": {name for name, takes in taken.items() if FOLDER not in takes},
        "refused": {name for name, takes in taken.items() if BUCKET not in takes},
    }

    assert listed == by_kind


@pytest.mark.parametrize("command", ["history", "repair", "verify"])
def test_upkeep_takes_options_of_the_store(url: str, command: str) -> None:
    done("create-topic", url, "events")
    done(command, url)
    result = kbatch(command, url, "-X", "store.region=here")
    assert "option 'store.region' is for a bucket of a store" in str(result.exception)


def test_history_lists_what_jobs_committed(url: str) -> None:
    done("create-topic", url, "events", "--partitions", "2")
    done("produce", url, "events", "--partition", "1", stdin="a\n")  # by no job
    commit_micro_batch(url, 7, ["b", "c"])

    (line,) = done("history", url, "--json").splitlines()

    commit = json.loads(line)
    assert (commit["sequence"], commit["records"]) == (7, 2)
    assert commit["offsets"] == {"events": {"0": [0, 2]}}
    ends = done("history", url, str(commit["commit"]))
    assert json.loads(ends) == {"events": {"0": 2, "1": 1}}
    assert "a-query 7" in done("history", url)


def test_a_mirror_goes_from_bucket_to_bucket(url: str) -> None:
    done("create-topic", url, "events")
    done("produce", url, "events", stdin="a\nb\n")
    assert "Copied 2 records of 1 topic" in done("mirror", url, f"{url}-2", "events")
    assert done("consume", f"{url}-2", "events", "--raw") == "a\nb\n"


def test_gc_of_a_bucket_merges_and_tells_what_it_does(url: str) -> None:
    done("create-topic", url, "events")
    done("produce", url, "events", stdin="a\nb\n")
    assert done("gc", url) == "Nothing to do.\n"

    send_each(url, [None] * 120)
    looked = done("gc", url, "--dry-run")
    assert "121 extents, " in looked
    assert "would be merged into 1 segment." in looked
    assert done("gc", url).replace(" merged", " would be merged") == looked
    assert done("gc", url) == "Nothing to do.\n"
    assert done("consume", url, "events", "--raw").splitlines() == [
        *"ab",
        *(f"{at}" for at in range(120)),
    ]


def test_gc_of_a_bucket_keeps_retention(url: str) -> None:
    done("create-topic", url, "events", "--config", "retention.ms=1000")
    with spark_kbatch.open(url) as cluster, cluster.producer() as producer:
        producer.send("events", "old", timestamp=1).result()
        producer.send("events", "new").result()

    assert done("gc", url) == "events-0 starts at offset 1.\n"
    found = json.loads(done("gc", url, "--json"))
    assert (found["starts"], found["merged"]["segments"]) == ({}, 0)
    assert done("consume", url, "events", "--raw") == "new\n"


def test_gc_of_a_bucket_goes_on_until_it_is_told_to_stop(tmp_path: Path) -> None:
    url = f"file+bucket://{tmp_path}/bucket"
    done("create-topic", url, "events")
    command = [sys.executable, "-m", "spark_kbatch", "gc", url, "--every", "1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert json.loads(process.stdout.readline())["starts"] == {}
        process.terminate()
        assert process.wait(30) == 0


def test_gc_of_a_bucket_goes_on_after_a_round_that_failed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does in which the store or the credentials were away, or found a damaged batch."""
    done("create-topic", url, "events")
    errors: list[KBatchError] = [
        ObjectStoreError("get", "ledger/1", "for a test"),
        ObjectAccessDeniedError("put", "ledger/1", "for a test"),
        OutcomeUnknownError("outcome unknown", "for a test", 7, "ab"),
        CorruptRecordError("for a test"),
    ]
    rounds: list[int] = []

    def run(*_: object, **__: object) -> NoReturn:
        rounds.append(1)
        if len(rounds) > len(errors):
            raise KeyboardInterrupt
        raise errors[len(rounds) - 1]

    monkeypatch.setattr(Maintenance, "run", run)
    found = kbatch("gc", url, "--every", "1")
    assert (len(rounds), found.stderr.count("for a test")) == (5, 4)
    rounds.clear()
    assert kbatch("gc", url).exit_code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gc", "{folder}", "--erase", "events"], "--erase has no meaning in a folder"),
        (["gc", "{bucket}", "--staging-retention-ms", "1"], "has no meaning in a bucket"),
        (["gc", "{bucket}", "events"], "in a bucket all topics are looked after: leave out TOPIC"),
        (["gc", "{folder}", "--every", "1", "--dry-run"], "do not go together"),
        (["gc", "{bucket}", "--erase", "events", "--dry-run"], "neither --dry-run nor --every"),
        (["gc", "{folder}", "-X", "store.region=here"], "is a folder"),
        (["history", "{folder}", "--all"], "--all is for a bucket, whose ledger"),
        (
            ["history", "{bucket}", "--all", "--topic", "events"],
            "--topic has no meaning beside --all",
        ),
        (["history", "{bucket}", "f" * 32], "--all is for ids of entries"),
        (["recover", "{folder}"], "is no URL of a bucket, such as s3://BUCKET/PREFIX"),
        (["describe", "{bucket}", "--prometheus", "--json"], "--json has no meaning beside"),
    ],
    ids=lambda one: " ".join(word.strip("{}") for word in one) if isinstance(one, list) else "",
)
def test_what_a_place_does_not_have_is_refused(
    tmp_path: Path, url: str, words: list[str], said: str
) -> None:
    result = kbatch(*(word.format(folder=tmp_path, bucket=url) for word in words))
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_the_old_names_of_a_bucket_s_verbs_run_the_new_ones(url: str) -> None:
    done("create-topic", url, "events")
    send_each(url, [None] * 120)
    for old, new in (
        (["ledger", url, "--max-entries", "3", "--json"], ["history", url, "--all", "-n", "3", "--json"]),
        (["ledger", url, "1"], ["history", url, "--all", "1"]),
        (["maintain", url, "--dry-run"], ["gc", url, "--dry-run"]),
    ):  # fmt: skip
        shown = kbatch(*old)
        assert shown.stdout == done(*new)
        assert (
            f"kbatch {old[0]} is kbatch {'gc' if new[0] == 'gc' else 'history --all'} now"
            in shown.stderr
        )
    assert "merged into 1 segment" in done("maintain", url)
    told = kbatch("--help").stdout
    assert not re.search("^  (maintain|ledger)", told, re.M)


def test_gc_of_a_folder_goes_on_until_it_is_told_to_stop(tmp_path: Path) -> None:
    folder = spark_kbatch.Cluster(tmp_path / "folder", create=True).path
    command = [sys.executable, "-m", "spark_kbatch", "gc", str(folder), "--every", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == "Nothing to delete.\n"
        process.terminate()
        assert process.wait(30) == 0


def test_gc_of_a_folder_goes_on_after_a_round_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = spark_kbatch.Cluster(tmp_path / "folder", create=True).path
    rounds: list[int] = []

    def collect(*_: object, **__: object) -> NoReturn:
        rounds.append(1)
        if len(rounds) > 1:
            raise KeyboardInterrupt
        raise KafkaStorageError("for a test")

    monkeypatch.setattr(spark_kbatch.Cluster, "collect_garbage", collect)
    found = kbatch("gc", str(folder), "--every", "1")
    assert (len(rounds), found.exit_code) == (2, 130)
    assert "kbatch: for a test; the next round tries again" in found.stderr
    rounds.clear()
    assert isinstance(kbatch("gc", str(folder)).exception, KafkaStorageError)


def test_verify_finds_what_is_damaged_or_gone(tmp_path: Path) -> None:
    url = f"file+bucket://{tmp_path}/bucket"
    done("create-topic", url, "events", "--partitions", "2")
    send_each(url, [0, 1] * 3)
    assert done("verify", url) == "2 partitions checked: none with faults.\n"

    first, second = sorted(
        (tmp_path / "bucket").glob("*/data/*/*/*"), key=lambda one: one.parts[-2]
    )[:2]
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    second.unlink()
    result = kbatch("verify", url)
    assert result.exit_code == 1
    assert "2 partitions checked: 2 partitions with faults." in result.output
    assert f"{first.name}: CRC-32C" in result.output
    assert f"{second.name} is missing" in result.output
    assert done("verify", url, "--help").count("bucket") >= 1


def test_describe_shows_what_is_read_and_what_waits(url: str) -> None:
    done("create-topic", url, "events", "--partitions", "2")
    send_each(url, [0] * 120)
    shown = dict(line.split(maxsplit=1) for line in done("describe", url).splitlines()[:7])
    assert shown["topics"] == "1, with 2 partitions"
    assert shown["ledger"].startswith("122 entries, the last one of 20")
    assert shown["checkpoint"] == "entry 112, with 9 after it"
    assert shown["read"].startswith("120 objects, ")
    assert abs(float(shown["clock"].split()[4])) < 60
    assert "120 in events-0, which has the most" in done("describe", url)

    done("gc", url)
    found = json.loads(done("describe", url, "--json"))
    assert (found["referenced"]["objects"], found["waiting"]["objects"]) == (1, 120)
    assert (found["small_extents"], found["entries"]) == (1, 123)


def test_metrics_of_a_bucket_are_what_prometheus_reads(url: str) -> None:
    done("create-topic", url, "events", "--partitions", "2")
    send_each(url, [1] * 40)
    done("gc", url)
    found, shown = json.loads(done("describe", url, "--json")), metrics_of(url)
    assert shown["kafka_log_log_logendoffset", "events", "0"] == 0
    assert shown["kafka_log_log_logendoffset", "events", "1"] == 40
    assert shown["kafka_log_log_size", "events", "1"] > 40 * 60
    assert shown["kbatch_bucket_entries",] == found["entries"] == 42
    assert shown["kbatch_bucket_entries_since_checkpoint",] == found["entries_since_checkpoint"]
    assert shown["kbatch_bucket_entries_since_checkpoint",] == 41 - found["checkpoint"] < 24
    assert shown["kbatch_bucket_small_pieces",] == found["small_extents"] == 40
    assert shown["kbatch_bucket_objects", "read"] == found["referenced"]["objects"] == 40
    assert shown["kbatch_bucket_bytes", "waiting"] == found["waiting"]["size_in_bytes"] == 0
    for name in ("last_entry", "unmaintained_since"):
        assert time.time() - 600 < shown[f"kbatch_bucket_{name}_timestamp_seconds",] <= time.time()
    assert abs(shown["kbatch_bucket_clock_ahead_seconds",]) < 60


def metrics_of(place: str) -> dict[tuple[str, ...], float]:
    """Return what Prometheus would read, by the name and the values of labels, which are sorted by their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items(), reverse=True))): sample.value
        for family in text_string_to_metric_families(done("describe", place, "--prometheus"))
        for sample in family.samples
    }  # fmt: skip


def test_metrics_of_a_folder_and_of_a_real_cluster_have_its_groups(tmp_path: Path) -> None:
    folder = spark_kbatch.Cluster(tmp_path / "folder", create=True)
    folder.create_topic("events", 1)
    with folder.producer() as producer:
        for at in range(5):
            producer.send("events", f"{at}")
    with folder.serve() as server:
        folder.alter_group_offsets("billing", {("events", 0): 3})
        for place in (str(tmp_path / "folder"), server.bootstrap_servers):
            shown = metrics_of(place)
            assert shown["kafka_log_log_logendoffset", "events", "0"] == 5
            assert shown["kafka_consumergroup_current_offset", "events", "0", "billing"] == 3
            assert shown["kafka_consumergroup_lag", "events", "0", "billing"] == 2
            assert not any("bucket" in name for name, *_ in shown)


def test_describe_shows_what_there_is_in_a_folder_and_in_a_real_cluster(tmp_path: Path) -> None:
    folder = spark_kbatch.Cluster(tmp_path / "folder", create=True)
    folder.create_topic("events", 2)
    with folder.producer() as producer:
        producer.send("events", "v", partition=1).result()
    with folder.serve() as server:
        folder.alter_group_offsets("billing", {("events", 1): 1})
        row = json.loads(done("describe", str(folder.path), "--json"))
        (log_dir,) = row.pop("log_dirs")
        assert row == {
            "cluster_id": folder.cluster_id, "topics": 1, "partitions": 2, "offsets": 1, "groups": 1, "commits": 0,
            "size_in_bytes": folder.describe("events")[1].size_in_bytes, "server": server.bootstrap_servers,
        }  # fmt: skip
        assert (log_dir["node_id"], log_dir["state"], log_dir["leaders"]) == (0, "online", 5)
        lines = done("describe", str(folder.path)).splitlines()
        assert f"server        {server.bootstrap_servers}" in lines
        assert f"log dir 0     online, {folder.path}/broker-0" in lines
        assert "partitions    2" in lines
        there = json.loads(done("describe", server.bootstrap_servers, "--json"))
        assert there == row | {"size_in_bytes": None, "commits": None, "log_dirs": []}
    assert "server" not in done("describe", str(folder.path))


def test_metrics_of_a_bucket_need_a_package(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done("create-topic", url, "events")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    result = kbatch("describe", url, "--prometheus")
    assert isinstance(result.exception, spark_kbatch.ConfigError)
    assert "pip install '.[metrics]'" in str(result.exception)


def test_gc_of_a_bucket_erases_a_topic_once_it_is_told_to(url: str) -> None:
    done("create-topic", url, "events")
    done("produce", url, "events", stdin="a\n")
    asked = kbatch("gc", url, "--erase", "events")
    assert asked.exit_code == 1
    assert done("topics", url, "--json")
    assert "events is deleted. Its bytes go in a week" in done("gc", url, "--erase", "events", "-y")
    assert done("topics", url, "--json") == ""
    assert kbatch("gc", url, "--erase", "events", "-y").exit_code == 1


def test_upgrade_lets_new_writers_write_and_old_ones_read(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("create-topic", url, "events")
    done("produce", url, "events", stdin="a\n")
    assert done("upgrade", url).startswith("Nothing to do: the format is 1")

    with monkeypatch.context() as later:
        later.setattr("spark_kbatch.ledger.entries.FORMAT", 2)
        later.setattr("spark_kbatch.bucket.ledger.FORMAT", 2)
        assert done("upgrade", url) == "The format is 2 from entry 3 on.\n"
        done("produce", url, "events", stdin="b\n")
    assert done("consume", url, "events", "--raw") == "a\nb\n"
    result = kbatch("produce", url, "events", stdin="c\n")
    assert result.exit_code == 1
    assert "writers need format 2, and this one knows 1" in str(result.exception) + result.output
    assert done("consume", url, "events", "--raw") == "a\nb\n"


class Denying(MemoryObjects):
    """A store that lets this process do only some things."""

    def __init__(self, *allowed: str) -> None:
        super().__init__()
        self.allowed = {"list", "get", "put", "delete"}
        if allowed:
            self.allowed = {*allowed}

    def _ensure(self, what: str, name: str) -> None:
        if what not in self.allowed:
            raise ObjectAccessDeniedError(what, name, "AccessDenied")

    def get(self, name: str) -> bytes | None:
        self._ensure("get", name)
        return super().get(name)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        self._ensure("list", prefix)
        return super().list(prefix, start_after)

    def put(self, name: str, data: bytes) -> None:
        self._ensure("put", name)
        super().put(name, data)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._ensure("delete", name)
            super().delete([name])


def test_check_tells_rights_store_and_cluster(url: str) -> None:
    objects = Denying()
    place_in_memory(url, objects)
    found = json.loads(done("check", url, "--json"))
    assert [one["is_allowed"] for one in found["rights"]] == [True] * 4
    assert (found["faults"], found["cluster_id"], found["left"]) == ([], None, None)
    assert [*objects.list("")] == []

    done("create-topic", url, "events")
    shown = done("check", url)
    assert "list\tyes\treading" in shown
    assert "The store passed." in shown
    assert "is there, with 2 entries." in shown


@pytest.mark.parametrize(
    ("allowed", "exit_code", "missing", "said"),
    [
        ({"list", "get", "put"}, 0, ["delete"], "stays there"),
        ({"list", "get"}, 0, ["put", "delete"], "was not tried"),
        ({"list", "put"}, 1, ["get", "delete"], "was not tried"),
        ({"put", "get"}, 1, ["list", "delete"], "was not tried"),
        (set(), 1, ["list", "get", "put", "delete"], "was not tried"),
    ],
    ids=lambda one: "-".join(sorted(one)) if isinstance(one, set) else None,
)
def test_check_names_the_rights_that_are_missing(
    url: str, allowed: set[str], exit_code: int, missing: list[str], said: str
) -> None:
    objects = Denying()
    place_in_memory(url, objects)
    done("create-topic", url, "events")
    objects.allowed = allowed
    result = kbatch("check", url)
    assert result.exit_code == exit_code
    for right in ("list", "get", "put", "delete"):
        assert (f"{right} is missing: " in result.stderr) == (right in missing)
    assert said in result.stdout
    assert ("is there, with 2 entries." in result.stdout) == ({"list", "get"} <= allowed)


def test_rights_have_the_names_of_the_stores_policies() -> None:
    for address, named in (
        ("s3://b", "s3:ListBucket s3:GetObject s3:PutObject s3:DeleteObject"),
        ("gs://b", "objects.list objects.get objects.create objects.delete"),
        ("az://b", "blobs/read blobs/read blobs/write blobs/delete"),
    ):
        rights = tried(Denying(), address).rights
        assert all(
            right.name.endswith(name) for right, name in zip(rights, named.split(), strict=True)
        )


def test_check_finds_a_store_that_loses_commits(url: str) -> None:
    class Careless(MemoryObjects):
        def create(self, name: str, data: bytes) -> CreateAnswer:
            self.put(name, data)
            return CreateAnswer.CREATED

    place_in_memory(url, Careless())
    result = kbatch("check", url)
    assert result.exit_code == 1
    assert "The store loses commits: " in result.stdout


def test_the_ledger_tells_what_happened_by_whom_and_when(url: str) -> None:
    done("create-topic", url, "events", "--partitions", "2", "--config", "retention.ms=7")
    done("produce", url, "events", "--partition", "1", stdin="a\nb\n")
    commit_micro_batch(url, 3, ["c"])
    done("delete-records", url, "events", "1:1", "--yes")
    done("alter-topic", url, "events", "--reset", "retention.ms")
    done("create-partitions", url, "events", "3")
    done("delete-topic", url, "events", "--yes")

    rows = [json.loads(line) for line in done("history", url, "--all", "--json").splitlines()]
    assert [row["entry"] for row in rows] == [*range(7, -1, -1)]
    assert [row["what"] for row in reversed(rows)] == [
        "the cluster begins",
        "topic events is created with 2 partitions",
        "2 records to events",
        "1 record to events; micro-batch 3 of a-query",
        "starts: events-1 at 1",
        "settings of events: retention.ms=default",
        "topic events gets 1 more partition",
        "topic events is deleted",
    ]
    here = f"{getpass.getuser()}@{os.uname().nodename}"
    assert [row["by"] for row in reversed(rows)] == [
        *(here, here, f"producer {here}", f"job app a-query {here}", here, here, here, here)
    ]
    (commit,) = (json.loads(line) for line in done("history", url, "--json").splitlines())
    assert (commit["application_id"], commit["query_id"], commit["user"]) == (
        *("app", "a-query", getpass.getuser()),
    )
    assert rows[5]["records"] == {"events": 2}
    lines = done("history", url, "--all", "-n", "2").splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("7\t20")


def test_the_ledger_tells_the_outcome_of_an_entry(url: str) -> None:
    done("create-topic", url, "events")
    (row,) = (
        json.loads(line) for line in done("history", url, "--all", "1", "--json").splitlines()
    )
    assert row["what"] == "topic events is created with 1 partition"
    assert done("history", url, "--all", row["id"], "--json") == done(
        "history", url, "--all", "1", "--json"
    )
    for entry in ("2", "f" * 32):
        result = kbatch("history", url, "--all", entry)
        assert "the ledger ends with entry 1." in str(result.exception)
        assert "is not committed" in str(result.exception)
    assert kbatch("history", url, "--all", "no-id").exit_code == 2
    assert kbatch("history", url, "--all", "1", "-n", "3").exit_code == 2
