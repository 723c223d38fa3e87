"""The checker of histories: what processes told, what readers read, and what is there in the end.

Lines, as `tests.support.history_processes` tells them; each has `what`, `by` and `at`:

    sent            records by place: the number of the first one, and how many; before they are sent
    acknowledged    of a place, the offsets of records from a number on; None for one that failed
    job             a job is to be committed, with the place of each row
    committed, refused, unknown     what its commit was answered
    read            a file of rows, when the read began, and from which offset on in which place
    maintained      what a round of maintenance did
    failed, broke   an error that a store or a rival may lead to, and any other one
    begun, done     of a process; the latter is told once it has done something after all was calm again

A record's value is its writer, a slash, and its number: unique in a history. What must hold:

    dense       offsets of each place go on without a gap, from 0 in the end, and in each read
    once        no record is there twice
    sent        each record that is there was sent, and to that place
    kept        what was acknowledged is there; a producer's records at the offsets that it was told
    refused     nothing of a job that was told so is there
    whole       all rows of a job are there, or none; in the end, and at the ends of each read
    same        a read shows what is there in the end, at each offset
    fresh       a read shows what was acknowledged before it began
    order       a producer's records, a job's rows and a query's micro-batches lie in their order in each place
    sound       no process met an error of any other kind, and each did something once all was calm
"""

from __future__ import annotations

import bisect
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

_SHOWN_MAX = 5  # faults of a kind


class Read(NamedTuple):
    """The records that one read showed, by place."""

    by: str
    began: float
    starts: Mapping[str, int]
    offsets: Mapping[str, Sequence[int]]
    values: Mapping[str, Sequence[str]]

    def end(self, place: str) -> int:
        """Return where it ended in a place."""
        offsets = self.offsets.get(place, ())
        return offsets[-1] + 1 if offsets else self.starts.get(place, 0)


class _Place(NamedTuple):
    place: str
    offset: int


@dataclass
class History:
    """All that the processes of a history have told."""

    sent: dict[str, str] = field(default_factory=dict)  # the place of each record of a producer
    acknowledged: list[tuple[float, str, str, int]] = field(default_factory=list)  # value, place
    jobs: dict[str, list[str]] = field(default_factory=dict)  # the place of each row
    committed: dict[str, float] = field(default_factory=dict)  # when each job was first
    refused: set[str] = field(default_factory=set)
    reads: list[Read] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)
    maintained: Counter[str] = field(default_factory=Counter)
    done: set[str] = field(default_factory=set)  # labels of processes
    last_news_s: float = 0.0  # when something was acknowledged

    def take(self, line: Mapping[str, Any], reads: Path) -> None:
        """Add what a line tells.

        Args:
            line: of a process.
            reads: the folder of files with what was read.
        """
        what, by, at = line["what"], line["by"], line["at"]
        self.told[what] += 1
        match what:
            case "sent":
                for place, (first, count) in line["records"].items():
                    self.sent.update((f"{by}/{number}", place) for number in range(first, first + count))  # fmt: skip
            case "acknowledged":
                for number, offset in enumerate(line["offsets"], line["first"]):
                    if offset is not None:
                        self.acknowledged.append((at, f"{by}/{number}", line["place"], offset))
                        self.last_news_s = max(self.last_news_s, at)
            case "job":
                rows = self.jobs.setdefault(line["job"], line["places"])
                assert rows == line["places"], "a test's own fault: other rows under one name"
            case "committed":
                self.committed.setdefault(line["job"], at)
                self.last_news_s = max(self.last_news_s, at)
            case "refused":
                self.refused.add(line["job"])
            case "read":
                self.reads.append(read_of(by, line["began"], line["starts"], reads / line["file"]))
            case "maintained":
                numbers = ("merged", "deleted", "tombstones", "starts")
                self.maintained.update({name: line[name] for name in numbers})
            case "broke":
                self.broken.append(f"{by}: {line['error']}")
            case "done":
                self.done.add(by)


class Lines:
    """The lines that processes tell, as they come."""

    def __init__(self, folder: Path) -> None:
        """Read the files of a folder, which may grow and become more."""
        self._folder = folder
        self._positions: dict[Path, int] = {}

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that are new."""
        for path in sorted(self._folder.iterdir()):
            with path.open("rb") as file:
                file.seek(self._positions.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._positions[path] = self._positions.get(path, 0) + len(whole)
            for line in whole.splitlines():
                yield json.loads(line)


def read_of(by: str, began: float, starts: Mapping[str, int], file: Path) -> Read:
    """Return what a file of rows has, which is a table of topic, partition, offset and value."""
    with pa.OSFile(str(file)) as source, pa.ipc.open_file(source) as reader:
        return read_from(by, began, starts, reader.read_all())


def read_from(by: str, began: float, starts: Mapping[str, int], table: pa.Table) -> Read:
    """Return what a table of topic, partition, offset and value has."""
    offsets, values = dict[str, list[int]](), dict[str, list[str]]()
    columns = (table[name].to_pylist() for name in ("topic", "partition", "offset", "value"))
    for topic, partition, offset, value in zip(*columns, strict=True):
        place = f"{topic}-{partition}"
        offsets.setdefault(place, []).append(offset)
        values.setdefault(place, []).append(value.decode(errors="replace"))
    return Read(by, began, starts, offsets, values)


class Checker:
    """The rules above, checked on one history."""

    def __init__(self, history: History, final: Read | None) -> None:
        """Set up.

        Args:
            history: what is known of it.
            final: all that is there in the end, when nothing goes on any more; None if it cannot be read.
        """
        self._history, self._is_read = history, final is not None
        self._final = final or Read("", 0.0, {}, {}, {})
        self._where: dict[str, _Place] = {}  # of each record, once
        self._faults: dict[str, list[str]] = {}

    def faults(self) -> list[str]:
        """Return what does not hold, as sentences; some of each kind."""
        if self._is_read:
            self._check_end()
            self._check_acknowledged()
            self._check_jobs()
            self._check_order()
            for read in self._history.reads:
                self._check_read(read)
            self._check_fresh()
        for broken in self._history.broken:
            self._add("sound", broken)
        return [f"{kind}: {one}" for kind, found in self._faults.items() for one in _some(found)]

    def _add(self, kind: str, sentence: str) -> None:
        self._faults.setdefault(kind, []).append(sentence)

    def _check_end(self) -> None:
        """Check what is there in the end, and note where it is."""
        for place, values in self._final.values.items():
            if [*self._final.offsets[place]] != [*range(len(values))]:
                self._add("dense", f"in the end {place} has {_gap(self._final.offsets[place], 0)}")
            for offset, value in zip(self._final.offsets[place], values, strict=True):
                first = self._where.setdefault(value, _Place(place, offset))
                if first != (place, offset):
                    self._add("once", f"{value} is in {place} at {offset}, and in {first.place} at {first.offset}")  # fmt: skip
                if self._place_sent_to(value) != place:
                    self._add("sent", f"{value} is in {place} at {offset}, and was not sent there")

    def _place_sent_to(self, value: str) -> str | None:
        writer, _, number = value.rpartition("/")
        rows = self._history.jobs.get(writer)
        if rows is None:
            return self._history.sent.get(value)
        return rows[int(number)] if int(number) < len(rows) else None

    def _check_acknowledged(self) -> None:
        for _, value, place, offset in self._history.acknowledged:
            found = self._where.get(value)
            if found is None:
                self._add(
                    "kept", f"{value} was acknowledged in {place} at {offset}, and is nowhere"
                )
            elif found != (place, offset):
                self._add("kept", f"{value} was acknowledged in {place} at {offset}, and is in {found.place} at {found.offset}")  # fmt: skip

    def _check_jobs(self) -> None:
        for job, places in self._history.jobs.items():
            there = sum(f"{job}/{number}" in self._where for number in range(len(places)))
            if there not in (0, len(places)):
                self._add("whole", f"{there} of {len(places)} rows of {job} are there in the end")
            if job in self._history.committed and there < len(places):
                self._add("kept", f"{len(places) - there} rows of {job} are lost")
            if job in self._history.refused and there:
                self._add("refused", f"{job} was told that nothing of it is visible, and {there} rows are")  # fmt: skip

    def _check_order(self) -> None:
        for place, values in self._final.values.items():
            last: dict[str, tuple[int, ...]] = {}  # of each writer
            for value in values:
                writer, _, number = value.rpartition("/")
                query, is_numbered, batch = writer.partition("#")
                rank = (int(batch), int(number)) if is_numbered else (int(number),)
                if rank < last.get(query, ()):
                    self._add("order", f"{value} comes after {last[query]} of {query} in {place}")
                last[query] = rank

    def _check_read(self, read: Read) -> None:
        for place, offsets in read.offsets.items():
            start = read.starts.get(place, 0)
            if [*offsets] != [*range(start, start + len(offsets))]:
                self._add("dense", f"{_told(read)} has {_gap(offsets, start)} in {place}")
                continue
            values = read.values[place]
            end = self._final.values.get(place, ())[start : start + len(values)]
            if [*values] != [*end]:
                at, one, other = next(
                    (at, *pair)
                    for at, pair in enumerate(zip(values, [*end, *["nothing"] * len(values)], strict=False))
                    if pair[0] != pair[1]
                )  # fmt: skip
                self._add("same", f"{_told(read)} has {one} in {place} at {start + at}, and in the end {other} is there")  # fmt: skip
        ends = {place: read.end(place) for place in self._final.values}
        for job, bounds in self._bounds_of_jobs().items():
            is_seen = [first < ends[place] for place, (first, _) in bounds.items()]
            is_whole = [last < ends[place] for place, (_, last) in bounds.items()]
            if any(is_seen) and not all(is_whole):
                self._add("whole", f"{_told(read)} shows a part of {job}")

    def _bounds_of_jobs(self) -> Mapping[str, Mapping[str, tuple[int, int]]]:
        """Return the first and the last offset of each job that is there, by place."""
        if not hasattr(self, "_bounds"):
            self._bounds: dict[str, dict[str, tuple[int, int]]] = {}
            for job, places in self._history.jobs.items():
                for number in range(len(places)):
                    found = self._where.get(f"{job}/{number}")
                    if found is not None:
                        of_job = self._bounds.setdefault(job, {})
                        first, last = of_job.get(found.place, (found.offset, found.offset))
                        of_job[found.place] = min(first, found.offset), max(last, found.offset)
        return self._bounds

    def _check_fresh(self) -> None:
        told = [(at, place, offset) for at, _, place, offset in self._history.acknowledged]
        bounds = self._bounds_of_jobs()
        for job, at in self._history.committed.items():
            told += [(at, place, last) for place, (_, last) in bounds.get(job, {}).items()]
        for place in self._final.values:
            times, ends = list[float](), list[int]()
            for at, _, offset in sorted(one for one in told if one[1] == place):
                times.append(at)
                ends.append(max(offset + 1, ends[-1] if ends else 0))
            for read in self._history.reads:
                count = bisect.bisect_left(times, read.began)
                if count and read.end(place) < ends[count - 1]:
                    self._add("fresh", f"{_told(read)} ends at {read.end(place)} in {place}, and {ends[count - 1]} were acknowledged before")  # fmt: skip


def _some(found: Sequence[str]) -> Iterable[str]:
    yield from found[:_SHOWN_MAX]
    if len(found) > _SHOWN_MAX:
        yield f"and {len(found) - _SHOWN_MAX} more"


def _told(read: Read) -> str:
    return f"the read of {read.by} at {read.began:.3f}"


def _gap(offsets: Sequence[int], start: int) -> str:
    """Return where offsets do not go on."""
    for expected, offset in enumerate(offsets, start):
        if offset != expected:
            return f"offset {offset} in place of {expected}"
    return "all"
