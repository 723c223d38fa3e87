"""Public methods, called with invalid arguments of all kinds.

Each call succeeds or raises one of our errors that names the argument. After an error no file has changed,
and open objects go on working. A new public method fails here until it has a call in the tables below.
"""

from __future__ import annotations

import datetime
import decimal
import inspect
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import spark_kbatch
from spark_kbatch import Cluster, TopicPartition
from spark_kbatch.errors import ClosedError, ConfigError, KBatchError, ProducerClosedError
from spark_kbatch.options.producer import PRODUCER_OPTIONS
from spark_kbatch.producer.futures import ArrowFuture, RecordFuture
from spark_kbatch.producer.producer import Producer
from tests.support import builders, draws

SOON = 20.0

# Called by our own code only.
INTERNAL_OF_CLUSTERS = {"over"}
INTERNAL_OF_PRODUCERS = {"abandon", "append", "ensure_no_callback", "written"}
INTERNAL_OF_FUTURES = {"add", "close", "count_down"}

# A valid call of each method, with all its arguments by name.
EVENTS = ("events", 0)
CALLS: dict[str, dict[str, Any]] = {
    "alter_topic": {"name": "events", "config": {"retention.ms": 5}},
    "close": {},
    "alter_group_offsets": {"group_id": "app", "offsets": {EVENTS: 1}},
    "collect_garbage": {"topics": ["events"], "staging_retention_ms": 60_000, "dry_run": False},
    "delete_group": {"group_id": "app"},
    "commit_numbers": {},
    "create_partitions": {"name": "events", "total_count": 4},
    "create_topic": {
        "name": "new", "partitions": 1, "replication_factor": 1, "config": {}, "exist_ok": True,
        "num_partitions": None,
    },
    "delete_records": {"offsets": {EVENTS: 1}},
    "delete_topic": {"name": "events"},
    "describe": {"topics": ["events"]},
    "export": {"topic": "events", "to": "exported"},
    "find_commit": {"number": 0},
    "first_commit": {},
    "follow": {
        "topics": "events", "partitions": [0], "start": "earliest", "columns": ["value", "offset"], "text": "replace",
        "isolation_level": "read_committed", "max_decompressed_batch_bytes": 1 << 20, "registry": None,
        "where": "offset >= 0", "group": "app", "stop_at": 3, "timeout": 5, "stop": None,
    },
    "groups": {},
    "has": {"part": "groups"},
    "history": {"topic": "events", "numbers": range(1)},
    "list_offsets": {"wanted": {EVENTS: "latest"}, "isolation_level": "read_committed"},
    "log_dirs": {},
    "metrics": {},
    "partitions": {"topic": "events"},
    "peek": {
        "topic": "events", "partitions": [0], "start": None, "end": 3, "count": 2, "where": "offset >= 0",
        "isolation_level": "read_committed", "max_bytes": 1 << 20, "registry": None,
    },
    "producer": {},
    "read": {
        "topics": "events", "partitions": [0], "start": "earliest", "end": 3, "last": 2,
        "columns": ["value", "offset"], "text": "replace",
        "isolation_level": "read_committed", "max_decompressed_batch_bytes": 1 << 20, "registry": None,
        "where": "offset >= 0",
    },
    "repair": {"partitions": [EVENTS], "dry_run": False},
    "elect_unclean": {"topic": "events", "dry_run": False},
    "replace_log_dir": {"node_id": 0, "unclean": False, "dry_run": False},
    "replicas": {"topics": ["events"]},
    "replicate": {"topics": ["events"]},
    "running_server": {},
    "serve": {
        "host": "127.0.0.1", "port": 0, "advertise": "localhost:1", "auto_create": True,
        "num_partitions": 1, "replication_factor": 1, "flush": False, "config": {},
    },
    "topic": {"name": "events"},
    "topic_names": {"internal": False},
    "topics": {"internal": False},
    "verify": {"partitions": [EVENTS]},
}  # fmt: skip
PRODUCER_CALLS: dict[str, dict[str, Any]] = {
    "close": {"timeout": 5},
    "ensure_delivered": {},
    "flush": {"timeout": 5},
    "metrics": {},
    "why_waiting": {},
    "send": {
        "topic": "events", "value": b"v", "key": b"k", "headers": [("h", b"x")], "partition": 0,
        "timestamp": 5, "callback": None,
    },
    "send_arrow": {"topic": "events", "rows": {"value": ["a"]}, "callback": None},
}  # fmt: skip
FUTURE_CALLS: dict[str, dict[str, Any]] = {
    "done": {},
    "exception": {"timeout": 5},
    "result": {"timeout": 5},
}
OPEN = {"path": "cluster", "create": True, "log_dirs": (), "foreign_end": "log"}

# Other words by which an error may name an argument.
ALSO = {"name": ["topic"], "topic": ["broker"], "path": ["folder"], "rows": ["column", "topic"], "topics": ["topic"], "wanted": ["time"],
        "number": ["commit"], "to": ["path", "broker", "log dir"], "headers": ["header"],
        "offsets": ["offset"], "config": ["option"], "log_dirs": ["path", "log.dirs"],
        "host": ["listen"], "auto_create": ["auto.create"], "replication_factor": ["replication.factor"],
        "num_partitions": ["num.partitions"]}  # fmt: skip


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError


def itself() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


NUMBERS = [
    0, -1, 1, 7, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30, True, False, 1.5,
    -0.0, float("nan"), float("inf"), float("-inf"), 1e300, 2j, decimal.Decimal("NaN"), np.int64(1),
    np.uint64(2**64 - 1), np.float64("nan"), np.bool_(True), pa.scalar(1),
]  # fmt: skip
TEXTS = [
    "", " ", "events", "nothing", "__commits", "0", "-1", "latest", "earliest", "a\0b", "\ud800", "é",
    "a/b", "..", "~", "~nobody-at-all", "t" * 300, "hdfs://a/b", "file:/%00", "file://host/a", b"",
    b"events", bytearray(b"x"), memoryview(b"x"),
]  # fmt: skip
OTHERS: list[Any] = [
    None, ..., [], [None], [[]], ["events"], ["events", "nothing"], [0], ["0"], [-1], [2**63],
    [("h",)], [("h", b"x", b"y")], [(None, b"x")], [("h", 5)], [EVENTS], [("events", True)],
    [("events", 2**31)], (), ("events",), ("events", 0), {}, {"events"}, {"events": 5}, {0: 5},
    {0: "latest"}, {EVENTS: None}, {EVENTS: "x"}, {EVENTS: float("nan")}, {EVENTS: True},
    {EVENTS: 10**30}, {("nothing", 0): 0}, {("events", 9): 0}, {("events", -1): 0}, {(1, "events"): 0},
    {None: None}, {"retention.ms": []}, {"retention.ms": 2**63}, {"retention.ms": None},
    {"unknown": 1}, {"value": ["a"], "partition": [9]}, {"value": ["a"], "timestamp": [-2]},
    {"value": ["a"], "topic": ["nothing"]}, {"value": [None, 1.5]}, {"value": ["a"], "headers": [{}]},
    {"value": [1, "a"]}, {"key": ["a"]}, object(), Unshowable(), int, len, itself(),
    np.array([1, 2]), np.array(["a"]), np.array([]), pa.array(["a"]), pa.table({}),
    pa.table({"value": pa.array([], pa.string())}), Path("x"), Path("events"),
    datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), datetime.date(2024, 1, 1),
    datetime.timedelta(1), iter(["events"]), range(3), range(10**9, 10**9 + 2),
]  # fmt: skip
ODD = [*NUMBERS, *TEXTS, *OTHERS]
odd_values = st.sampled_from(ODD)
ALL_INTERFACES = ("", "0")  # on which no test listens
in_rounds = settings(
    max_examples=draws.many(5),
    derandomize=draws.IS_DEFAULT,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def public_methods(kind: type) -> set[str]:
    """Return the names of a class's public methods, without those that each `Future` of Python has."""
    pythons = set(dir(Future)) - vars(kind).keys() if issubclass(kind, Future) else set()
    return {
        name
        for name, member in inspect.getmembers(kind, callable)
        if not name.startswith("_") and not inspect.isclass(member)
    } - pythons


def test_every_public_method_is_called() -> None:
    assert public_methods(Cluster) - INTERNAL_OF_CLUSTERS == CALLS.keys()
    assert public_methods(Producer) - INTERNAL_OF_PRODUCERS == PRODUCER_CALLS.keys()
    for kind in (RecordFuture, ArrowFuture):
        assert public_methods(kind) - INTERNAL_OF_FUTURES == FUTURE_CALLS.keys()


@pytest.mark.parametrize(
    ("kind", "calls"),
    [(Cluster, CALLS), (Producer, PRODUCER_CALLS), (RecordFuture, FUTURE_CALLS), (ArrowFuture, FUTURE_CALLS)],
    ids=["cluster", "producer", "future", "future of a table"],
)  # fmt: skip
def test_every_argument_of_a_call_is_given(kind: type, calls: dict[str, dict[str, Any]]) -> None:
    for name, call in calls.items():
        parameters = inspect.signature(getattr(kind, name)).parameters.values()
        named = {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.POSITIONAL_ONLY)} - {
            "self"
        }
        assert named == call.keys(), name


class Place(NamedTuple):
    """A folder with a cluster and a broker's logs; each call gets a fresh one."""

    folder: Path

    def cluster(self) -> Cluster:
        return Cluster(self.folder / "cluster")

    def logs(self) -> Cluster:
        return spark_kbatch.open(self.folder / "broker")

    def files(self) -> dict[str, bytes]:
        """Return all files except locks, which are empty, and the snapshots that reads agreed on."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes() if path.is_file() else b""
            for path in self.folder.rglob("*")
            if not {"locks", "snapshots"} & set(path.parts)
        }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    cluster = builders.a_cluster(folder, topics={"events": 2})
    builders.write(cluster, {("events", 0): [builders.batch()]})
    shutil.copytree(cluster.path / "broker-0", folder / "broker")
    return folder


@pytest.fixture
def new_place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Place]:
    numbers = itertools.count()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def place() -> Place:
        folder = tmp_path / str(next(numbers))
        shutil.copytree(made, folder)
        os.chdir(folder)
        return Place(folder)

    monkeypatch.chdir(tmp_path)
    return place


def outcome(call: Callable[..., Any], arguments: dict[str, Any]) -> Exception | None:
    """Return the error that the call, or using its result, ends in; None if there is none."""
    try:
        given = call(**arguments)
        if isinstance(given, (Iterator, pa.RecordBatchReader)):
            list(given)
        elif isinstance(given, (RecordFuture, ArrowFuture)):
            given.result(SOON)
        elif isinstance(given, Producer):
            given.close(SOON)
        elif isinstance(given, spark_kbatch.Server):
            given.close()
    except (KBatchError, TimeoutError) as error:
        return error
    return None


def ensure_named(error: Exception, name: str, value: Any) -> None:
    """Ensure that the error for an argument names it or shows its value."""
    if isinstance(error, ConfigError):
        words = [
            name,
            *ALSO.get(name, []),
            *([repr(value)] if isinstance(value, str) else []),
            *([str(value)] if hasattr(value, "__index__") else []),
        ]
        assert any(word in str(error) for word in words), (name, str(error))


def with_odd(call: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {**call, name: iter(["events"]) if isinstance(value, Iterator) else value}


ARGUMENTS = [(method, name) for method, call in CALLS.items() for name in call]


@pytest.mark.parametrize(("method", "name"), ARGUMENTS, ids=[" ".join(pair) for pair in ARGUMENTS])
@in_rounds
@given(value=odd_values)
def test_a_cluster_refuses_an_invalid_argument_and_is_unchanged(
    new_place: Callable[[], Place], method: str, name: str, value: Any
) -> None:
    assume(name != "host" or not (isinstance(value, str) and value in ALL_INTERFACES))
    place = new_place()
    arguments = with_odd(CALLS[method], name, value)
    if name == "num_partitions":
        arguments.pop("partitions", None)
    with place.cluster() as cluster:
        before, described = place.files(), cluster.describe(["events"])
        error = outcome(getattr(cluster, method), arguments)
        if error is not None:
            ensure_named(error, name, value)
            assert place.files() == before
            assert cluster.describe(["events"]) == described


READING = [pair for pair in ARGUMENTS if pair[0] in ("describe", "list_offsets", "partitions", "read", "topic", "topic_names")]  # fmt: skip


@pytest.mark.parametrize(("method", "name"), READING, ids=[" ".join(pair) for pair in READING])
@in_rounds
@given(value=odd_values)
def test_a_brokers_logs_refuse_an_invalid_argument_and_are_never_written(
    new_place: Callable[[], Place], method: str, name: str, value: Any
) -> None:
    place = new_place()
    before = place.files()
    error = outcome(getattr(place.logs(), method), with_odd(CALLS[method], name, value))
    if error is not None:
        ensure_named(error, name, value)
    assert place.files() == before


SENDING = [(method, name) for method, call in PRODUCER_CALLS.items() for name in call]


@pytest.mark.parametrize(("method", "name"), SENDING, ids=[" ".join(pair) for pair in SENDING])
@in_rounds
@given(value=odd_values)
def test_a_producer_refuses_an_invalid_argument_and_goes_on(
    new_place: Callable[[], Place], method: str, name: str, value: Any
) -> None:
    with new_place().cluster() as cluster, cluster.producer(flush=False) as producer:
        arguments = with_odd(PRODUCER_CALLS[method], name, value)
        error = outcome(getattr(producer, method), arguments)
        if method == "close" and error is None:
            return
        # A refused record is there neither before nor after the next one.
        was_sent = error is None and method in ("send", "send_arrow")
        next_one = producer.send("events", b"after", partition=0).result(SOON)
        if error is not None:
            ensure_named(error, name, value)
            assert next_one.offset == 3
        elif was_sent:
            assert next_one.offset in (
                3,
                4,
            )  # it may have gone to the other partition, or be no row


@pytest.mark.parametrize("method", ["exception", "result"])
@pytest.mark.parametrize("kind", ["send", "send_arrow"])
@in_rounds
@given(timeout=odd_values)
def test_a_future_refuses_an_invalid_timeout_and_is_unchanged(
    new_place: Callable[[], Place], kind: str, method: str, timeout: Any
) -> None:
    with new_place().cluster() as cluster, cluster.producer(flush=False) as producer:
        future = getattr(producer, kind)(**PRODUCER_CALLS[kind])
        error = outcome(getattr(future, method), {"timeout": timeout})
        if error is not None and not isinstance(error, TimeoutError):
            ensure_named(error, "timeout", timeout)
        assert future.exception(SOON) is None


@pytest.mark.parametrize("option", [option.key for option in PRODUCER_OPTIONS])
@in_rounds
@given(value=odd_values)
def test_the_error_for_an_invalid_producer_option_names_it(
    new_place: Callable[[], Place], option: str, value: Any
) -> None:
    place = new_place()
    with place.cluster() as cluster:
        before = place.files()
        error = outcome(cluster.producer, {option.replace(".", "_"): value})
        if error is not None:
            ensure_named(error, option, value)
        assert place.files() == before


@pytest.mark.parametrize("name", OPEN)
@in_rounds
@given(value=odd_values)
def test_open_refuses_an_invalid_argument_and_creates_nothing(
    new_place: Callable[[], Place], name: str, value: Any
) -> None:
    place = new_place()
    before = place.files()
    error = outcome(spark_kbatch.open, with_odd(OPEN, name, value))
    if error is not None:
        ensure_named(error, name, value)
        assert place.files() == before


@pytest.mark.parametrize("method", CALLS)
def test_closed_clusters_and_logs_do_nothing(new_place: Callable[[], Place], method: str) -> None:
    place = new_place()
    cluster, logs = place.cluster(), place.logs()
    cluster.close()
    logs.close()
    before = place.files()
    for closed in (cluster, logs):
        error = outcome(getattr(closed, method), CALLS[method])
        if method == "close":
            assert error is None
        elif closed is cluster:
            assert isinstance(error, ClosedError)
        else:
            assert isinstance(error, (ClosedError, ConfigError))
    assert place.files() == before


@pytest.mark.parametrize("method", PRODUCER_CALLS)
def test_a_closed_producer_sends_nothing(new_place: Callable[[], Place], method: str) -> None:
    with new_place().cluster() as cluster:
        producer = cluster.producer(flush=False)
        producer.close()
        error = outcome(getattr(producer, method), PRODUCER_CALLS[method])
        is_sending = method in ("send", "send_arrow")
        assert isinstance(error, ProducerClosedError) if is_sending else error is None
        assert cluster.list_offsets({EVENTS: "latest"})[TopicPartition(*EVENTS)] == (3, -1)
