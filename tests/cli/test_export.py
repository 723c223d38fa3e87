"""`kbatch export` into files: every record, in the form that other tools read."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import ConfigError, CorruptRecordError
from tests.support import builders

ROWS = pa.record_batch(
    {
        "key": pa.array([b"k", None, b""], pa.binary()),
        "value": [b'comma, "quote"\nline', "é😀".encode(), None],
        "timestamp": pa.array([0, 1, 1_700_000_000_123], pa.int64()),
        "headers": pa.array([[("h", b"x"), ("h", None)], None, None], builders.HEADERS_TYPE),
    }
)


def export(*words: Any, **more: Any) -> Result:
    return CliRunner().invoke(cli, ["export", *map(str, words)], **more)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    made = builders.a_cluster(
        tmp_path_factory.mktemp("export"), topics={"events": 2, "bytes": 1, "empty": 1}
    )
    data = builders.encode(ROWS)
    builders.write(made, {("events", 0): [data, data], ("events", 1): [data]})
    bad = pa.record_batch({"value": [b"fine", b"\xff"]})
    builders.write(made, {("bytes", 0): [builders.encode(bad)]})
    return made


@pytest.mark.parametrize("topic", ["events", "empty"])
def test_parquet_has_the_columns_that_spark_shows(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    file = tmp_path / "x.parquet"
    done = export(cluster.path, topic, file)
    assert done.exit_code == 0, (done.output, done.exception)
    read = cluster.read(topic).read_all()
    assert pyarrow.parquet.read_table(file).equals(read)
    assert done.stdout.startswith(f"Wrote {len(read)} records of {topic} to {file}, ")
    done = export(cluster.path, topic, file, "--text", "--overwrite", "-p", "0", "--json")
    found = pyarrow.parquet.read_table(file)
    assert json.loads(done.stdout) == {
        "topic": topic, "file": str(file), "format": "parquet", "records": len(found),
        "size_in_bytes": file.stat().st_size,
    }  # fmt: skip
    expected = cluster.read(topic, partitions=[0]).read_all()
    for name in ("key", "value"):
        at = expected.schema.get_field_index(name)
        expected = expected.set_column(at, name, expected.column(name).cast(pa.string()))
    assert found.equals(expected)
    assert list(tmp_path.iterdir()) == [file]


def test_csv_has_strings_and_tells_null_from_empty(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    assert export(cluster.path, "events", file, "-p", "1").exit_code == 0
    options = pyarrow.csv.ConvertOptions(
        strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
    )
    parsed = pyarrow.csv.read_csv(
        file,
        convert_options=options,
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
    ).to_pylist()
    assert [(row["key"], row["value"], row["headers"]) for row in parsed] == [
        ("k", 'comma, "quote"\nline', '[["h", "x"], ["h", null]]'), (None, "é😀", None), ("", None, None),
    ]  # fmt: skip
    assert [(row["partition"], row["offset"]) for row in parsed] == [(1, 0), (1, 1), (1, 2)]
    assert parsed[2]["timestamp"] == datetime.datetime(
        2023, 11, 14, 22, 13, 20, 123000, datetime.UTC
    )


def test_json_lines_are_those_of_consume(cluster: Cluster, tmp_path: Path) -> None:
    for topic in ("events", "bytes", "empty"):
        file = tmp_path / f"{topic}.jsonl"
        assert export(cluster.path, topic, file).exit_code == 0
        shown = CliRunner().invoke(cli, ["consume", str(cluster.path), topic, "--json"])
        assert file.read_text() == shown.stdout


def test_a_real_cluster_is_exported_too(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    with Cluster(cluster.path) as other, other.serve() as server:
        assert export(server.bootstrap_servers, "events", file).exit_code == 0
        assert export(server.bootstrap_servers, "events", "--log-dir", tmp_path).exit_code == 2
    assert pyarrow.parquet.read_table(file).equals(cluster.read("events").read_all())


def test_a_bar_shows_how_far_it_is(cluster: Cluster, tmp_path: Path) -> None:
    done = export(cluster.path, "events", tmp_path / "x.csv", env={"FORCE_COLOR": "1"})
    assert "9 records" in done.stderr
    assert "/s" in done.stderr


@pytest.mark.parametrize("name", ["x.json", "x.parquet"])
def test_a_damaged_batch_is_told_with_how_to_read_on(tmp_path: Path, name: str) -> None:
    made = builders.a_cluster(tmp_path, topics={"events": 1})
    data = builders.encode(ROWS)
    builders.write(made, {("events", 0): [data, data, data]})
    segment = made.path / "broker-0/events-0" / f"{0:020}.log"
    content = bytearray(segment.read_bytes())
    content[len(data) + len(data) // 2] ^= 1
    segment.write_bytes(content)
    done = export(made.path, "events", tmp_path / name)
    assert done.exit_code == 1
    how = f"`kbatch consume {made.path} events --partition 0 --start {2 * len(ROWS)}`"
    assert how in str(done.exception)

    before = (tmp_path / name).with_stem("x.incomplete")
    assert f"{len(ROWS)} records before damage are in {before}" in done.stderr
    if before.suffix == ".json":
        assert len(before.read_text().splitlines()) == len(ROWS)
    else:
        assert pa.parquet.read_table(before)["value"].to_pylist() == ROWS["value"].to_pylist()
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["x.json", "x.parquet"])
def test_a_batch_may_expand_to_a_limit(tmp_path: Path, name: str) -> None:
    made, limit = (
        builders.a_cluster(tmp_path, topics={"events": 1}),
        "--max-decompressed-batch-bytes",
    )
    with made.producer(compression_type="gzip") as producer:
        producer.send("events", value="v" * 1000)
    done = export(made.path, "events", tmp_path / name, limit, "1000")
    assert "max.decompressed.batch.bytes" in str(done.exception)
    assert export(made.path, "events", tmp_path / name, limit, "2000").exit_code == 0


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_a_file_that_is_not_whole_does_not_get_its_name(tmp_path: Path, kind: str) -> None:
    cluster = builders.a_cluster(tmp_path)
    builders.write(cluster, {("events", 0): [builders.batch()] * 2})
    log = cluster.path / "broker-0" / "events-0" / "00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1] + b"\xff")
    folder = tmp_path / "files"
    folder.mkdir()
    file = folder / f"x.{kind}"
    file.write_text("before")

    done = export(cluster.path, "events", file)
    assert "exists; --overwrite replaces it" in str(done.exception)
    done = export(cluster.path, "events", file, "--overwrite")
    assert isinstance(done.exception, CorruptRecordError), done.output
    assert file.read_text() == "before"
    assert {*folder.iterdir()} == {file, file.with_stem("x.incomplete")}, "what precedes damage"


def test_what_a_link_names_is_replaced_and_a_pipe_is_not(cluster: Cluster, tmp_path: Path) -> None:
    link, file, pipe = (tmp_path / name for name in ("link.csv", "file.csv", "pipe.csv"))
    file.write_text("before")
    link.symlink_to(file)
    os.mkfifo(pipe)

    assert export(cluster.path, "events", link, "--overwrite").exit_code == 0
    done = export(cluster.path, "events", pipe, "--overwrite")

    assert link.is_symlink()
    assert file.read_text().startswith('"key","value"')
    assert "pipe.csv is no regular file, and is not replaced" in str(done.exception)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bytes", "x.csv"], "the value at offset 1 of bytes-0 is not UTF-8"),
        (["bytes", "x.parquet", "--text"], "the value at offset 1 of bytes-0 is not UTF-8"),
        (["events", "x.txt"], "'x.txt' does not tell its format; give --format"),
        (["events"], "give either FILE or --log-dir"),
        (["events", "x.csv", "--log-dir", "y"], "give either FILE or --log-dir"),
        (["events", "--log-dir", "y", "--text"], "are for a FILE"),
        (["events", "x.json", "--text"], "--text is for Parquet"),
        (["events", "nowhere/x.csv"], "the folder of nowhere/x.csv does not exist"),
        (["absent", "x.csv"], "topic 'absent' does not exist"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)  # fmt: skip
def test_what_cannot_be_is_said(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = export(cluster.path, *words)
    assert done.exit_code != 0
    told = " ".join(done.stderr.split()) if done.exit_code == 2 else str(done.exception)
    assert said in told
    assert list(tmp_path.iterdir()) == []
    assert not isinstance(done.exception, ConfigError) or done.stdout == ""


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_produce_writes_a_file_again_as_it_was(cluster: Cluster, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"x.{kind}"
    assert export(cluster.path, "events", file).exit_code == 0
    copy = Cluster(tmp_path / "copy", create=True)
    copy.create_topic("again", partitions=2)
    done = CliRunner().invoke(cli, ["produce", str(copy.path), "again", str(file)])
    assert done.exit_code == 0, (done.output, done.exception)
    names = ["partition", "offset", "key", "value", "headers", "timestamp"]
    assert (
        copy.read("again", columns=names)
        .read_all()
        .equals(cluster.read("events", columns=names).read_all())
    )


@pytest.mark.parametrize("name", ["some.parquet", "some.json"])
def test_a_condition_chooses_what_is_in_the_file(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    file = tmp_path / name
    where = "topic IN ('events', 'x') AND key = 'k' AND partition = 0"
    done = export(cluster.path, "events", file, "--where", where, "--json")
    assert done.exit_code == 0, done.output
    (told,) = caplog.messages
    assert "not read: x; read are: events" in told
    assert json.loads(done.stdout)["records"] == 2
    if name.endswith("json"):
        assert [json.loads(line)["offset"] for line in file.read_text().splitlines()] == [0, 3]
    else:
        assert pa.parquet.read_table(file).column("offset").to_pylist() == [0, 3]


def test_a_condition_without_text_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    done = export(cluster.path, "events", tmp_path / "x.jsonl", "--where", "")
    assert "--where is ''; accepted: a condition" in str(done.exception)


def test_a_condition_is_refused_beside_a_log_dir(cluster: Cluster, tmp_path: Path) -> None:
    done = export(cluster.path, "events", "--log-dir", tmp_path, "--where", "offset = 0")
    assert done.exit_code == 2
    assert "--where has no meaning beside --log-dir" in done.output
