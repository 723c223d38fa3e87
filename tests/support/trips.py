"""Trips: the files of the package that one call passes through, in the order in which it enters them.

`python -m tests.support.trips` makes each call of `TRIPS` and prints its trip as JSON. It needs a process of its own,
which has compiled nothing and in which no other test leaves threads. Each call is made twice, the first time to
import what it needs. DESIGN.md shows the trips; `tests/test_design.py` compares.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import pickle
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

import spark_kbatch
from spark_kbatch.columns.reading import Scan
from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.read import parse_read_options
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.server import listener, server
from spark_kbatch.server.server import Server
from spark_kbatch.spark.reader import KBatchReader
from spark_kbatch.spark.writer import KBatchWriter
from spark_kbatch.wire.protocol import ApiKey, ApiVersionsRequest, OffsetCommitRequest
from tests.support.raw_clients import RawClient, fetch
from tests.support.waiting import until

PACKAGE = Path(spark_kbatch.__file__).parent
_T = TypeVar("_T")

# Python's functions in which a thread waits for another one, by their file.
_WAITS = {("selectors.py", "select"), ("_base.py", "result"), ("threading.py", "wait")}


class Stay(NamedTuple):
    """What a thread enters from one wait to the next."""

    where: str  # the thread, or the process
    files: list[str]  # in the package


class Follower:
    """Follows some threads through the package, stay by stay.

    A thread and one that it has woken run side by side, in an order that changes from run to run. That in which stays
    start does not, nor that of the files of a stay.
    """

    def __init__(self, *threads: str) -> None:
        """Follow threads that start from now on, whose names start so, and the one that calls `follow`."""
        self.stays: list[Stay] = []
        self._threads, self._where = threads, ""
        self._awake: dict[str, list[str]] = {}  # the files of the stay of each thread that runs
        self._is_on = False
        threading.setprofile(self._note)

    def follow(self, call: Callable[[], _T], where: str = "") -> _T:
        """Make a call in this thread, and wait until the others have done their parts.

        `where` is the process that the call is made in; without it stays have the names of their threads.
        """
        until(lambda: not self._awake)
        gc.disable()  # what it finds is not of this call
        self._is_on, self._where = True, where
        sys.setprofile(self._note if threading.current_thread().name in self._threads else None)
        try:
            return call()
        finally:
            sys.setprofile(None)
            self._awake.pop(threading.current_thread().name, None)
            until(lambda: not self._awake)
            self._is_on = False
            gc.enable()

    def _note(self, frame: FrameType, event: str, function: Any) -> None:
        name, code = threading.current_thread().name, frame.f_code
        if not name.startswith(self._threads):
            return
        waits = event == "call" and (Path(code.co_filename).name, code.co_name) in _WAITS
        if waits or (
            event == "c_call" and getattr(function, "__qualname__", "") == "SimpleQueue.get"
        ):
            self._awake.pop(name, None)
        elif event in ("call", "c_call") and code.co_filename.startswith(f"{PACKAGE}/"):
            if name not in self._awake:
                self._awake[name] = []
                if self._is_on:
                    where = self._where or re.sub(r"[-_]\d+$", "", name)
                    self.stays.append(Stay(where, self._awake[name]))
            self._awake[name].append(str(Path(code.co_filename).relative_to(PACKAGE)))


def written_row(folder: Path) -> list[Stay]:
    """A row of a Spark task, and the commit of its job."""
    path = folder / "cluster"
    spark_kbatch.open(path, create=True).create_topic("events")
    options = parse_write_options({"path": str(path), "topic": "events"})
    pickled = pickle.dumps(KBatchWriter(begin_job(options)))
    follower = Follower("MainThread")
    rows = [pa.record_batch({"key": [b"k"], "value": [b"v"]})]
    task, driver = pickle.loads(pickled), pickle.loads(pickled)
    staged = follower.follow(lambda: task.write(iter(rows)), "a Spark task")
    follower.follow(lambda: driver.commit([staged]), "the driver")
    return follower.stays


def fetched(folder: Path) -> list[Stay]:
    """A client's first Fetch of a partition."""
    follower = Follower("kbatch-server", "kbatch-fetches")
    with _served(folder) as running, RawClient(running) as client:
        client.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        answer = follower.follow(lambda: client.ask(ApiKey.FETCH, 11, fetch(0)))
    assert answer.responses[0].partitions[0].records
    return follower.stays


def offset_commit(folder: Path) -> list[Stay]:
    """A group's first OffsetCommit, by a client that is no member."""
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    offset = topic.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [topic(name="events", partitions=[offset])]
    first, second = (
        OffsetCommitRequest(group_id=group, topics=topics) for group in ("first", "second")
    )
    follower = Follower("kbatch-server", "kbatch-groups")
    with _served(folder) as running, RawClient(running) as client:
        client.ask(ApiKey.OFFSET_COMMIT, 7, first)  # creates the topic of offsets
        answer = follower.follow(lambda: client.ask(ApiKey.OFFSET_COMMIT, 7, second))
    assert answer.topics[0].partitions[0].error_code == 0
    return follower.stays


def remote_read(folder: Path) -> list[Stay]:
    """A Spark task's read of a real cluster."""
    with _served(folder) as running:
        return _read(folder, {"kafka.bootstrap.servers": running.bootstrap_servers})


def bucket_read(folder: Path) -> list[Stay]:
    """A Spark task's read of a bucket."""
    (folder / "bucket").mkdir()
    url = f"file+bucket://{folder}/bucket"
    _write_one(url).close()
    return _read(folder, {"path": url})


TRIPS: Mapping[str, Callable[[Path], list[Stay]]] = {
    "a written row": written_row,
    "a fetch": fetched,
    "a remote read": remote_read,
    "a bucket's read": bucket_read,
    "an offset commit": offset_commit,
}


def _write_one(path: Path | str) -> spark_kbatch.Cluster:
    """Create a cluster with one record."""
    cluster = spark_kbatch.open(path, create=True)
    cluster.create_topic("events")
    with cluster.producer() as producer:
        producer.send("events", b"v", key=b"k")
    return cluster


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[Server]:
    """Serve a cluster with one record; what a server does by itself, again and again, it does once."""
    listener._LOOKS_EVERY_S = listener._LOOKS_FOR_IDLE_EVERY_S = server._TICK_S = 3600
    with _write_one(folder / "cluster") as cluster, cluster.serve() as running:
        yield running


def _read(folder: Path, options: Mapping[str, str]) -> list[Stay]:
    """Plan a read, and follow its task."""
    planned = KBatchReader(
        parse_read_options({"subscribe": "events"} | options), Scan(["key", "value"])
    )
    [partition] = planned.partitions()
    task, partition = pickle.loads(pickle.dumps((planned, partition)))
    follower = Follower("MainThread", "kbatch-bucket")
    rows = follower.follow(lambda: [*task.read(partition)], "a Spark task")
    assert pa.Table.from_batches(rows)["value"].to_pylist() == [b"v"]
    return follower.stays


def main() -> None:
    """Print all trips."""
    found = {}
    for (name, trip), _ in itertools.product(TRIPS.items(), range(2)):
        with tempfile.TemporaryDirectory() as folder:
            found[name] = [(one.where, [*dict.fromkeys(one.files)]) for one in trip(Path(folder))]
        threading.setprofile(None)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
