"""The interface of clients, and members of groups in separate processes.

A member prints a line of JSON for each event: `{"assigned": [0, 1]}`, `{"revoked": [0]}`, or
`{"partition": 0, "offset": 7, "value": "..."}`. It commits the records that it has printed. On SIGTERM it
leaves the group.
"""

from __future__ import annotations

import abc
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

from tests.support.reference import Record
from tests.support.waiting import TIMEOUT_S

# Kafka's minimum, group.min.session.timeout.ms.
SESSION_TIMEOUT_MS = 6_000
REPOSITORY = Path(__file__).resolve().parents[3]

ByPartition = Mapping[int, Sequence[Record]]


class Described(NamedTuple):
    """A topic as an admin client describes it."""

    partitions: int
    config: Mapping[str, str]  # the requested settings


class Client(abc.ABC):
    """A client of one server."""

    name: ClassVar[str]
    sets_times: ClassVar[bool] = True  # otherwise records get the time at which they are sent

    def __init__(self, address: str) -> None:
        self.address = address

    # Records.

    def as_sent(self, records: Sequence[Record]) -> list[Record]:
        """Return the records as they arrive: some clients cannot send every valid record."""
        return [*records]

    @abc.abstractmethod
    def produce(
        self, topic: str, records: ByPartition, *, codec: str = "none", idempotent: bool = False
    ) -> None:
        """Send records with acks=all, in several batches; on return all are acknowledged."""

    @abc.abstractmethod
    def read(self, topic: str, starts: Mapping[int, int]) -> dict[int, list[Record]]:
        """Return all records from these offsets to the current ends of the partitions."""

    @abc.abstractmethod
    def offsets_by_time(self, topic: str, partitions: int, time_ms: int) -> dict[int, int | None]:
        """Return the first offset of each partition whose record is as late; None if there is none."""

    # Groups.

    @abc.abstractmethod
    def member(
        self,
        group: str,
        topic: str,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        instance_id: str | None = None,
    ) -> Member:
        """Start a member, which reads partitions without committed offsets from their start.

        With an instance id it is a static member.
        """

    # Administration.

    def topics(self) -> set[str]:
        """Return the names of topics that are not internal."""
        raise NotImplementedError

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        raise NotImplementedError

    def describe(self, topic: str, keys: Iterable[str]) -> Described:
        raise NotImplementedError

    def alter(self, topic: str, config: Mapping[str, str]) -> None:
        """Change these settings; clients that cannot keep the others reset them."""
        raise NotImplementedError

    def grow(self, topic: str, partitions: int) -> None:
        raise NotImplementedError

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        raise NotImplementedError


def with_key_or_value(records: Iterable[Record]) -> list[Record]:
    """Give records with neither key nor value an empty value, for clients that refuse them."""
    return [one._replace(value=b"") if one.key is None is one.value else one for one in records]


def not_internal(names: Iterable[str]) -> set[str]:
    """Return the names of topics that are not internal."""
    return {name for name in names if not name.startswith("__")}


class Event(NamedTuple):
    """An event of a member: partitions that it got or lost, or records that it read."""

    assigned: Sequence[int] = ()
    revoked: Sequence[int] = ()
    records: Sequence[tuple[int, int, bytes]] = ()  # partition, offset, value


class Member:
    """A process that is one member of a group. A thread reads its output."""

    def __init__(self, command: Sequence[str], parse: Callable[[str], Event | None]) -> None:
        """Start the process; `parse` returns the event of a line of output, or None."""
        self.assigned: frozenset[int] = frozenset()
        self.rebalances = 0  # rebalances in which it got or lost partitions
        self.records: list[tuple[int, int, bytes]] = []
        self._said: list[str] = []
        self._parse = parse
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line)
            event = self._parse(line)
            if event is None:
                continue
            self.records += event.records
            changed = (self.assigned | {*event.assigned}) - {*event.revoked}
            self.rebalances += changed != self.assigned
            self.assigned = changed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_running:
            self.die()
        self._listener.join(TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        if error is not None:
            error.add_note(f"a member said:\n{''.join(self._said[-40:])}")

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return self._process.poll() is None

    def said(self) -> str:
        """Return all of its output, of a process that has ended."""
        self._listener.join(TIMEOUT_S)
        return "".join(self._said)

    def leave(self) -> None:
        """End it as an operator does, so that it leaves the group, unless it is a static member."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(TIMEOUT_S)

    def die(self) -> None:
        """Kill it; the group notices when its session has timed out."""
        self._process.kill()
        self._process.wait(TIMEOUT_S)


# Members that are Python programs around a client.


def python_member(
    module: str,
    address: str,
    group: str,
    topic: str,
    session_timeout_ms: int,
    instance_id: str | None,
) -> Member:
    """Start a member whose program is a module of this package."""
    words = [sys.executable, "-u", "-m", module, address, group, topic, str(session_timeout_ms)]
    return Member([*words, *([instance_id] if instance_id else [])], _parse_json)


def _parse_json(line: str) -> Event | None:
    if not line.startswith("{"):
        return None
    told = json.loads(line)
    if "offset" in told:
        return Event(records=[(told["partition"], told["offset"], told["value"].encode())])
    return Event(told.get("assigned", ()), told.get("revoked", ()))


def tell(**event: object) -> None:
    """Print one event of this process, in one piece: what a client logs goes to the same pipe."""
    sys.stdout.write(f"{json.dumps(event)}\n")
    sys.stdout.flush()


class Rebalances:
    """The calls of a rebalance listener, told as events; for clients whose listeners are classes."""

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        tell(assigned=[one.partition for one in assigned])

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        tell(revoked=[one.partition for one in revoked])


def tell_records(by_partition: Mapping[Any, Iterable[Any]]) -> None:
    """Tell the records that kafka-python or aiokafka has returned."""
    for some in by_partition.values():
        for one in some:
            tell(partition=one.partition, offset=one.offset, value=one.value.decode())


def record_of(one: Any) -> Record:
    """Return a record of kafka-python or aiokafka."""
    return Record(one.offset, one.timestamp, one.key, one.value, tuple(one.headers))


class Leaving:
    """A flag that is set when SIGTERM arrives."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True
