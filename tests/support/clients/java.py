"""Kafka's own tools: the console and the verifiable producers and consumers, and operators' tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.support.clients.interface import (
    SESSION_TIMEOUT_MS,
    ByPartition,
    Client,
    Described,
    Event,
    Member,
)
from tests.support.kafka import Kafka
from tests.support.kafka_clients import Address, offsets_by_shell, read_by_console
from tests.support.kafka_topics import as_line
from tests.support.reference import Record

TOOLS = "org.apache.kafka.tools"


class JavaTools(Client):
    name = "Java"
    sets_times = False

    def __init__(self, address: str, kafka: Kafka, folder: Path) -> None:
        super().__init__(address)
        self._kafka, self._folder = kafka, folder

    def run(self, tool: str, *words: object, stdin: str = "", names_the_server: bool = True) -> str:
        """Run a tool and return its output; add the server's address, unless `names_the_server` is false."""
        if names_the_server:
            words = ("--bootstrap-server", self.address, *words)
        return self._kafka.run(_class_of(tool), *words, stdin=stdin)

    def command(self, tool: str, *words: object) -> list[str]:
        """Return the command of a tool that runs until it is killed."""
        return self._kafka.command(_class_of(tool), "--bootstrap-server", self.address, *words)

    # Records.

    def as_sent(self, records: Sequence[Record]) -> list[Record]:
        return [
            record._replace(headers=tuple(one for one in record.headers if one[0]))
            for record in records
        ]

    def produce(
        self, topic: str, records: ByPartition, *, codec: str = "none", idempotent: bool = False
    ) -> None:
        assert [*records] == [0], "the console's producer does not choose a partition"
        self.run(
            "ConsoleProducer", "--topic", topic, "--compression-codec", codec,
            "--batch-size", 3000, "--request-required-acks", "all",
            "--producer-property", f"enable.idempotence={str(idempotent).lower()}",
            "--property", "parse.key=true", "--property", "parse.headers=true",
            "--property", "null.marker=<null>",
            stdin="".join(map(as_line, records[0])),
        )  # fmt: skip

    def read(self, topic: str, starts: Mapping[int, int]) -> dict[int, list[Record]]:
        found: dict[int, list[Record]] = {}
        for partition, start in starts.items():
            (end,) = self._ends(topic, partition)
            found |= read_by_console(
                self._kafka, Address(self.address), topic, end - start, partition=partition,
                offset=start,
            )  # fmt: skip
        return found

    def _ends(self, topic: str, partition: int) -> list[int]:
        found = offsets_by_shell(self._kafka, Address(self.address), topic, -1)
        return [found[partition]]

    def offsets_by_time(self, topic: str, partitions: int, time_ms: int) -> dict[int, int | None]:
        found = offsets_by_shell(self._kafka, Address(self.address), topic, time_ms)
        return {p: found.get(p) for p in range(partitions)}

    # Groups.

    def member(
        self,
        group: str,
        topic: str,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        instance_id: str | None = None,
    ) -> Member:
        config = self._folder / "member.properties"
        config.write_text("heartbeat.interval.ms=500\nmetadata.max.age.ms=1000\n")
        return Member(
            self.command(
                "VerifiableConsumer", "--topic", topic, "--group-id", group, "--session-timeout", session_timeout_ms,
                "--reset-policy", "earliest", "--verbose", "--consumer.config", config,
                *(("--group-instance-id", instance_id) if instance_id else ()),
            ),
            _event,
        )  # fmt: skip

    # Administration.

    def topics(self) -> set[str]:
        return {*self.run("TopicCommand", "--list", "--exclude-internal").split()}

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        given = (word for one in config.items() for word in ("--config", "=".join(one)))
        self.run(
            "TopicCommand", "--create", "--topic", topic, "--partitions", partitions,
            "--replication-factor", 1, *given,
        )  # fmt: skip

    def describe(self, topic: str, keys: Iterable[str]) -> Described:
        told = self.run("TopicCommand", "--describe", "--topic", topic)
        match = re.search(r"PartitionCount: (\d+)", told)
        assert match, told
        told = self._configs(topic, "--describe", "--all")
        config = dict(re.findall(r"^  (\S+)=(.*?) sensitive=", told, re.MULTILINE))
        return Described(int(match.group(1)), {key: config[key] for key in keys})

    def _configs(self, topic: str, *words: object) -> str:
        return self.run(
            "kafka.admin.ConfigCommand", "--entity-type", "topics", "--entity-name", topic, *words
        )

    def alter(self, topic: str, config: Mapping[str, str]) -> None:
        given = ",".join("=".join(one) for one in config.items())
        self._configs(topic, "--alter", "--add-config", given)

    def grow(self, topic: str, partitions: int) -> None:
        self.run("TopicCommand", "--alter", "--topic", topic, "--partitions", partitions)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        wanted = self._folder / "delete-records.json"
        partitions = [{"topic": topic, "partition": p, "offset": o} for p, o in before.items()]
        wanted.write_text(json.dumps({"partitions": partitions, "version": 1}))
        self.run("DeleteRecordsCommand", "--offset-json-file", wanted)

    def delete_topic(self, topic: str) -> None:
        self.run("TopicCommand", "--delete", "--topic", topic)


def _class_of(tool: str) -> str:
    return tool if tool.startswith("kafka.") else f"{TOOLS}.{tool}"


def _event(line: str) -> Event | None:
    if not line.startswith("{"):
        return None
    told = json.loads(line)
    match told["name"]:
        case "partitions_assigned":
            return Event(assigned=[one["partition"] for one in told["partitions"]])
        case "partitions_revoked":
            return Event(revoked=[one["partition"] for one in told["partitions"]])
        case "record_data":
            return Event(records=[(told["partition"], told["offset"], told["value"].encode())])
    return None
