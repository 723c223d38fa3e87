"""Kafka's own tools, with our server in the broker's place.

`tests/server/test_clients.py` tests what every client does; here is what only these tools do.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from tests.support import builders
from tests.support.clients.interface import SESSION_TIMEOUT_MS
from tests.support.clients.java import JavaTools
from tests.support.kafka import Kafka
from tests.support.reference import CODECS
from tests.support.waiting import until

pytestmark = pytest.mark.interop

TOPIC, PARTITIONS = "events", 3
RECORDS = 2000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with builders.a_cluster(tmp_path, topics={TOPIC: PARTITIONS}) as cluster:
        yield cluster


@pytest.fixture
def tools(kafka: Kafka, cluster: Cluster, tmp_path: Path) -> Iterator[JavaTools]:
    with cluster.serve() as server:
        yield JavaTools(server.bootstrap_servers, kafka, tmp_path)


def fill(cluster: Cluster, count: int = 30) -> None:
    with cluster.producer() as producer:
        for n in range(count):
            producer.send(
                TOPIC, value=b"%d" % n, partition=n % PARTITIONS,
                timestamp=builders.FIRST_TIMESTAMP_MS + 1000 * n,
            )  # fmt: skip


def test_the_verifiable_producers_numbers_are_all_acknowledged_and_consumed(
    cluster: Cluster, tools: JavaTools
) -> None:
    printed = tools.run(
        "VerifiableProducer", "--topic", TOPIC, "--max-messages", RECORDS, "--acks", -1
    )
    told = [json.loads(line) for line in printed.splitlines()]
    acknowledged = {
        (one["partition"], one["offset"]): one["value"].encode()
        for one in told
        if one["name"] == "producer_send_success"
    }
    with tools.member("group", TOPIC) as member:
        until(lambda: len(member.records) >= RECORDS, "all is consumed")
        member.leave()

    assert told[-1]["name"] == "shutdown_complete" or told[-1]["acked"] == RECORDS
    assert len(acknowledged) == RECORDS
    assert {(p, offset): value for p, offset, value in member.records} == acknowledged
    stored = [(one.offset, one.value) for one in builders.read_records(cluster, TOPIC)]
    assert sorted(stored) == sorted((offset, value) for (_, offset), value in acknowledged.items())


@pytest.mark.parametrize("codec", CODECS)
def test_the_producers_performance_test_loses_nothing(
    cluster: Cluster, tools: JavaTools, codec: str
) -> None:
    printed = tools.run(
        "ProducerPerformance", "--topic", TOPIC, "--num-records", 20_000, "--record-size", 100,
        "--throughput", -1, "--producer-props", f"bootstrap.servers={tools.address}", "acks=all",
        "batch.size=65536", "linger.ms=5", f"compression.type={codec}",
        names_the_server=False,
    )  # fmt: skip

    assert "20000 records sent" in printed
    assert sum(len(records) for records in builders.contents(cluster).values()) == 20_000


def test_the_console_consumers_group_reads_each_record_once(
    cluster: Cluster, tools: JavaTools
) -> None:
    fill(cluster)

    def read(count: int) -> list[str]:
        return tools.run(
            "consumer.ConsoleConsumer", "--topic", TOPIC, "--group", "console", "--from-beginning",
            "--max-messages", count, "--timeout-ms", 30_000,
        ).split()  # fmt: skip

    assert sorted(read(20) + read(10), key=int) == [str(n) for n in range(30)]


def groups(tools: JavaTools, *words: object) -> str:
    return tools.run("consumer.group.ConsumerGroupCommand", *words)


def offsets(printed: str) -> dict[int, tuple[int, int]]:
    """Return committed offset and lag of each partition."""
    found = re.findall(rf"{TOPIC}\s+(\d+)\s+(\d+)\s+\d+\s+(\d+)", printed)
    return {int(p): (int(offset), int(lag)) for p, offset, lag in found}


def test_the_groups_tool_lists_describes_resets_and_deletes_groups(
    cluster: Cluster, tools: JavaTools
) -> None:
    fill(cluster)
    with tools.member("group", TOPIC) as member:
        until(lambda: len(member.records) == 30, "the group reads")
        assert groups(tools, "--list").split() == ["group"]
        state = groups(tools, "--describe", "--group", "group", "--state")
        assert "Stable" in state
        assert "range" in state
        members = groups(tools, "--describe", "--group", "group", "--members", "--verbose")
        assert re.search(r"group\s+consumer-group-\S+\s.*\s3\s", members), members
        assert "GroupNotEmptyException" in groups(tools, "--delete", "--group", "group")
        member.leave()
    assert offsets(groups(tools, "--describe", "--group", "group")) == dict.fromkeys(
        range(3), (10, 0)
    )

    reset = ["--reset-offsets", "--group", "group", "--topic", TOPIC, "--execute"]
    groups(tools, *reset, "--to-offset", 4)
    assert offsets(groups(tools, "--describe", "--group", "group")) == dict.fromkeys(
        range(3), (4, 6)
    )
    # 15 s after the first record, each partition has 5 that are earlier.
    groups(tools, *reset, "--to-datetime", "2023-11-14T22:13:35.000")
    assert offsets(groups(tools, "--describe", "--group", "group")) == dict.fromkeys(
        range(3), (5, 5)
    )
    groups(tools, "--delete-offsets", "--group", "group", "--topic", TOPIC)
    groups(tools, "--delete", "--group", "group")
    assert groups(tools, "--list").split() == []


def test_the_api_versions_tool_is_answered(tools: JavaTools) -> None:
    printed = tools.run("BrokerApiVersionsCommand")

    assert "Produce(0): 0 to 12" in printed
    assert "Fetch(1): 4 to 12" in printed


def test_the_log_dirs_tool_shows_sizes_of_all_partitions(
    cluster: Cluster, tools: JavaTools
) -> None:
    fill(cluster)
    printed = tools.run("LogDirsCommand", "--describe")
    told = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))

    ((log_dir,),) = [one["logDirs"] for one in told["brokers"]]
    assert (log_dir["logDir"], log_dir["error"]) == (cluster.log_dirs()[0].path, None)
    found = {one["partition"]: (one["size"], one["offsetLag"]) for one in log_dir["partitions"]}
    sizes = {name: one["Size"] for name, one in cluster.metrics()["Log"].items()}
    assert found == {name: (size, 0) for name, size in sizes.items()}
    assert found[f"{TOPIC}-0"][0] > 0
    some = tools.run("LogDirsCommand", "--describe", "--topic-list", TOPIC)
    assert "__commits" not in some


def test_the_configs_tool_shows_settings_of_the_broker_and_of_all(
    cluster: Cluster, tools: JavaTools
) -> None:
    def shown(*words: object) -> str:
        return tools.run("kafka.admin.ConfigCommand", "--describe", "--entity-type", *words)

    of_broker = shown("brokers", "--entity-name", 1, "--all")
    log_dir = cluster.log_dirs()[0].path
    assert (
        f"log.dirs={log_dir} sensitive=false synonyms={{STATIC_BROKER_CONFIG:log.dirs={log_dir}}}"
        in of_broker
    )
    assert f"listeners=PLAINTEXT://{tools.address} " in of_broker
    assert (
        "num.partitions=1 sensitive=false synonyms={DEFAULT_CONFIG:num.partitions=1}" in of_broker
    )
    assert shown("brokers", "--entity-default").split() == [
        *"Default configs for brokers in the cluster are:".split()
    ]
    assert (
        "segment.bytes=1073741824 sensitive=false synonyms={DEFAULT_CONFIG:log.segment.bytes"
        in (shown("topics", "--entity-name", TOPIC, "--all"))
    )
    with pytest.raises(AssertionError, match="resources of type 8 have no settings here"):
        shown("broker-loggers", "--entity-name", 1)


def test_the_offsets_tool_finds_the_latest_record_and_nothing_in_tiered_storage(
    cluster: Cluster, tools: JavaTools
) -> None:
    fill(cluster)

    def offsets_at(time: object) -> list[str]:
        return tools.run("GetOffsetShell", "--topic", TOPIC, f"--time={time}").split()

    assert offsets_at(-3) == offsets_at("max-timestamp") == [f"{TOPIC}:{p}:9" for p in range(3)]
    assert offsets_at(-4) == offsets_at("earliest-local") == [f"{TOPIC}:{p}:0" for p in range(3)]
    assert offsets_at(-5) == offsets_at("latest-tiered") == []


def test_the_transactional_tool_writes_and_its_transactions_are_listed(
    cluster: Cluster, tools: JavaTools
) -> None:
    told = tools.run(
        "ProducerPerformance", "--topic", TOPIC, "--num-records", 1000, "--record-size", 10,
        "--throughput", -1, "--transactional-id", "t", "--transaction-duration-ms", 10,
        "--producer-props", f"bootstrap.servers={tools.address}",
        names_the_server=False,
    )  # fmt: skip
    assert "1000 records sent" in told
    until(lambda: cluster.read(TOPIC).read_all().num_rows == 1000)
    assert "CompleteCommit" in tools.run("TransactionsCommand", "list")


def test_partitions_of_a_killed_console_consumer_go_back_to_the_other_member(
    cluster: Cluster, tools: JavaTools
) -> None:
    fill(cluster)
    command = tools.command(
        "consumer.ConsoleConsumer", "--topic", TOPIC, "--group", "group",
        "--consumer-property", f"session.timeout.ms={SESSION_TIMEOUT_MS}",
    )  # fmt: skip
    with tools.member("group", TOPIC) as member:
        until(lambda: member.assigned == {0, 1, 2}, "one member has all")
        console = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: len(member.assigned) < 3, "the console gets its share")
        console.kill()
        console.wait()
        until(lambda: member.assigned == {0, 1, 2}, "its share comes back")
        member.leave()


def test_tools_show_the_servers_refusals(tools: JavaTools) -> None:
    with pytest.raises(AssertionError, match="already exists"):
        tools.create_topic(TOPIC, 1, {})
    with pytest.raises(AssertionError, match="compact"):
        tools.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    with pytest.raises(AssertionError, match=r"retention\.mss"):
        tools.alter(TOPIC, {"retention.mss": "1"})
    with pytest.raises(AssertionError, match=r"__transaction_state|internal|cluster's own"):
        tools.delete_topic("__transaction_state")
