"""How often the driver and the tasks of a job ask a registry, and what becomes of a job while it is down."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

import spark_kbatch
from spark_kbatch.errors import SchemaRegistryUnavailableError
from spark_kbatch.spark import writer as spark_writer
from spark_kbatch.spark.source import KBatchDataSource
from tests.support import avro
from tests.support.avro import a_record, framed, parsed
from tests.support.fake_registry import FakeRegistry
from tests.support.processes_of_jobs import Processes

pytestmark = pytest.mark.spark

FIRST = a_record(("id", "long"), name="Order")
SECOND = a_record(("id", "long"), {"name": "note", "type": "string", "default": ""}, name="Order")
THIRD = a_record(("id", "long"), {"name": "more", "type": "string", "default": ""}, name="Order")
MINUTE_MS = 60_000


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    """A registry with two versions of the subject, under the ids 7 and 9."""
    with FakeRegistry() as registry:
        registry.add_at(7, "orders-value", json.dumps(FIRST))
        registry.add_at(9, "orders-value", json.dumps(SECOND))
        yield registry


@pytest.fixture
def processes(fake: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(fake, tmp_path, monkeypatch)


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A topic with a value of each version and a tombstone."""
    path = str(tmp_path / "cluster")
    with spark_kbatch.open(path, create=True) as cluster:
        cluster.create_topic("orders")
    send(path, value(1), value(2, note="n"), None)
    return path


def value(number: int, **more: str) -> bytes:
    schema_id, schema = {"": (7, FIRST), "note": (9, SECOND), "more": (12, THIRD)}["".join(more)]
    return framed(schema_id, avro.encode(parsed(schema), {"id": number, **more}))


def send(place: str, *values: bytes | None) -> None:
    with spark_kbatch.open(place) as cluster, cluster.producer(flush=False) as producer:
        for one in values:
            producer.send("orders", one, partition=0)


def options_of(place: str, fake: FakeRegistry, **more: str) -> dict[str, str]:
    given = {"path": place, "value.format": "avro", "schema.registry.url": fake.url}
    return given | {key.replace("__", "."): one for key, one in more.items()}


def sent(value: Any) -> Any:
    """Return a value as another process gets it."""
    return pickle.loads(cloudpickle.dumps(value))


class Read:
    """A read that the driver loaded, batch or stream; tasks read its partitions."""

    def __init__(
        self, processes: Processes, options: dict[str, str], *, stream: bool = False
    ) -> None:
        self._processes, self._is_stream = processes, stream
        with processes.inside("driver"):
            source = KBatchDataSource(
                {"subscribe": "orders", "startingOffsets": "earliest", **options}
            )
            schema = source.schema()
            planned = sent(source)
            self._planner = planned.streamReader(schema) if stream else planned.reader(schema)
            self._reader = sent(self._planner)  # as tasks get it
            self._start = self._planner.initialOffset() if stream else None

    def plan(self) -> list[Any]:
        """Plan a batch, or a micro-batch of what a stream has not read."""
        with self._processes.inside("driver"):
            if not self._is_stream:
                return list(sent(self._planner.partitions()))
            end = self._planner.latestOffset(self._start)
            parts = self._planner.partitions(self._start, end)
            self._start = end
            return list(sent(parts))

    def rows(self, part: Any, process: str, **where: str) -> list[dict[str, Any]]:
        """Run a task in a process."""
        with self._processes.inside(process, **where):
            batches = [*self._reader.read(part)]
        names = [name for name in batches[0].schema.names if name.startswith("value")]
        return [row for batch in batches for row in batch.select(names).to_pylist()]

    def values(self, part: Any, process: str, **where: str) -> list[Any]:
        return [row["value"] for row in self.rows(part, process, **where)]


DECODED = [{"id": 1, "note": ""}, {"id": 2, "note": "n"}, None]


@pytest.mark.slow
def test_1000_tasks_ask_for_no_id_that_was_known_at_load(
    processes: Processes, place: str, fake: FakeRegistry
) -> None:
    read = Read(processes, options_of(place, fake))
    (part,) = read.plan()
    loaded = len(fake.asked)

    for task in range(1000):
        assert read.values(part, f"task {task}") == DECODED
    assert len(fake.asked) == loaded == 3  # the latest version, the list, the other version


@pytest.mark.parametrize("tasks", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_a_version_that_is_registered_during_a_stream_is_asked_for_by_the_driver_alone(
    processes: Processes, place: str, fake: FakeRegistry, tasks: int
) -> None:
    """An hour, with so many tasks every two minutes, each on a machine of its own."""
    read = Read(processes, options_of(place, fake), stream=True)
    assert read.values(read.plan()[0], "task 0") == DECODED
    loaded = len(processes.asked)

    for batch in range(1, 31):
        processes.time.now_ms += 2 * MINUTE_MS
        send(place, value(batch, note="n"))
        if batch >= 5:
            if batch == 5:
                fake.add_at(12, "orders-value", json.dumps(THIRD))
            send(place, value(batch, more="m"))
        (part,) = read.plan()
        expected = [{"id": batch, "note": "n"}, {"id": batch, "note": ""}][: 1 + (batch >= 5)]
        for task in range(tasks):
            assert read.values(part, f"task {task}") == expected

    asked = processes.asked[loaded:]
    assert {one.process for one in asked} == {"driver"}
    looks = [one for one in asked if one.request.endswith("/versions?deleted=true")]
    assert [one.request for one in asked if one not in looks] == [
        "GET /subjects/orders-value/versions/3?deleted=true"
    ]
    assert len(looks) == len({one.at_ms for one in looks}) == 30


def test_a_value_that_comes_before_its_version_is_looked_for_is_asked_for_once_by_each_process(
    processes: Processes, place: str, fake: FakeRegistry
) -> None:
    """And, on one machine, by one of them."""
    read = Read(processes, options_of(place, fake), stream=True)
    read.plan()
    fake.add_at(12, "orders-value", json.dumps(THIRD))
    for batch in range(60):  # one every ten seconds
        processes.time.now_ms += 10_000
        send(place, value(batch, more="m"))
        (part,) = read.plan()
        for process in ("task 1", "task 2", "task 3"):
            expected = [{"id": batch, "note": ""}]
            machine = "" if process == "task 1" else "one machine"
            assert read.values(part, process, machine=machine) == expected

    by_id = [one for one in processes.asked if one.process != "driver"]
    assert [(one.process, one.request) for one in by_id] == [
        ("task 1", "GET /schemas/ids/12?subject=orders-value"),
        ("task 2", "GET /schemas/ids/12?subject=orders-value"),
    ]
    looks = [one.at_ms for one in processes.asked if one.request.endswith("/versions?deleted=true")]
    assert all(later - one >= MINUTE_MS for one, later in itertools.pairwise(looks))


@pytest.mark.slow
def test_versions_that_a_plan_leaves_out_are_not_asked_for_at_each_look(
    processes: Processes, place: str, fake: FakeRegistry
) -> None:
    for schema_id in range(100, 320):
        fake.add_at(schema_id, "orders-value", json.dumps({**FIRST, "doc": str(schema_id)}))
    read = Read(processes, options_of(place, fake, value__schema="id:9"), stream=True)
    read.plan()
    loaded = len(processes.asked)
    for _ in range(10):
        processes.time.now_ms += MINUTE_MS
        send(place, value(1))
        read.plan()

    assert len(processes.asked) == loaded + 10


@pytest.mark.slow
def test_bytes_of_another_origin_cost_at_most_20_requests_a_minute_and_process(
    processes: Processes, place: str, fake: FakeRegistry
) -> None:
    """Ten minutes, with a task every ten seconds; values that can be decoded are, beside them."""
    foreign = [framed(1000 + number, b"\x02 a text") for number in range(40)]
    send(place, *foreign, value(3))
    read = Read(processes, options_of(place, fake, mode="PERMISSIVE"))
    (part,) = read.plan()

    for _ in range(60):
        rows = read.rows(part, "task")
        assert [row["value"] for row in rows] == [*DECODED, *[None] * 40, {"id": 3, "note": ""}]
        is_error = [row["value_error"] is not None for row in rows]
        assert is_error == [False] * 3 + [True] * 40 + [False]
        processes.time.now_ms += 10_000
    assert processes.most_in_a_minute("task") == 20


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_a_registry_that_is_down_for_20_seconds_delays_a_job(
    processes: Processes, place: str, fake: FakeRegistry, mode: str
) -> None:
    started_ms = processes.time.now_ms
    processes.fail_until(started_ms + 20_000)
    read = Read(processes, options_of(place, fake, mode=mode))
    assert 20_000 <= processes.time.now_ms - started_ms < MINUTE_MS

    fake.add_at(12, "orders-value", json.dumps(THIRD))
    send(place, value(3, more="m"))
    (part,) = read.plan()
    started_ms = processes.time.now_ms
    processes.fail_until(started_ms + 20_000)
    assert read.values(part, "task") == [*DECODED, {"id": 3, "note": ""}]
    assert 20_000 <= processes.time.now_ms - started_ms < MINUTE_MS


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_a_registry_that_stays_down_is_an_error_and_makes_no_nulls(
    processes: Processes, place: str, fake: FakeRegistry, mode: str
) -> None:
    options = options_of(place, fake, mode=mode)
    read = Read(processes, options)
    send(place, value(3, more="m"))
    (part,) = read.plan()
    processes.fail_until(math.inf)

    for process in ("task", "another task", "task"):
        with pytest.raises(SchemaRegistryUnavailableError, match="schema id 12"):
            read.rows(part, process)
    with pytest.raises(SchemaRegistryUnavailableError, match="the latest version"):
        Read(processes, options)


def test_a_stream_of_known_schemas_goes_on_without_delay_while_the_registry_is_down(
    processes: Processes, place: str, fake: FakeRegistry
) -> None:
    read = Read(processes, options_of(place, fake), stream=True)
    processes.fail_until(math.inf)

    for batch in range(10):
        processes.time.now_ms += MINUTE_MS
        send(place, value(batch))
        (part,) = read.plan()
        assert read.values(part, "task")[-1] == {"id": batch, "note": ""}
    assert processes.time.taken == []  # no pause


WRITES = [
    pytest.param({"value.schema": "version:1"}, id="a version"),
    pytest.param({"value.schema": "id:7"}, id="an id"),
    pytest.param({"value.schema": json.dumps(FIRST)}, id="looked up"),
    pytest.param({"value.schema": json.dumps(THIRD), "auto.register.schemas": "true"}, id="registered"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("more", WRITES)
def test_a_stream_that_writes_goes_on_without_delay_while_the_registry_is_down(
    processes: Processes,
    place: str,
    fake: FakeRegistry,
    more: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each micro-batch has a writer of its own, and its tasks ask for nothing."""
    query = SimpleNamespace(getLocalProperty=lambda name: f"the {name}")
    monkeypatch.setattr(spark_writer, "TaskContext", SimpleNamespace(get=lambda: query))
    options = options_of(place, fake) | {"topic": "orders"} | more
    kind = pa.struct([("id", pa.int64())])
    schema = StructType([StructField("value", from_arrow_type(kind))])

    def write(batch: int) -> None:
        with processes.inside(f"driver {batch}", machine="the driver's"):
            writer = sent(KBatchDataSource(options).streamWriter(schema, overwrite=False))
        messages = []
        for task in range(3):
            rows = pa.RecordBatch.from_pylist([{"value": {"id": 10 * batch + task}}], pa.schema([("value", kind)]))  # fmt: skip
            with processes.inside(f"task {batch}.{task}"):
                messages.append(sent(sent(writer).write(iter([rows]))))
        with processes.inside(f"driver {batch}", machine="the driver's"):
            writer.commit(messages, batch)

    write(0)
    processes.fail_until(math.inf)
    for batch in (1, 2):
        write(batch)

    assert processes.time.taken == []  # no pause
    assert not any(one.process.startswith("task") for one in processes.asked)
    processes.fail_until(0)
    read = Read(processes, options_of(place, fake, value__schema="version:1"))
    found = sorted(one["id"] for one in read.values(read.plan()[0], "task")[3:])
    assert found == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_a_stream_that_starts_to_write_while_the_registry_is_down_fails(
    processes: Processes, place: str, fake: FakeRegistry
) -> None:
    processes.fail_until(math.inf)
    options = options_of(place, fake, value__schema="version:1") | {"topic": "orders"}
    schema = StructType([StructField("value", from_arrow_type(pa.struct([("id", pa.int64())])))])

    with processes.inside("driver"), pytest.raises(SchemaRegistryUnavailableError):
        KBatchDataSource(options).streamWriter(schema, overwrite=False)
