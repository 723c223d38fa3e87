"""Third-party clients write to and read from a cluster as from any Kafka broker."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.server.groups.group import GroupState
from tests.server.conftest import BUT_KCAT, Connect
from tests.support import builders
from tests.support.clients.aio_kafka import AioKafka
from tests.support.clients.interface import Client, Described, Member
from tests.support.clients.java import JavaTools
from tests.support.clients.kafka_python import KafkaPython
from tests.support.clients.kcat import Kcat
from tests.support.clients.librdkafka import Librdkafka
from tests.support.logs_for_kafka import a_cluster_of_all_codecs, odd_records
from tests.support.reference import (
    CODEC_MASK,
    CODECS,
    BatchHeader,
    Record,
    read_header,
    split_batches,
)
from tests.support.waiting import until

TIMES_MS = [1_700_000_000_000 + 1000 * n for n in range(5)]


def without_times(records: Sequence[Record]) -> list[Record]:
    return [record._replace(timestamp=0) for record in records]


def stored_batches(cluster: Cluster, topic: str, partition: int = 0) -> list[BatchHeader]:
    """Return the headers of all batches in a partition's files."""
    folder = cluster.path / "broker-0" / f"{topic}-{partition}"
    return [
        read_header(batch)
        for path in sorted(folder.glob("*.log"))
        for batch in split_batches(path.read_bytes())
    ]


# Records.


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_records_of_a_client_are_stored_as_sent(
    tmp_path: Path, connect: Connect, idempotent: bool
) -> None:
    with builders.a_cluster(tmp_path, topics=dict.fromkeys(CODECS, 1)) as cluster:
        with cluster.serve() as server:
            client = connect(server.bootstrap_servers)
            for seed, codec in enumerate(CODECS):
                records = {0: client.as_sent(odd_records(200, seed=seed))}
                client.produce(codec, records, codec=codec, idempotent=idempotent)

        for seed, (codec, number) in enumerate(CODECS.items()):
            expected = client.as_sent(odd_records(200, seed=seed))
            found = builders.read_records(cluster, codec)
            if not client.sets_times:
                expected, found = without_times(expected), without_times(found)
            assert found == expected
            batches = stored_batches(cluster, codec)
            assert len(batches) > 1
            # A batch stays uncompressed if the codec would make it larger.
            assert {batch.attributes & CODEC_MASK for batch in batches} <= {number, 0}
            assert any(batch.attributes & CODEC_MASK == number for batch in batches)
            assert all((batch.producer_id >= 0) == idempotent for batch in batches)


def test_a_client_reads_each_codec_from_the_start_and_from_the_middle_of_a_batch(
    tmp_path: Path, connect: Connect
) -> None:
    cluster, held = a_cluster_of_all_codecs(tmp_path, n=300)

    with cluster, cluster.serve() as server:
        client = connect(server.bootstrap_servers)
        whole = client.read("events", dict.fromkeys(range(len(CODECS)), 0))
        rest = client.read("events", dict.fromkeys(range(len(CODECS)), 123))

    assert [whole[p] for p in range(len(CODECS))] == held
    assert [rest[p] for p in range(len(CODECS))] == [records[123:] for records in held]


def test_a_client_finds_offsets_by_time(tmp_path: Path, connect: Connect) -> None:
    with builders.a_cluster(tmp_path, topics={"events": 2}) as cluster:
        with cluster.producer() as producer:
            for time_ms in TIMES_MS:
                producer.send("events", value=b"v", partition=1, timestamp=time_ms)
        with cluster.serve() as server:
            client = connect(server.bootstrap_servers)
            asked = [TIMES_MS[0] - 1, TIMES_MS[2], TIMES_MS[2] + 1, TIMES_MS[-1] + 1]
            found = [client.offsets_by_time("events", 2, time_ms) for time_ms in asked]

    assert [one[1] for one in found] == [0, 2, 3, None]
    assert [one[0] for one in found] == [None] * 4


# Groups.


class Numbers:
    """A producer of values 0, 1, .. to all partitions of a topic in turn."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int) -> None:
        self._cluster, self._topic, self._partitions = cluster, topic, partitions
        self.sent: list[bytes] = []

    def send(self, count: int) -> None:
        with self._cluster.producer() as producer:
            for n in range(len(self.sent), len(self.sent) + count):
                self.sent.append(b"%d" % n)
                producer.send(self._topic, value=b"%d" % n, partition=n % self._partitions)

    def are_seen_by(self, *members: Member, after: int = 0) -> bool:
        """Return True if the members have read all values, but for the first ones."""
        seen = {value for member in members for _, _, value in member.records}
        return {*self.sent[after:]} <= seen


def has(count: int, *members: Member) -> bool:
    """Return True if `count` partitions are assigned among these members, none of them twice."""
    given = [partition for member in members for partition in member.assigned]
    return len(given) == len({*given}) == count and all(member.assigned for member in members)


@pytest.mark.parametrize(
    "connect",
    [
        Librdkafka.name,
        *(pytest.param(one.name, marks=pytest.mark.slow) for one in (KafkaPython, AioKafka)),
        pytest.param(JavaTools.name, marks=pytest.mark.interop),
        pytest.param(Kcat.name, marks=pytest.mark.interop),
    ],
    indirect=True,
)
def test_members_join_leave_and_die(tmp_path: Path, connect: Connect) -> None:
    with (
        builders.a_cluster(tmp_path, topics={"events": 4}) as cluster,
        cluster.serve() as server,
    ):
        client = connect(server.bootstrap_servers)
        numbers = Numbers(cluster, "events", 4)
        numbers.send(40)
        with (
            client.member("group", "events") as first,
            contextlib.ExitStack() as others,
        ):
            until(lambda: numbers.are_seen_by(first), "one member reads all partitions")
            assert has(4, first)

            second = others.enter_context(client.member("group", "events"))
            until(lambda: has(4, first, second), "the second member gets its share")
            numbers.send(40)
            until(lambda: numbers.are_seen_by(first, second), "two members read on")

            second.leave()
            until(lambda: has(4, first), "the share of one that leaves is given to the other")
            third = others.enter_context(client.member("group", "events"))
            until(lambda: has(4, first, third), "the third member gets its share")
            third.die()
            until(lambda: has(4, first), "the share of one that died is given to the other")
            numbers.send(40)
            until(lambda: numbers.are_seen_by(first, second, third), "nothing is left out")
            seen = [(p, o) for one in (first, second, third) for p, o, _ in one.records]

    assert len(seen) == len({*seen}), "what was committed is not read again"


def test_a_group_resumes_from_its_committed_offsets_after_a_restart_of_the_server(
    tmp_path: Path, connect: Connect
) -> None:
    with builders.a_cluster(tmp_path, topics={"events": 2}) as cluster:
        numbers = Numbers(cluster, "events", 2)
        numbers.send(20)
        with cluster.serve() as server:
            with connect(server.bootstrap_servers).member("group", "events") as before:
                until(lambda: numbers.are_seen_by(before), "the group reads")
                before.leave()
        numbers.send(20)
        with cluster.serve() as server:
            with connect(server.bootstrap_servers).member("group", "events") as after:
                until(lambda: numbers.are_seen_by(before, after), "the group goes on")

    values = [value for one in (before, after) for _, _, value in one.records]
    assert sorted(values) == sorted(numbers.sent)


@pytest.mark.parametrize("connect", BUT_KCAT, indirect=True)  # kcat ends when its server does
def test_a_member_reads_on_without_a_rebalance_after_a_restart_of_the_server(
    tmp_path: Path, connect: Connect
) -> None:
    with (
        builders.a_cluster(tmp_path, topics={"events": 2}) as cluster,
        contextlib.ExitStack() as end,
    ):
        numbers = Numbers(cluster, "events", 2)
        numbers.send(20)
        with cluster.serve() as server:
            client = connect(server.bootstrap_servers)
            member = end.enter_context(client.member("g", "events", session_timeout_ms=30_000))
            until(lambda: numbers.are_seen_by(member), "the member reads")
            rebalances = member.rebalances
        numbers.send(20)
        with cluster.serve(port=server.port):
            until(lambda: numbers.are_seen_by(member), "the member goes on")
            assert member.rebalances == rebalances
            member.leave()

    assert sorted(value for _, _, value in member.records) == sorted(numbers.sent)


# aiokafka sends no instance id with a heartbeat, so it never learns that it is fenced, and joins again.
KNOW_FENCING = [
    Librdkafka.name,
    KafkaPython.name,
    pytest.param(Kcat.name, marks=pytest.mark.interop),
    pytest.param(JavaTools.name, marks=pytest.mark.interop),
]


@pytest.mark.parametrize("connect", KNOW_FENCING, indirect=True)
def test_a_static_member_that_restarts_takes_its_place_and_fences_any_other_with_its_id(
    tmp_path: Path, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_kbatch.server.groups")
    with (
        builders.a_cluster(tmp_path, topics={"events": 4}) as cluster,
        cluster.serve() as server,
        contextlib.ExitStack() as end,
    ):
        client = connect(server.bootstrap_servers)

        def member(instance_id: str) -> Member:
            return end.enter_context(
                client.member("g", "events", session_timeout_ms=30_000, instance_id=instance_id)
            )

        def reasons() -> list[str]:
            return [text for text in caplog.messages if "rebalances" in text]

        def is_stable() -> bool:
            group = server._groups._memberships.groups["g"]
            return group.state is GroupState.STABLE and group.generation == len(reasons())

        numbers = Numbers(cluster, "events", 4)
        first, second = member("first"), member("second")
        until(lambda: has(4, first, second), "each member gets its share")
        until(is_stable, "each rebalance has a reason, and has ended")
        before = len(reasons())

        first.leave()
        numbers.send(40)
        again = member("first")
        until(lambda: again.assigned == first.assigned, "it gets the partitions that it had")
        until(lambda: numbers.are_seen_by(second, again), "both read on")
        other = member("second")
        until(lambda: other.assigned == second.assigned, "another one gets those of the second")
        numbers.send(40)
        until(lambda: numbers.are_seen_by(again, other, after=40), "both read on")
        until(lambda: not second.is_running, "the fenced one ends")

        assert re.search("fenced", second.said(), re.IGNORECASE)
        # Neither restart starts a rebalance. The group's leader may ask for one, as kafka-python's does if it
        # gets the topic's metadata only after it has joined.
        until(is_stable, "each rebalance has a reason, and has ended")
        asked = r"generation \d+: member \S+ joins again$"
        assert all(re.search(asked, reason) for reason in reasons()[before:])


# Administration.


@pytest.mark.parametrize("connect", BUT_KCAT, indirect=True)  # which has no administration
def test_a_client_administers_a_topic_from_creation_to_deletion(
    tmp_path: Path, connect: Connect
) -> None:
    with builders.a_cluster(tmp_path, topics={"other": 1}) as cluster, cluster.serve() as server:
        administer(cluster, connect(server.bootstrap_servers))


def administer(cluster: Cluster, client: Client) -> None:
    keys = ["retention.ms", "segment.bytes", "cleanup.policy"]

    client.create_topic("made", 2, {"retention.ms": "1000000000000"})
    assert client.topics() == {"made", "other"}
    assert cluster.topic("made").config.retention_ms == 1_000_000_000_000
    created = client.describe("made", keys)
    assert created == Described(
        2,
        {
            "retention.ms": "1000000000000",
            "segment.bytes": str(TopicConfig().segment_bytes),
            "cleanup.policy": "delete",
        },
    )

    client.alter("made", {"segment.bytes": "1048576"})
    assert client.describe("made", keys).config["segment.bytes"] == "1048576"
    assert cluster.topic("made").config.segment_bytes == 1_048_576

    client.grow("made", 5)
    assert client.describe("made", keys).partitions == 5
    assert cluster.topic("made").partitions == 5

    builders.append_records(cluster, {("made", 1): builders.batch(n=10)})
    client.delete_records("made", {1: 4})
    assert [record.offset for record in builders.read_records(cluster, "made")] == [*range(4, 10)]

    client.delete_topic("made")
    assert client.topics() == {"other"}
    assert cluster.topic_names() == ["other"]
