"""What streams to and from a bucket cost in requests and dollars, by how often a micro-batch comes.

Requests are counted: the jobs of a stream run as Spark runs them, over objects in memory, by a clock that is set by
hand. Counted are as many micro-batches as lie between two checkpoints, once all is as it stays.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from spark_kbatch.bucket import job, ledger, shared_ledger, store
from spark_kbatch.bucket.ledger import CHECKPOINT_EVERY
from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.bucket.shared_ledger import LedgerCache
from spark_kbatch.bucket.urls import place_in_memory
from spark_kbatch.opening import stores
from spark_kbatch.options.read import parse_stream_read_options
from tests.support.bucket_jobs import commit_micro_batch
from tests.support.bucket_objects import AllCounted, a_bucket

# Of S3 Standard in us-east-1, for 1,000 requests.
PUT_DOLLARS, GET_DOLLARS, PRICES_OF = 0.005, 0.0004, "November 2026"
INTERVALS_S = {"second": 1, "10 seconds": 10, "minute": 60, "10 minutes": 600}
TASKS = (1, 8)
_DAY_S = 86_400
_ASKED_EVERY_MS = 100  # by Spark, at least, while there is nothing to read
_READ = 3  # micro-batches of a reader that are counted
_MERGED = 128  # micro-batches
_MAINTAINED_EVERY_S = 600


class Requests(NamedTuple):
    """Requests for one micro-batch, on average, as a store charges them."""

    puts: float  # and creates and lists
    gets: float

    def dollars_a_day(self, interval_s: int) -> float:
        """Return what they cost if there is a micro-batch in each interval."""
        return (self.puts * PUT_DOLLARS + self.gets * GET_DOLLARS) / 1000 * _DAY_S / interval_s


class _Clock:
    """A clock for all processes of a machine."""

    def __init__(self) -> None:
        self.at_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.at_ms


class _Stream:
    """A query that writes to a topic, each of whose micro-batches is begun and committed by processes of its own."""

    def __init__(self, folder: Path, clock: _Clock) -> None:
        self.objects, self.clock = AllCounted(), clock
        self.url = a_bucket(self.objects, "events")._store.address
        place_in_memory(self.url, self.objects, LedgerCache(self.url, folder=folder))
        self._numbers = itertools.count()

    def write(self, tasks: int, interval_s: int) -> None:
        """Write a micro-batch, and wait for the next one's time."""
        commit_micro_batch(self.url, next(self._numbers), *([["a value"]] * tasks))
        self.clock.at_ms += 1000 * interval_s


@contextlib.contextmanager
def _stream() -> Iterator[_Stream]:
    clock = _Clock()
    clocks = [(job, "now_ms"), (shared_ledger, "now_ms"), (shared_ledger, "monotonic_ms"), (ledger, "now_ms"), (ledger, "monotonic_ms"), (store, "monotonic_ms")]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as patched:
        for module, name in clocks:
            patched.enter_context(patch.object(module, name, clock.now_ms))
        yield _Stream(Path(folder), clock)


@functools.cache
def requests_of_writer(tasks: int, interval_s: int) -> Requests:
    """Return what a micro-batch of a query that writes costs."""
    with _stream() as stream:
        for _ in range(2 * CHECKPOINT_EVERY):
            stream.write(tasks, interval_s)
        stream.objects.taken()
        for _ in range(CHECKPOINT_EVERY):
            stream.write(tasks, interval_s)
        return _average(stream.objects.taken(), CHECKPOINT_EVERY)


@functools.cache
def requests_of_reader(tasks: int, interval_s: int) -> Requests:
    """Return what a micro-batch of a query that reads costs, which reads what one of another query wrote.

    Args:
        tasks: of the query that writes, each of which writes an object.
        interval_s: from one micro-batch to the next.
    """
    with _stream() as stream:
        stream.write(tasks, interval_s)
        options = parse_stream_read_options({"path": stream.url, "subscribe": "events"})
        planner = stores.open_stream(options)
        start, asked = planner.latest(planner.initial()), Counter[str]()
        for _ in range(_READ):
            stream.write(tasks, 0)
            stream.objects.taken()
            next_ms = stream.clock.at_ms + 1000 * interval_s
            while stream.clock.at_ms < next_ms:
                end = planner.latest(start)
                if end != start:
                    for pieces in planner.plan(start, end):
                        [*stores.open_topics(options).read_stream_task(pieces, ["value"], options)]
                    start = end
                stream.clock.at_ms += _ASKED_EVERY_MS
            asked.update(stream.objects.taken())
        return _average(asked, _READ)


def requests_of_maintenance(tasks: int, interval_s: int) -> Requests:
    """Return what maintenance costs for each micro-batch of a query that writes.

    Args:
        tasks: of the query.
        interval_s: from one micro-batch to the next.
    """
    merging, a_round = _maintenance(tasks)
    rounds = interval_s / _MAINTAINED_EVERY_S
    # Later each entry becomes a tombstone.
    return Requests(1 + merging.puts + rounds * a_round.puts, merging.gets + rounds * a_round.gets)


@functools.cache
def _maintenance(tasks: int) -> tuple[Requests, Requests]:
    """Return what it costs to merge a micro-batch, and a round in which nothing is to be done."""
    with _stream() as stream:
        for _ in range(_MERGED):
            stream.write(tasks, 10)
        stream.objects.taken()
        assert Maintenance(stream.url).run().merged.extents == _MERGED * tasks
        merging = _average(stream.objects.taken(), _MERGED)
        assert not Maintenance(stream.url).run().merged.extents
        return merging, _average(stream.objects.taken(), 1)


def _average(asked: Mapping[str, int], count: int) -> Requests:
    gets = sum(number for what, number in asked.items() if what.startswith("get"))
    return Requests((sum(asked.values()) - gets) / count, gets / count)


def costs_markdown() -> str:
    """Return the table of docs/bucket-operations.md, and the prices that it goes by."""
    lines = [
        f"By the prices of S3 Standard in us-east-1, looked up in {PRICES_OF}: {PUT_DOLLARS} dollars for 1,000 puts, creates and "
        f"lists, {GET_DOLLARS} for 1,000 gets. What is stored, and what leaves the region, costs more.",
        "",
        "| a micro-batch each | of a query that writes, with | requests | dollars a day | of a query that reads this | dollars a day | of maintenance every 10 minutes | dollars a day |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, interval_s in INTERVALS_S.items():
        for tasks in TASKS:
            shown = f"{tasks} task{'s' * (tasks > 1)}"
            cells = [name, shown]
            for asked in (requests_of_writer, requests_of_reader, requests_of_maintenance):
                one = asked(tasks, interval_s)
                cells += [_shown(one), f"{one.dollars_a_day(interval_s):.3f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(one: Requests) -> str:
    found = [
        f"{number:.1f} {what}"
        for number, what in ((one.puts, "puts"), (one.gets, "gets"))
        if number
    ]
    return ", ".join(found)
