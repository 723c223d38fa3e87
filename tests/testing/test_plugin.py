"""The pytest plugin, through pytest: what its fixtures give a user's tests, and what a run shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import spark_kbatch
import spark_kbatch.testing.report
import spark_kbatch.testing.sessions
from spark_kbatch.kernels import jit, records, routing
from tests.conftest import REPOSITORY

pytest_plugins = ["pytester"]

# Not by its entry point, which the environment may not know yet.
WORDS = ("-p", "pytest_kbatch", "-p", "no:cacheprovider", "-q")


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """Load what the inner runs use: afterwards pytester forgets the modules that such a run has loaded."""
    records.load()
    routing.load()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


USE = """
import json, threading
import pytest
from confluent_kafka import Consumer, Producer
from spark_kbatch import open as open_cluster
from spark_kbatch.errors import ConfigError

def sent(server, topic, value):
    problems = []
    producer = Producer({"bootstrap.servers": server.bootstrap_servers})
    producer.produce(topic, value, on_delivery=lambda error, _: problems.append(error))
    assert producer.flush(20) == 0
    return problems

def test_a_topic_is_filled_and_read(kbatch_topic, kbatch_records, kbatch_cluster, kbatch_path):
    topic = kbatch_topic("or/ders", [("a", {"n": 1}), ("b", None)], config={"retention.ms": -1})
    other = kbatch_topic(partitions=2)
    exact = kbatch_topic("exact", unique=False, rows=[{"value": "v", "partition": 2}])

    assert str(kbatch_cluster.path) == kbatch_path
    assert topic.startswith("or-ders-") and sorted([topic, other, exact]) == kbatch_cluster.topic_names()
    assert [len(kbatch_cluster.partitions(name)) for name in (topic, other, exact)] == [1, 2, 3]
    assert kbatch_cluster.topic(topic).config.retention_ms == -1
    rows = kbatch_records(topic, 2, value=json.loads)
    assert [(row["key"], row["value"], row["offset"], row["headers"]) for row in rows] == [
        ("a", {"n": 1}, 0, []), ("b", None, 1, [])
    ]
    assert [row["partition"] for row in kbatch_records(exact, 1)] == [2]
    assert kbatch_records(other, 0) == []

def test_records_are_waited_for(kbatch_topic, kbatch_records):
    topic = kbatch_topic(rows=["one"])
    later = threading.Timer(0.05, kbatch_topic.send, [topic, [("k", b"\\xff")]])
    later.start()
    assert [row["value"] for row in kbatch_records(topic, 2, value=bytes)] == [b"one", b"\\xff"]
    later.join()
    with pytest.raises(ConfigError, match="the value at offset 1 of .*-0 is .*value=bytes"):
        kbatch_records(topic, 2)

@pytest.mark.parametrize("run", [1, 2])
def test_a_server_answers_as_usual_in_the_next_test(kbatch_server, kbatch_topic, kbatch_records, run):
    topic = kbatch_topic(rows=["one"])
    assert sent(kbatch_server, topic, "two") == [None]
    assert [row["value"] for row in kbatch_records(topic, 2)] == ["one", "two"]
    kbatch_server.intercept("Produce", lambda request: request.drop())

@pytest.fixture(params=["kbatch_server", "kbatch_noserver"])
def kafka(request):
    return request.getfixturevalue(request.param)

def test_of_both(kafka, kbatch_topic, kbatch_records):
    topic = kbatch_topic("both", rows=["one"])
    assert sent(kafka, topic, "two") == [None]
    assert [row["value"] for row in kbatch_records(topic, 2)] == ["one", "two"]
    assert topic in kafka.cluster.topic_names()
    kafka.intercept("Produce", lambda request: None)

def test_that_names_the_cluster(kbatch_server, kbatch_cluster, kbatch_topic, kbatch_records):
    with pytest.raises(ConfigError, match="kbatch_server and kbatch_cluster: .* on=kbatch_server"):
        kbatch_topic()
    with pytest.raises(ConfigError, match="on is a str; accepted: kbatch_cluster"):
        kbatch_topic(on=kbatch_server.bootstrap_servers)
    topic = kbatch_topic(rows=["here"], on=kbatch_cluster)
    assert kbatch_cluster.topic_names() == [topic]
    assert kbatch_records(topic, on=kbatch_cluster)[0]["value"] == "here"

class Session:
    dataSource = None

@pytest.fixture(scope="session")
def spark_session():
    return Session()

@pytest.mark.parametrize("run", [1, 2])
def test_that_uses_spark(kbatch_path, spark_session, run):
    assert spark_kbatch.testing.sessions.registered == [spark_session]

import spark_kbatch.testing.sessions
"""


def folders_of_servers() -> list[Path]:
    """Return the folders that `kbatch_server` has made and left in runs of pytester."""
    return list(
        Path(os.environ["PYTEST_DEBUG_TEMPROOT"]).glob("*/pytest-[0-9]*/kbatch-server[0-9]*")
    )


def test_fixtures_serve_a_users_tests_on_a_folder_a_server_and_a_real_broker(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[object] = []
    monkeypatch.setattr(spark_kbatch.testing.sessions, "register_source", registered.append)
    monkeypatch.setattr(spark_kbatch.testing.sessions, "registered", registered, raising=False)
    pytester.makepyfile(USE)

    alone = pytester.runpytest_inprocess(*WORDS, "-rs")
    alone.assert_outcomes(passed=8, skipped=1)
    alone.stdout.fnmatch_lines(
        ["*no real broker: name one with --kbatch-bootstrap-servers=HOST:PORT"]
    )

    assert not folders_of_servers(), "its records are deleted"

    # A server of ours stands in for a real broker.
    with spark_kbatch.open(tmp_path / "other", create=True) as other, other.serve() as server:
        registered.clear()
        address = server.bootstrap_servers
        both = pytester.runpytest_inprocess(*WORDS, "-rs", f"--kbatch-bootstrap-servers={address}")
        left = other.topic_names()
    both.assert_outcomes(passed=8, skipped=1)
    both.stdout.fnmatch_lines([f"*requests to {address}, a real broker, cannot be intercepted"])
    assert left == [], "topics on a real broker are deleted after their test"


INTERCEPTING = """
import threading
import pytest
from spark_kbatch import connect

@pytest.fixture
def client(kbatch_server):
    with connect(kbatch_server.bootstrap_servers) as cluster:
        yield cluster

def acks_are_one(request):
    assert request.body.acks == 1, "the client asks for all"

@pytest.mark.parametrize("run", [1, 2])
def test_asserts_there(kbatch_server, kbatch_topic, client, run):
    topic = kbatch_topic()
    kbatch_server.intercept("Produce", acks_are_one)
    with client.producer() as producer:
        assert producer.send(topic, "v").result(10).offset == 0

def test_calls_what_pytest_has(kbatch_server, client):
    kbatch_server.intercept("Metadata", lambda request: pytest.fail("not like this"))
    assert client.topic_names() is not None

def test_fails_by_itself(kbatch_server, client):
    kbatch_server.intercept("Metadata", lambda request: request.fial("NO_SUCH_ERROR"))
    assert client.topic_names() is None

def test_is_answered_as_usual_afterwards(kbatch_server, client):
    assert client.topic_names() is not None

@pytest.fixture
def late(client):
    yield
    client.topic_names()

def test_of_a_request_that_comes_after_it(kbatch_server, late):
    kbatch_server.intercept("Metadata", lambda request: 1 // 0)
"""


def test_an_exception_in_a_function_that_intercepts_fails_its_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(INTERCEPTING)

    run = pytester.runpytest_inprocess(*WORDS, "--show-capture=no", "--tb=short")

    run.assert_outcomes(failed=4, passed=2, errors=2)
    shown = run.stdout.str()
    assert shown.count('assert request.body.acks == 1, "the client asks for all"') == 2
    assert shown.count("E   AssertionError: the client asks for all") == 2
    assert shown.count("E   Failed: not like this") == 1
    assert (
        shown.count("E   AttributeError: 'InterceptedRequest' object has no attribute 'fial'") == 1
    )
    assert shown.count("E   ZeroDivisionError") == 1
    assert "testing/servers.py" not in shown


FROZEN = """
import contextlib
import datetime
import time
import pytest
import time_machine
from confluent_kafka import Producer
from freezegun import freeze_time

@contextlib.contextmanager
def in_all_modules(at, tick):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("time", "monotonic", "perf_counter"):
            patch.setattr(time, name, at.timestamp)
            patch.setattr(time, f"{name}_ns", lambda: int(at.timestamp()) * 10**9)
        yield

@pytest.fixture(params=[1.6e9, 2.5e9], ids=["past", "future"])
def at_s(request):
    return request.param

@pytest.fixture(params=[in_all_modules, freeze_time, time_machine.travel])
def frozen(request, at_s):
    with request.param(datetime.datetime.fromtimestamp(at_s, datetime.UTC), tick=False):
        yield at_s

def test_a_wait_ends(kbatch_topic, kbatch_records, frozen):
    topic = kbatch_topic("orders", ["1"])
    with pytest.raises(pytest.fail.Exception, match="has 1 record"):
        kbatch_records(topic, 2, timeout=0.3)
    assert kbatch_records(topic)[0]["timestamp"].timestamp() == frozen

def test_a_producer_sends_and_closes(kbatch_cluster, kbatch_records, frozen):
    with kbatch_cluster.producer(linger_ms=20) as producer:
        assert producer.send("t", "1").result(10).offset == 0
        last = producer.send("t", "2")
    assert last.result(0).offset == 1

def test_a_server_takes_records_of_clients_that_have_the_real_time(
    kbatch_server, kbatch_topic, kbatch_records, frozen
):
    topic, problems = kbatch_topic("orders"), []
    producer = Producer({"bootstrap.servers": kbatch_server.bootstrap_servers})
    producer.produce(topic, "1", on_delivery=lambda error, _: problems.append(error))
    assert producer.flush(10) == 0
    assert problems == [None]
    assert kbatch_records(topic, timeout=5)[0]["value"] == "1"
"""


def test_a_frozen_clock_stops_no_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FROZEN)

    pytester.runpytest_inprocess(*WORDS).assert_outcomes(passed=18)


WRONG = """
def test_rows(kbatch_topic):
    kbatch_topic("orders", [{"vale": 1}])

def test_a_table(kbatch_topic):
    kbatch_topic("orders", {"vale": [1]})

def test_a_file(kbatch_topic):
    kbatch_topic("orders", json_lines="nothing.json")

def test_a_topic(kbatch_topic):
    kbatch_topic.send("no/topic", ["v"])

def test_a_count(kbatch_records):
    kbatch_records("orders", -1)

def test_a_kind_of_request(kbatch_server):
    kbatch_server.intercept("Prodce", None)
"""


def test_an_error_about_what_a_test_gave_ends_at_the_tests_own_line(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(WRONG)

    run = pytester.runpytest_inprocess(*WORDS, "--tb=short")

    run.assert_outcomes(failed=6)
    frames = [line for line in run.outlines if re.match(r"\S+:\d+: in ", line)]
    assert [frame.partition(": in ")[2] for frame in frames] == [
        "test_rows", "test_a_table", "test_a_file", "test_a_topic", "test_a_count", "test_a_kind_of_request",
    ]  # fmt: skip


FAILING = r"""
def test_fails(kbatch_topic, kbatch_records, kbatch_cluster):
    topic = kbatch_topic("words", [("k", "one"), ("k", "two\x1b[31m"), (None, "x" * 1000)])
    kbatch_cluster.create_topic("made-by-the-job")
    kbatch_records(topic, 4, **{timeout})

def test_has_no_topic(kbatch_records, kbatch_cluster):
    kbatch_cluster.create_topic("wrods")
    kbatch_records("words", **{timeout})

def test_has_none(kbatch_records):
    kbatch_records("words", 2, **{timeout})

def test_passes(kbatch_topic):
    kbatch_topic("unseen", ["v"])
"""


def test_a_failed_test_shows_the_last_records_of_its_topics(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FAILING.replace("{timeout}", "{}"))
    pytester.makepyprojecttoml("[tool.pytest]\nkbatch_timeout = 0.05\nkbatch_report_rows = 2\n")

    by_ini = pytester.runpytest_inprocess(*WORDS)
    by_ini.assert_outcomes(passed=1, failed=3)
    by_ini.stdout.fnmatch_lines(
        [
            "E *Failed: after 0.05 s topic 'words-*' has 3 records; expected: 4",
            "*kbatch: last records, at call*",
            "words-*, in */kbatch: 3 offsets, the last 2 records:",
            "  at   time                      key  value  headers",
            r"  0:1  20*T*Z  k    two\x1b[[]31m",
            r"  0:2  20*T*Z  \N   " + "x" * 300 + "... (1000 bytes)",
            "made-by-the-job, in */kbatch: 0 records",
            "E *Failed: after 0.05 s there is no topic 'words'; expected: 1 record in it. Topics that exist: wrods",
            "E *Failed: after 0.05 s there is no topic 'words'; expected: 2 records in it. Topics that exist: none",
        ]
    )
    by_ini.stdout.no_fnmatch_line("*unseen*")
    by_ini.stdout.no_fnmatch_line("*  0:0  *")

    by_command_line = pytester.runpytest_inprocess(
        *WORDS, "--kbatch-timeout=0.03", "--kbatch-report-rows=0"
    )
    by_command_line.stdout.fnmatch_lines(["*after 0.03 s topic 'words-*"])
    by_command_line.stdout.no_fnmatch_line("*last records*")

    pytester.makepyfile(FAILING.replace("{timeout}", "{'timeout': 0.02}"))
    by_argument = pytester.runpytest_inprocess(*WORDS, "--kbatch-timeout=5")
    by_argument.stdout.fnmatch_lines(["*after 0.02 s topic 'words-*"])

    pytester.makepyprojecttoml("[tool.pytest.ini_options]\nkbatch_timeout = 'soon'\n")
    refused = pytester.runpytest_inprocess(*WORDS)
    refused.stderr.fnmatch_lines(["*kbatch_timeout in the ini file is no number: *'soon'*"])
    assert refused.ret == pytest.ExitCode.USAGE_ERROR


def test_a_topic_that_is_missing_is_told_at_once_where_no_record_is_waited_for(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("""
        def test_it(kbatch_records):
            assert kbatch_records("words", 0) == []
    """)
    run = pytester.runpytest_inprocess(*WORDS)
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(
        ["E *Failed: there is no topic 'words'; expected: 0 records in it. Topics that exist: none"]
    )


UNREADABLE = """
import shutil

def test_loses_its_folder(kbatch_path, kbatch_cluster, kbatch_topic):
    kbatch_topic("lost", ["v"])
    shutil.rmtree(kbatch_path)
    assert False

def test_has_a_time_in_microseconds(kbatch_topic):
    late = {"value": "v", "timestamp": 1_729_843_200_000_000}
    kbatch_topic("late", [late], config={"message.timestamp.after.max.ms": 2**63 - 1})
    assert False

def test_is_on_a_real_broker(kbatch_noserver, kbatch_topic):
    kbatch_topic("far", ["v"])
    assert False

def test_passes():
    pass
"""


def test_what_a_report_cannot_show_is_a_line_of_it_and_the_session_goes_on(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    pytester.makepyfile(UNREADABLE)

    with spark_kbatch.open(tmp_path / "other", create=True) as other, other.serve() as server:
        address = server.bootstrap_servers
        run = pytester.runpytest_inprocess(*WORDS, f"--kbatch-bootstrap-servers={address}")

    run.assert_outcomes(passed=1, failed=3)
    run.stdout.fnmatch_lines(
        [
            "topics in */kbatch: *",
            "lost-*, in */kbatch: *",
            "  0:0  1729843200000000  \\N   v",
            f"far-*, in {address}: 1 record",
        ]
    )


def test_partitions_come_from_argument_command_line_and_ini_file(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("""
        def test_counts(kbatch_topic, kbatch_server):
            made = [kbatch_topic(), kbatch_topic(partitions=5)]
            print("counts", [len(kbatch_server.cluster.partitions(name)) for name in made])
    """)
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\nkbatch_partitions = 3\n")

    words = (*WORDS, "-s")
    pytester.runpytest_inprocess(*words).stdout.fnmatch_lines(["*counts [[]3, 5]*"])
    given = pytester.runpytest_inprocess(*words, "--kbatch-partitions=4")
    given.stdout.fnmatch_lines(["*counts [[]4, 5]*"])


def test_compiling_is_said_before_and_after(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit._Spent, "compiling_s", 1.0)
    pytester.makepyfile("""
        from spark_kbatch.kernels import jit

        def compile():
            jit.logger.info("compiling the kernel %s into %s, once on this machine", "write_headers", "/cache")
            jit._Spent.compiling_s += 0.6

        def test_one(kbatch_path): compile()
        def test_two(kbatch_path): compile()
    """)

    shown = pytester.runpytest_inprocess(*WORDS).stdout.lines

    said = [line for line in shown if "compil" in line]
    assert said == [
        "kbatch: compiling the kernel write_headers into /cache, once on this machine; this takes some seconds",
        "kbatch: compiled its kernels in 1.2 s; later sessions load them",
    ]


def test_compiling_shortens_no_waiting_for_records(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("""
        import threading

        def test_it(kbatch_topic, kbatch_records, kbatch_cluster):
            topic = kbatch_topic("words")

            def write():
                with kbatch_cluster.producer() as producer:
                    producer.send(topic, value="v")

            late = threading.Timer(0.3, write)
            late.start()
            kbatch_records(topic, 1, timeout=0.01)
            late.join()
    """)
    at = iter([0.0, 0.0])  # as the session begins, as the test begins to wait
    monkeypatch.setattr(jit, "compiling_s", lambda: next(at, 20.0))
    pytester.runpytest_inprocess(*WORDS).assert_outcomes(passed=1)


def test_a_run_that_uses_no_fixture_loads_nothing_of_the_package(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("""
        import sys

        def test_it():
            heavy = {"spark_kbatch", "numba", "numpy", "pyarrow", "pyspark", "kafka"}
            assert heavy.isdisjoint(name.partition(".")[0] for name in sys.modules)
    """)
    ran = pytester.runpytest_subprocess(*WORDS)
    ran.assert_outcomes(passed=1)
    assert "kbatch" not in ran.stdout.str()


def test_spark_is_told_to_run_this_python_during_a_run_unless_another_is_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("""
        import os

        def test_it():
            print("it is", os.environ["PYSPARK_PYTHON"])
    """)
    for given, expected in {"": sys.executable, "/another/python3": "/another/python3"}.items():
        monkeypatch.setenv("PYSPARK_PYTHON", given)
        ran = pytester.runpytest_inprocess(*WORDS, "-s")
        ran.stdout.fnmatch_lines([f"it is {expected}"])
        assert os.environ.get("PYSPARK_PYTHON", "") == given


IMPORT_S = """
import time
import pytest
start = time.process_time()
import pytest_kbatch
print(time.process_time() - start)
"""


def test_importing_the_plugin_takes_less_than_20_ms() -> None:
    """Of the processor, with all that it imports; in a new process each time, since others may disturb one."""

    def spent_s() -> float:
        done = subprocess.run(
            [sys.executable, "-c", IMPORT_S],
            cwd=REPOSITORY, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return float(done.stdout)

    times = []
    while len(times) < 3 and min(times, default=1) >= 0.02:
        times.append(spent_s())
    assert min(times) < 0.02, times


@pytest.mark.slow
def test_workers_of_xdist_keep_to_themselves(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import os
        from pathlib import Path

        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_it(kbatch_server, kbatch_topic, kbatch_records, number):
            topic = kbatch_topic("words", [str(number)])
            assert kbatch_records(topic)[0]["value"] == str(number)
            used = Path("used") / os.environ["PYTEST_XDIST_WORKER"]
            used.parent.mkdir(exist_ok=True)
            used.write_text(str(kbatch_server.cluster.path))

        def test_fails(kbatch_topic):
            kbatch_topic("seen", ["v"])
            assert False
    """)

    ran = pytester.runpytest_subprocess(*WORDS, "-p", "xdist", "-n", "2", "--dist", "each")

    ran.assert_outcomes(passed=8, failed=2)
    ran.stdout.fnmatch_lines(["seen-*, in */kbatch: 1 record"])
    folders = [path.read_text() for path in (pytester.path / "used").iterdir()]
    assert len(set(folders)) == len(folders) == 2


@pytest.mark.slow
def test_kernels_are_compiled_once_for_all_workers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_it(kbatch_topic, kbatch_records, number):
            assert kbatch_records(kbatch_topic(rows=["v"] * 20_000))
    """)
    pytester._monkeypatch.setenv("NUMBA_CACHE_DIR", str(pytester.path / "kernels"))

    first = pytester.runpytest_subprocess(*WORDS, "-p", "xdist", "-n", "2")
    compiled = {
        path: path.stat().st_mtime_ns for path in (pytester.path / "kernels").rglob("*.nbc")
    }
    again = pytester.runpytest_subprocess(*WORDS)

    first.assert_outcomes(passed=4)
    first.stdout.fnmatch_lines(["kbatch: compiled its kernels in * s; later sessions load them"])
    again.assert_outcomes(passed=4)
    again.stdout.no_fnmatch_line("*compil*")
    assert compiled
    assert compiled == {path: path.stat().st_mtime_ns for path in compiled}


def test_the_plugin_is_found_by_its_entry_point(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found by the entry point that pyproject.toml declares."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    told = pytester.mkdir("site") / "kbatch_as_installed-1.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: kbatch-as-installed\nVersion: 1\n")
    group = "pytest11"
    lines = [f"{name} = {value}" for name, value in project["entry-points"][group].items()]
    (told / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(REPOSITORY), str(told.parent))))
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")

    shown = pytester.runpytest_subprocess("--fixtures", "-p", "no:cacheprovider")

    names = ("path", "cluster", "topic", "records", "server", "noserver")
    shown.stdout.fnmatch_lines_random([f"kbatch_{name} *-- *pytest_kbatch.py:*" for name in names])


def test_the_records_of_the_server_are_kept_for_a_look_if_a_test_has_failed(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        def test_fails(kbatch_server, kbatch_topic):
            kbatch_topic("kept", rows=["one"], unique=False)
            assert False
        """
    )
    pytester.runpytest_inprocess(*WORDS).assert_outcomes(failed=1)
    (folder,) = folders_of_servers()
    with spark_kbatch.open(folder / "cluster") as cluster:
        assert cluster.read("kept", columns=["value"]).read_all().to_pydict() == {"value": [b"one"]}
