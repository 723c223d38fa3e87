"""`kbatch produce`: records from lines, JSON lines, CSV and Parquet."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from spark_kbatch import Cluster
from spark_kbatch.cli import inputs
from spark_kbatch.cli.inputs import COLUMNS
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import ConfigError
from spark_kbatch.remote.client import close_idle_clients
from tests.support import builders

HOSTILE = [
    {"key": "k", "value": "two\nlines", "headers": [["h", "x"], ["h", None]]},
    {"key": None, "value": {"base64": "/w=="}, "headers": []},
    {"key": '"', "value": None, "headers": [["", {"base64": "/g=="}]]},
    {"key": "", "value": "\x1b[2J\u202e😀", "headers": []},
    {"key": '{"base64": "x"}', "value": "\\N", "headers": []},
]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return builders.a_cluster(tmp_path, topics={"events": 2, "copy": 2})


def kbatch(*words: Any, stdin: str | bytes = b"") -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words], prog_name="kbatch", input=stdin)


def produce(cluster: Cluster, *words: Any, stdin: str | bytes = b"") -> Result:
    done = kbatch("produce", cluster.path, *words, stdin=stdin)
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def records(cluster: Cluster, topic: str = "events") -> list[dict[str, Any]]:
    done = kbatch("consume", cluster.path, topic, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(one.pop("topic") == topic for one in found)
    return found


def pairs(cluster: Cluster) -> list[tuple[Any, Any]]:
    return sorted((one["key"], one["value"]) for one in records(cluster))


# Lines


def test_lines_are_values(cluster: Cluster) -> None:
    done = produce(cluster, "events", "-p", "1", stdin=b"a:1\r\n\n\xff\r\nlast")
    assert done.stdout == "Wrote 4 records to events.\n"
    found = [(one["partition"], one["key"], one["value"]) for one in records(cluster)]
    values = ["a:1", "", {"base64": "/w=="}, "last"]
    assert found == [(1, None, value) for value in values]


def test_what_is_before_a_separator_is_the_key(cluster: Cluster) -> None:
    lines = "a\t1\tx\n\tNULL\nNULL\t\n"
    produce(cluster, "events", "-K", r"\t", "--null-marker", "NULL", "-p", "0", stdin=lines)
    none = b"\xff".decode(errors="surrogateescape")
    produce(
        cluster,
        "events",
        "-K",
        r"\x1fé",
        "--null-marker",
        none,
        "-p",
        "0",
        stdin=b"\xff\x1f\xc3\xa9v",
    )
    assert [(one["key"], one["value"]) for one in records(cluster)] == [
        ("a", "1\tx"), ("", None), (None, ""), (None, "v"),
    ]  # fmt: skip


def test_headers_go_to_records_that_bring_none(cluster: Cluster) -> None:
    produce(cluster, "events", "-H", "a=1", "-H", "b=x=y", "-p", "0", stdin="v\n")
    line = json.dumps({"value": "w", "headers": [["own", "1"]]})
    produce(
        cluster, "events", "--json", "-H", "a=2", "-p", "0", stdin=f'{line}\n{{"value": "x"}}\n'
    )
    assert [one["headers"] for one in records(cluster)] == [
        [["a", "1"], ["b", "x=y"]], [["own", "1"]], [["a", "2"]],
    ]  # fmt: skip


def test_lines_longer_than_a_block_and_blocks_of_many_lines_come_out_whole(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_BLOCK", 100)
    values = ["x" * 250, *(f"{n:07}" for n in range(500)), "y" * 99, ""]
    Path("many").write_text("\n".join(values) + "\n")
    produce(cluster, "events", "many", "-p", "0")
    assert [one["value"] for one in records(cluster)] == values


def test_a_line_without_separator_is_named_and_those_before_it_are_written(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_BLOCK", 8)
    Path("in.txt").write_text("a:1\nb:2\nc:3\nd\ne:5\n")
    done = kbatch("produce", cluster.path, "events", "in.txt", "-K", ":")
    assert done.stdout == "Wrote 3 records to events.\n"
    assert str(done.exception) == "in.txt, line 4: it has no key separator ':'"
    assert pairs(cluster) == [("a", "1"), ("b", "2"), ("c", "3")]


# JSON lines


def test_what_consume_prints_as_json_is_written_again_as_it_was(cluster: Cluster) -> None:
    times = ["2024-10-25T08:00:00.123Z", "1970-01-01T00:00:00.000Z"]
    rows = [{**one, "partition": n % 2, "timestamp": times[n % 2]} for n, one in enumerate(HOSTILE)]
    done = produce(cluster, "events", "--json", stdin="\n".join(map(json.dumps, rows)))
    told = json.loads(done.stdout)
    assert (told["topic"], told["records"]) == ("events", len(rows))
    assert told["metrics"]["record-send-total"] == len(rows)
    lines = kbatch("consume", cluster.path, "events", "--json").stdout
    Path("out.jsonl").write_text(lines)
    assert produce(cluster, "copy", "out.jsonl").stdout == "Wrote 5 records to copy.\n"
    assert records(cluster, "copy") == records(cluster)
    kept = [{name: one[name] for name in rows[0]} for one in records(cluster)]
    assert sorted(kept, key=str) == sorted(rows, key=str)


texts = st.one_of(st.none(), st.text(max_size=3))
lines_of_json = st.fixed_dictionaries(
    {},
    optional={
        "key": texts,
        "value": texts,
        "headers": st.lists(st.tuples(st.text(max_size=2), texts), max_size=2) | st.none(),
        "partition": st.integers(0, 3) | st.none(),
        "timestamp": st.sampled_from(
            [None, "2024-10-25T08:00:00.5+01:00", "2024-10-25T08:00:00.000999", "1729843200000",
             "2024-10-25", "2024-10-25 08:00:00Z"]
        ),
        "topic": st.sampled_from([None, "t"]),
        "offset": st.just(7),
    },
)  # fmt: skip


@given(st.lists(lines_of_json, min_size=1, max_size=6), st.data())
def test_arrow_and_line_by_line_read_the_same(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    names = {name: name for name in COLUMNS}
    lines = [json.dumps(row).encode() for row in rows]
    one_by_one = [inputs._record(line, names, is_strict=True) for line in lines]
    by_arrow = inputs._parsed(b"\n".join(lines) + b"\n", names, is_strict=True)
    assert by_arrow is not None

    def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {**row, **{n: row[n].encode() if isinstance(row[n], str) else row[n] for n in ("key", "value")},
             "headers": row["headers"] or []}
            for row in rows
        ]  # fmt: skip

    assert plain(by_arrow.to_pylist()) == plain(one_by_one)
    # Lines with bytes go another way, and come back to where they were.
    at = data.draw(st.integers(0, len(lines)))
    lines.insert(at, b'{"value": {"base64": "/w=="}}')
    mixed = inputs._parsed(b"\n".join(lines) + b"\n", names, is_strict=True)
    assert mixed is not None
    found = plain(mixed.to_pylist())
    assert found.pop(at)["value"] == b"\xff"
    assert found == plain(one_by_one)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"value": "x"', "it is no JSON object"),
        ("[1]", "it is no JSON object"),
        ('{"value": "x"}{"value": "y"}', "it is no JSON object"),
        ('{"value":\n"x"}', "it is no JSON object"),
        ('{"vale": "x"}', "unknown field 'vale'; accepted: key, value"),
        ('{"value": 5}', "'value' is 5; accepted: text, null or"),
        ('{"value": {"base64": "*"}}', "which is not base64"),
        ('{"value": "\\ud800"}', "has a lone surrogate"),
        ('{"value": "x", "headers": [["h"]]}', "accepted: pairs of a name and a value"),
        ('{"value": "x", "headers": [[null, "h"]]}', "a header's name"),
        ('{"value": "x", "partition": -1}', "'partition' is -1"),
        ('{"value": "x", "timestamp": "noon"}', "\"noon\"; accepted: milliseconds since 1970"),
        (b'{"value": "\xff"}', "it is not UTF-8 at byte 11"),
    ],
    ids=["cut", "list", "two", "two lines", "field", "number", "base64", "surrogate", "header", "name", "partition", "time", "utf-8"],
)  # fmt: skip
def test_a_bad_object_is_named_by_its_line(cluster: Cluster, line: str | bytes, said: str) -> None:
    data = line if isinstance(line, bytes) else line.encode()
    good = b'{"value": "a", "partition": 0}\n\n'
    done = kbatch("produce", cluster.path, "events", "--json", stdin=good + data + b"\n" + good)
    assert json.loads(done.stdout)["records"] == 1
    assert str(done.exception).startswith("stdin, line 3: ")
    assert said in str(done.exception)


# CSV and Parquet


def test_an_applications_own_objects_are_values_as_they_are_with_keys_from_a_field(
    cluster: Cluster,
) -> None:
    lines = ['{"id": "a",  "n": 1}', '{"n": {"id": 0}, "id": "é"}', '{"id": null}']
    Path("events.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    refused = kbatch("produce", cluster.path, "events", "events.jsonl")
    assert "--format lines" in str(refused.exception)
    assert "--key-field" in str(refused.exception)

    produce(cluster, "events", "events.jsonl", "--key-field", "id", "-p", "0")
    assert [(one["key"], one["value"]) for one in records(cluster)] == list(
        zip(["a", "é", None], lines, strict=True)
    )


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ([1, -2], ["1", "-2"]),
        (["1", 2], ["1", "2"]),
        ([1.5, True, [1, "é"]], ["1.5", "true", '[1, "é"]']),
        (["a\nb", ""], ["a\nb", ""]),
    ],
)
def test_a_field_that_is_no_text_is_a_key_as_json(
    cluster: Cluster, values: list[Any], keys: list[str]
) -> None:
    lines = "".join(json.dumps({"id": one, "more": [{}]}) + "\n" for one in values)
    produce(cluster, "events", "--json", "--key-field", "id", "-p", "0", stdin=lines)
    assert [one["key"] for one in records(cluster)] == keys


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"no": 1, "ID": 2}', "line 2: it has no field 'id'; its fields: no, ID"),
        ("", "line 2: it is no JSON object"),
        ('{"id": 1}{"id": 2}', "line 2: it is no JSON object"),
        ('{"id": "\\ud800"}', "line 2: 'id' has a lone surrogate"),
    ],
)
def test_a_line_without_the_field_is_named_and_those_before_it_are_written(
    cluster: Cluster, line: str, said: str
) -> None:
    lines = f'{{"id": 1}}\n{line}\n{{"id": 3}}\n'
    done = kbatch("produce", cluster.path, "events", "--key-field", "id", stdin=lines)
    assert said in str(done.exception)
    assert [one["key"] for one in records(cluster)] == ["1"]


def test_a_row_of_csv_is_a_record(cluster: Cluster) -> None:
    Path("in.csv").write_text(
        "\ufeffid,key,value,timestamp,headers,partition\n"
        '1,"a\nb","say ""hi""",2024-10-25T08:00:00Z,"[[""h"", null]]",1\n'
        '2,"",,1729843200001,,1\n'
        '3,,"",2024-10-25 08:00:00.002,[],1\n'
    )
    done = produce(cluster, "events", "in.csv")
    assert done.stderr == "in.csv: left out 1 column: id\n"
    time = "2024-10-25T08:00:00.00{}Z"
    assert [list(one.values())[2:] for one in records(cluster)] == [
        [time.format(0), "a\nb", 'say "hi"', [["h", None]]],
        [time.format(1), "", None, []],
        [time.format(2), None, "", []],
    ]


def test_a_single_row_of_csv_may_have_headers(cluster: Cluster) -> None:
    Path("in.csv").write_text('value,headers\na,"[[""h"",""x""]]"\n')
    produce(cluster, "events", "in.csv")
    assert [one["headers"] for one in records(cluster)] == [[["h", "x"]]]


def test_a_row_of_one_column_may_be_empty(cluster: Cluster) -> None:
    Path("in.csv").write_text("value\na\n\nb\n")
    produce(cluster, "events", "in.csv")
    assert [one["value"] for one in records(cluster)] == ["a", None, "b"]


def test_a_column_that_looks_misspelt_is_warned_about_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    Path("in.csv").write_text("kye,value\na,1\nb,2\n")
    done = produce(cluster, "events", "in.csv")
    assert done.stderr.endswith("in.csv: left out 1 column: kye\n")
    (warning,) = [r.getMessage() for r in caplog.records if "kye" in r.getMessage()]
    assert warning.startswith("column 'kye' is ignored; did you mean 'key'?")


def test_columns_are_chosen_by_name(cluster: Cluster) -> None:
    Path("a.csv").write_text("id,name\n1,x\n2,NULL\n")
    produce(cluster, "events", "a.csv", "--columns", "key=id,value=name", "--null-marker", "NULL")
    Path("b.jsonl").write_text('{"id": "3", "name": "z", "more": [1]}\n')
    produce(cluster, "events", "b.jsonl", "--columns", "key=id,value=name")
    parquet.write_table(pa.table({"id": ["4"], "name": [b"\xff"], "value": [1]}), "c.parquet")
    produce(cluster, "events", "c.parquet", "--columns", "key=id,value=name")
    assert sorted(pairs(cluster), key=str) == [
        ("1", "x"), ("2", None), ("3", "z"), ("4", {"base64": "/w=="}),
    ]  # fmt: skip


def test_rows_of_parquet_keep_partition_time_and_topic(cluster: Cluster) -> None:
    moment = datetime.datetime(2024, 10, 25, 8, tzinfo=datetime.UTC)
    is_view = int(pa.__version__.partition(".")[0]) >= 22  # which older ones write none of
    table = pa.table(
        {
            "value": pa.array(["x", None], pa.string_view() if is_view else pa.large_string()),
            "partition": pa.array([1, 0], pa.int32()),
            "offset": [7, 8],
            "timestamp": [moment, moment],
            "headers": pa.array([[("h", b"1")], None], builders.HEADERS_TYPE),
            "topic": pa.array(["events", "copy"]).dictionary_encode(),
        }
    )
    parquet.write_table(table, "in.parquet")
    done = produce(cluster, "-", "in.parquet")
    assert (done.stdout, done.stderr) == ("Wrote 2 records.\n", "")
    expected = {"offset": 0, "timestamp": "2024-10-25T08:00:00.000Z", "key": None}
    assert records(cluster) == [{"partition": 1, **expected, "value": "x", "headers": [["h", "1"]]}]
    assert records(cluster, "copy") == [{"partition": 0, **expected, "value": None, "headers": []}]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("in.csv", "value,n\na,1\nb\nc,3\n", "row 3: it has 1 columns, and the first row has 2"),
        ("in.csv", "value,partition\na,0\nb,x\n", "row 3: 'partition' is \"x\"; accepted: the number"),
        ("in.csv", "value,timestamp\na,0\nb,noon\n", "row 3: 'timestamp' is \"noon\""),
        ("in.csv", "value,headers\na,\nb,h=x\n", "row 3: 'headers' are \"h=x\"; accepted: pairs"),
        ("in.csv", "vale,key\na,b\n", "no column 'value': the first row has vale, key"),
        ("in.csv", "value,value\na,b\n", "in.csv has two columns 'value'"),
        ("in.csv", "", "is empty"),
        ("in.parquet", "PAR1", "in.parquet cannot be read as Parquet"),
    ],
    ids=["short", "partition", "time", "headers", "no value", "twice", "empty", "no parquet"],
)  # fmt: skip
def test_a_bad_row_is_named_and_those_before_it_are_written(
    cluster: Cluster, name: str, content: str, said: str
) -> None:
    Path(name).write_text(content)
    done = kbatch("produce", cluster.path, "events", name)
    assert done.exit_code == 1
    assert said in str(done.exception)
    assert [one["value"] for one in records(cluster)] == (["a"] if "row 3" in said else [])


@pytest.mark.parametrize(
    ("name", "content", "topic", "said"),
    [
        (
            "in.jsonl",
            '{"value": "a", "partition": 0}\n\n{"value": "b", "partition": 9}\n{"value": "c"}\n',
            "events",
            "in.jsonl, line 3: column 'partition' holds 9",
        ),
        (
            "in.csv",
            "value,timestamp\na,0\nb,1729843200000000\nc,0\n",
            "events",
            "in.csv, row 3: a record for topic 'events' has the time 1729843200000000 ms",
        ),
        (
            "in.parquet",
            {"value": ["a", "b", "c"], "topic": ["events", "absent", "events"]},
            "-",
            "in.parquet, row 2: topic 'absent' does not exist",
        ),
    ],
    ids=["partition", "time", "topic"],
)
def test_a_row_that_the_producer_refuses_is_named_and_those_before_it_are_written(
    cluster: Cluster, name: str, content: Any, topic: str, said: str
) -> None:
    if isinstance(content, dict):
        parquet.write_table(pa.table(content), name)
    else:
        Path(name).write_text(content)
    done = kbatch("produce", cluster.path, topic, name, "--no-create")
    assert done.exit_code == 1
    assert str(done.exception).startswith(said)
    assert done.stdout.startswith("Wrote 1 record")
    assert [one["value"] for one in records(cluster)] == ["a"]


@pytest.mark.parametrize(
    ("name", "content", "words", "said"),
    [
        ("in.csv", b"value,topic\nx,caf\xe9\n", (), "in.csv, after row 1: "),
        ("in.parquet", {"value": [1]}, (), "column 'value' is int64; accepted: "),
        (
            "in.parquet",
            {"value": ["v"], "headers": ["h"]},
            ("-H", "a=1"),
            "column 'headers' is string, to which --header cannot add; accepted: list<",
        ),
    ],
    ids=["no utf-8", "value", "headers"],
)
def test_what_arrow_cannot_convert_is_an_error_of_the_input(
    cluster: Cluster, name: str, content: Any, words: tuple[str, ...], said: str
) -> None:
    if isinstance(content, dict):
        parquet.write_table(pa.table(content), name)
    else:
        Path(name).write_bytes(content)
    done = kbatch("produce", cluster.path, "events", name, *words)
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith(said)
    assert records(cluster) == []


# Where to, and how


def test_a_topic_and_its_cluster_are_created_unless_that_is_ruled_out(cluster: Cluster) -> None:
    for path in (cluster.path, "./new"):
        done = kbatch("produce", path, "absent", "--no-create", stdin="x\n")
        assert done.exit_code == 1
        assert "'absent' does not exist" in str(done.exception) or path == "./new"
    for create in ((), ("--create",)):
        done = kbatch(
            "produce", "./new", "first", *create, "-z", "zstd", "--acks", "1", stdin="x\n"
        )
        assert done.stdout == "Wrote 1 record to first.\n"
    assert [one["value"] for one in records(Cluster("new"), "first")] == ["x", "x"]


def test_a_real_cluster_is_written_to_as_a_folder_is(cluster: Cluster) -> None:
    with cluster, cluster.serve() as server:
        address = server.bootstrap_servers
        for topic in ("events", "new"):
            done = kbatch(
                "produce", address, topic, "-K", ":", "--create", "-X", "client.id=a", stdin="k:v\n"
            )
            assert (done.exit_code, done.stdout) == (0, f"Wrote 1 record to {topic}.\n")
        close_idle_clients()
    for topic in ("events", "new"):
        assert [(one["key"], one["value"]) for one in records(Cluster(cluster.path), topic)] == [
            ("k", "v")
        ]


def test_a_topic_that_is_missing_and_not_created_is_told_how_to_create(cluster: Cluster) -> None:
    done = kbatch("produce", cluster.path, "new", "--no-create", stdin="v\n")
    assert f"; `kbatch create-topic {cluster.path} new` creates it, or --create" in str(
        done.exception
    )
    with cluster.serve(auto_create=False) as server:
        address = server.bootstrap_servers
        done = kbatch("produce", address, "new", stdin="v\n")
        assert "topic 'new' does not exist" in str(done.exception)
        assert f"; `kbatch create-topic {address} new` creates it, or --create" in str(
            done.exception
        )
        assert kbatch("produce", address, "new", "--create", stdin="v\n").exit_code == 0
        done = kbatch("produce", address, "new", "-p", "7", stdin="v\n")
        assert "create-topic" not in str(done.exception)
        close_idle_clients()
    assert "new" in cluster.topic_names()


def test_options_of_the_producer_may_be_given_as_kcat_gives_them(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "producer.properties"
    file.write_text("linger.ms=1")
    for words in (["-X", "linger.ms=1"], ["--command-config", file]):
        assert kbatch("produce", cluster.path, "events", *words, stdin="v\n").exit_code == 0
    done = kbatch("produce", cluster.path, "events", "-X", "linger.ms=soon", stdin="v\n")
    assert "linger.ms" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--json", "-K", ":"], "--key-separator is for lines, and stdin is read as json"),
        (["--columns", "key=a"], "--columns is for json and csv and parquet"),
        (["--format", "csv", "--columns", "kye=a"], "'kye' is not a column of records"),
        (["-H", "x"], "'x' is not NAME=VALUE"),
        (["-H", b"\xff=x".decode(errors="surrogateescape")], "is not UTF-8"),
        (["-K", r"\x"], "has an escape"),
        (["--config", "acks=1"], "'acks' is given by --acks"),
        (["--config", "linger.ms=1", "--config", "linger_ms=2"], "'linger.ms' is given twice"),
        (["absent.csv"], "'absent.csv' does not exist"),
    ],
    ids=["separator", "columns", "column", "header", "header's name", "escape", "acks", "twice", "file"],
)  # fmt: skip
def test_usage_errors_say_what_is_wrong(cluster: Cluster, words: list[str], said: str) -> None:
    done = kbatch("produce", cluster.path, "events", *words)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_an_interrupt_writes_what_was_read_and_progress_shows_on_a_terminal(
    cluster: Cluster,
) -> None:
    ours, terminal = pty.openpty()
    shown: list[bytes] = []

    def look() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(ours, 1 << 16):
                shown.append(data)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    command = [sys.executable, "-m", "spark_kbatch", "produce", cluster.path, "events", "-p", "0"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=terminal
    ) as running:
        os.close(terminal)
        assert running.stdin is not None
        running.stdin.write(b"first\nsecond\nunfinished")
        running.stdin.flush()
        until = time.monotonic() + 60
        while cluster.describe("events")[0].offsets.high_watermark < 2:
            assert running.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out = running.stdout.read() if running.stdout else b""
        assert running.wait(60) == 130
    looking.join(60)
    os.close(ours)
    told = b"".join(shown).decode()
    assert out == b"Wrote 2 records to events.\n"
    assert "kbatch: interrupted" in told
    assert "stdin to events" in told
    assert "records, " in told
    assert [one["value"] for one in records(cluster)] == ["first", "second"]
