"""kcat, as Debian packages it: librdkafka with a command line. It has no administration."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from tests.support.clients.interface import (
    SESSION_TIMEOUT_MS,
    TIMEOUT_S,
    ByPartition,
    Client,
    Event,
    Member,
)
from tests.support.reference import Record

MISSING = (
    "kcat is not installed; install it with: apt-get install kcat   (macOS: brew install kcat)"
)

_REBALANCED = re.compile(r"% Group .*: (assigned|revoked): (.*)")
_PARTITION = re.compile(r"\[(\d+)\]")


class Kcat(Client):
    name = "kcat"
    sets_times = False

    @staticmethod
    def is_installed() -> bool:
        return shutil.which("kcat") is not None

    def _run(self, *words: object, stdin: str = "") -> str:
        done = subprocess.run(
            self._command(*words), input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _command(self, *words: object) -> list[str]:
        return ["kcat", "-b", self.address, *map(str, words)]

    def as_sent(self, records: Sequence[Record]) -> list[Record]:
        # With -Z empty values become null; without it no null can be sent.
        return [
            record._replace(
                key=record.key or None,
                value=record.value or None,
                headers=tuple((name, value or b"") for name, value in record.headers if name),
            )
            for record in records
        ]

    def produce(
        self, topic: str, records: ByPartition, *, codec: str = "none", idempotent: bool = False
    ) -> None:
        settings = {
            "acks": "all", "enable.idempotence": str(idempotent).lower(), "batch.size": 3000,
            "linger.ms": 5,
        }  # fmt: skip
        given = [f"-X{key}={value}" for key, value in settings.items()]
        for partition, some in records.items():
            # All records of a call have the same headers.
            for headers, alike in itertools.groupby(some, lambda record: record.headers):
                self._run(
                    "-P", "-t", topic, "-p", partition, "-z", codec, "-K", ":", "-Z", *given,
                    *(f"-H{key}={_text(value)}" for key, value in headers),
                    stdin="".join(f"{_text(one.key)}:{_text(one.value)}\n" for one in alike),
                )  # fmt: skip

    def read(self, topic: str, starts: Mapping[int, int]) -> dict[int, list[Record]]:
        found = {}
        for partition, offset in starts.items():
            printed = self._run(
                "-C", "-t", topic, "-p", partition, "-o", offset, "-e", "-q", "-J",
                "-Xcheck.crcs=true",
            )  # fmt: skip
            found[partition] = [_record(json.loads(line)) for line in printed.splitlines()]
        return found

    def offsets_by_time(self, topic: str, partitions: int, time_ms: int) -> dict[int, int | None]:
        words = (word for p in range(partitions) for word in ("-t", f"{topic}:{p}:{time_ms}"))
        printed = self._run("-Q", *words)
        found: dict[int, int | None] = {}
        for line in printed.splitlines():
            match = re.fullmatch(r".* \[(\d+)\] offset (-?\d+)", line)
            assert match, line
            partition, offset = map(int, match.groups())
            found[partition] = None if offset == -1 else offset
        return found

    def member(
        self,
        group: str,
        topic: str,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        instance_id: str | None = None,
    ) -> Member:
        settings = {
            "session.timeout.ms": session_timeout_ms, "heartbeat.interval.ms": 500,
            "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100,
        }  # fmt: skip
        if instance_id is not None:
            settings["group.instance.id"] = instance_id
        given = [f"-X{key}={value}" for key, value in settings.items()]
        return Member(self._command("-G", group, *given, "-u", "-J", topic), _event)


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode()


def _record(told: Mapping[str, object]) -> Record:
    def data(name: str) -> bytes | None:
        value = told.get(name)
        return None if value is None else str(value).encode()

    return Record(
        int(str(told["offset"])),
        int(str(told["ts"])),
        data("key"),
        data("payload"),
        tuple(_headers(told.get("headers") or [])),  # type: ignore[arg-type]
    )


def _headers(told: Sequence[str | None]) -> Iterator[tuple[str, bytes | None]]:
    for name, value in zip(told[::2], told[1::2], strict=True):
        yield str(name), None if value is None else value.encode()


def _event(line: str) -> Event | None:
    if line.startswith("{"):
        told = json.loads(line)
        return Event(records=[(told["partition"], told["offset"], told["payload"].encode())])
    match = _REBALANCED.match(line)
    if match is None:
        return None
    partitions = [int(number) for number in _PARTITION.findall(match.group(2))]
    return Event(assigned=partitions) if match.group(1) == "assigned" else Event(revoked=partitions)
