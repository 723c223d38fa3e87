"""`__consumer_offsets` in Kafka's format: Kafka reads records that we store, and we read Kafka's."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka.admin import KafkaAdminClient

from spark_kbatch.cluster import group_records
from spark_kbatch.cluster.group_records import GroupKey, OffsetKey
from spark_kbatch.cluster.offsets_store import StoredGroups
from spark_kbatch.record.scalar import PlainRecord
from tests.support import builders
from tests.support.group_members import Coordinated
from tests.support.kafka import Broker, Kafka
from tests.support.reference import decode_batches
from tests.support.waiting import until

pytestmark = pytest.mark.interop

OFFSETS = "__consumer_offsets"
PLACES = [("events", number) for number in range(3)]
# An assignment by a consumer's leader: version 0, one topic, three partitions, no user data.
ALL_OF_IT = struct.pack(">hih6siiiii", 0, 1, 6, b"events", 3, 0, 1, 2, -1)
# An empty log has none of these files; a broker recreates them.
NOT_BYTES = (".index", ".timeindex", ".snapshot")


def ours(folder: Path) -> Coordinated:
    """Store groups of each kind: with a member, with none left, and with none ever."""
    groups = Coordinated(builders.a_cluster(folder, topics={"events": 3}))
    member = groups.client(group="stable", instance_id="i-1", session_timeout_ms=1_800_000)
    member.join().sync({member.member_id: ALL_OF_IT})
    member.commit({PLACES[0]: (5, "so far ✓"), PLACES[1]: 7})
    gone = groups.client(group="left")
    groups.stable(gone)
    gone.commit({PLACES[0]: 9})
    gone.leave()
    groups.commit({PLACES[2]: (3, "simple")}, group="simple")
    groups.commit({PLACES[2]: 4}, 4, group="simple", retention_time_ms=10**12)
    groups.commit({PLACES[0]: 1}, group="deleted")
    groups.delete_group("deleted")
    return groups


def segments(groups: Coordinated) -> list[Path]:
    return sorted(groups.backend.path.glob(f"broker-0/{OFFSETS}-0/*.log"))


def test_kafkas_tool_decodes_records_that_we_store(kafka: Kafka, tmp_path: Path) -> None:
    groups = ours(tmp_path)

    printed, faults = kafka.dump_log(segments(groups), "--offsets-decoder")

    assert faults == []
    assert "Could not" not in printed
    assert "unknown" not in printed.lower()
    found = list(decoded(printed))
    offsets = {
        (key["data"]["group"], key["data"]["topic"], key["data"]["partition"]): value
        for key, value in found
        if "topic" in key["data"]
    }
    assert offsets["stable", "events", 0]["data"]["offset"] == 5
    assert offsets["stable", "events", 0]["data"]["metadata"] == "so far ✓"
    assert offsets["simple", "events", 2]["data"]["offset"] == 4
    assert offsets["simple", "events", 2]["data"]["expireTimestamp"] > 10**12
    (stable,) = (value for key, value in found if key["data"] == {"group": "stable"})
    (member,) = stable["data"]["members"]
    assert (member["groupInstanceId"], member["clientHost"]) == ("i-1", "/127.0.0.1")
    assert {value and value["version"] for _, value in found} == {"1", "3", "4", None}


def decoded(printed: str) -> Iterator[tuple[Any, Any]]:
    """Yield the keys and values that the tool prints; a tombstone's value is None."""
    for line in printed.splitlines():
        _, has_key, rest = line.partition(" key: ")
        key, has_value, value = rest.partition(" payload: ")
        if has_key and key.startswith("{"):
            yield json.loads(key), json.loads(value) if has_value and value != "<DELETE>" else None


@pytest.fixture(scope="module")
def broker(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(kafka, tmp_path_factory.mktemp("broker"))
    with broker:
        broker.create_topic("events", partitions=3)
        consume(broker, "static", "group.instance.id", "i-1")
        consume(broker, "left")
        commit(broker, "simple")
        yield broker


def consume(broker: Broker, group: str, *setting: str) -> None:
    """Join a group, commit, and leave it; a static member stays."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.address, "group.id": group}
        | dict([setting] if setting else [])
    )
    consumer.subscribe(["events"])
    until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 3)
    consumer.commit(offsets=partitions(11), asynchronous=False)
    consumer.close()


def commit(broker: Broker, group: str) -> None:
    """Commit without joining."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.address, "group.id": group})
    consumer.commit(offsets=partitions(22), asynchronous=False)
    consumer.close()


def partitions(offset: int) -> list[confluent_kafka.TopicPartition]:
    return [
        confluent_kafka.TopicPartition(topic, number, offset + number, metadata=f"at {number} ✓")
        for topic, number in PLACES
    ]


def test_records_of_a_broker_are_read_and_written_back_byte_for_byte(broker: Broker) -> None:
    stored = StoredGroups()
    for path in sorted(broker.directory(OFFSETS).glob("*.log")):
        for record in decode_batches(path.read_bytes()):
            stored.apply_record(PlainRecord(record.offset, record.key, record.value))
            ensure_written_alike(record.key or b"", record.value)

    assert stored.others == {}
    assert stored.groups["static"].members[0].instance_id == "i-1"
    assert stored.groups["left"].members == ()
    assert stored.offsets["left"][builders.TopicPartition("events", 2)].offset == 13
    simple = stored.offsets["simple"][builders.TopicPartition("events", 1)]
    assert (simple.offset, simple.metadata.rstrip("\0")) == (23, "at 1 ✓")  # the end of a C string
    assert simple.topic_id in (broker.directory("events") / "partition.metadata").read_text()


def ensure_written_alike(key: bytes, value: bytes | None) -> None:
    """Check that we write the same bytes for what was read."""
    known = group_records.unpack_key(key)
    assert known is not None
    assert group_records.pack_key(known) == key
    if value is not None and isinstance(known, OffsetKey):
        assert group_records.pack_offset(group_records.unpack_offset(value)) == value
    elif value is not None and isinstance(known, GroupKey):
        assert group_records.pack_group(group_records.unpack_group(value)) == value


def test_a_broker_goes_on_from_groups_that_we_stored(kafka: Kafka, tmp_path: Path) -> None:
    groups = ours(tmp_path / "ours")
    broker = Broker(kafka, tmp_path / "theirs")
    with broker:
        broker.create_topic("events", partitions=3)
        commit(broker, "first")
        until(lambda: broker.directory(OFFSETS).exists())
    replace_log(broker.directory(OFFSETS), segments(groups))

    with broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.address)
        names = ["stable", "left", "simple"]
        until(lambda: all(one["error"] is None for one in admin.describe_groups(names).values()))
        found = admin.describe_groups(names)
        offsets = {
            name: {tuple(tp): (one.offset, one.metadata) for tp, one in known.items()}
            for name, known in admin.list_group_offsets([*names, "deleted"]).items()
        }
        admin.close()

    assert [found[name]["group_state"] for name in names] == ["Stable", "Empty", "Empty"]
    (member,) = found["stable"]["members"]
    assert (member["group_instance_id"], member["client_host"]) == ("i-1", "/127.0.0.1")
    assert offsets == {
        "stable": {PLACES[0]: (5, "so far ✓"), PLACES[1]: (7, "")},
        "left": {PLACES[0]: (9, "")},
        "simple": {PLACES[2]: (4, "")},
        "deleted": {},
    }


def replace_log(directory: Path, logs: list[Path]) -> None:
    """Replace the log of a stopped broker's partition with these segments, as after a crash."""
    for file in directory.iterdir():
        if file.suffix in (".log", *NOT_BYTES) or file.name == "leader-epoch-checkpoint":
            file.unlink()
    for path in logs:
        shutil.copy(path, directory / path.name)
    (directory.parent / ".kafka_cleanshutdown").unlink()
