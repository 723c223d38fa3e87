"""The consumer groups in a broker's logs, in Kafka's formats, written by plain `struct` here."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import pytest

import spark_kbatch
from spark_kbatch import TopicPartition
from spark_kbatch.errors import ConfigError, CorruptRecordError
from spark_kbatch.model import bytes_of_uuid
from spark_kbatch.opening.stores import open_stream
from spark_kbatch.options.read import parse_batch_or_stream_options
from tests.support import builders, reference, stored_groups
from tests.support.broker_dirs import TOPIC_ID, a_partition, a_segment, batches, checkpoint
from tests.support.draws import seeds
from tests.support.log_histories import marker_batch
from tests.support.reference import Record

OFFSETS = "__consumer_offsets"
TRANSACTIONAL = 0x10
OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def offset_key(group: str, partition: int = 0, topic: str = "events", kind: int = 1) -> bytes:
    return struct.pack(">h", kind) + text(group) + text(topic) + struct.pack(">i", partition)


def offset_value(offset: int, version: int = 3) -> bytes:
    """Return a committed offset in one of the versions of its value."""
    if version == 4:
        flexible = b"\2m" + struct.pack(">q", 7) + b"\0"
        return struct.pack(">hqi", 4, offset, -1) + flexible
    epoch = struct.pack(">i", -1) if version >= 3 else b""
    expires = struct.pack(">q", 8) if version == 1 else b""
    return struct.pack(">hq", version, offset) + epoch + text("m") + struct.pack(">q", 7) + expires


def group_key(group: str, kind: int = 2, *more: str) -> bytes:
    return struct.pack(">h", kind) + text(group) + b"".join(map(text, more))


EMPTY_GROUP = struct.pack(">h", 2) + text("consumer") + struct.pack(">ihhqi", 4, -1, -1, 9, 0)


class Log:
    """The log of a partition of `__consumer_offsets`, which is written batch by batch."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0

    def add(self, *records: tuple[bytes, bytes | None], producer: int = -1, codec: int = 0) -> Log:
        """Append a batch; with a producer it is of its transaction."""
        found = [Record(self.end + at, 1000, key, value) for at, (key, value) in enumerate(records)]
        known = producer >= 0
        self.batches.append(
            reference.encode_batch(
                found,
                base_offset=self.end,
                codec=codec,
                producer_id=producer,
                producer_epoch=0 if known else -1,
                base_sequence=0 if known else -1,
                attributes_extra=TRANSACTIONAL if known else 0,
            )
        )
        self.end += len(found)
        return self

    def end_transaction(self, producer: int, *, abort: bool = False) -> Log:
        self.batches.append(marker_batch(base_offset=self.end, producer_id=producer, abort=abort))
        self.end += 1
        return self

    def write(self, path: Path, number: int = 0) -> Path:
        """Write it as a partition of a log dir, beside `events-0` with 10 records; return the log dir."""
        a_partition(path / f"{OFFSETS}-{number}", {0: self.batches}, index=False)
        if not (path / "events-0").exists():
            a_partition(path / "events-0", {0: batches(0, 10)})
        return path


def groups_at(path: Path, *, foreign_end: str | None = None) -> dict[str, dict[int, int]]:
    """Return committed offsets by partition, of each group at PATH."""
    with spark_kbatch.open(path, foreign_end=foreign_end) as logs:
        return {
            one.group_id: {
                tp.partition: at.committed_offset
                for tp, at in one.offsets.items()
                if at.committed_offset is not None
            }
            for one in logs.groups()
        }


def test_a_copied_log_dir_has_the_groups_of_its_cluster(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path / "cluster", topics={"events": 3})
    builders.append_records(cluster, {("events", 0): builders.batch()})
    app = stored_groups.member("app", {"events": [1, 2]})
    stored_groups.store(cluster, "billing", {("events", 0): 1, ("events", 1): 0}, [app])
    cluster.alter_group_offsets("audit", {("events", 0): 3})
    shutil.copytree(cluster.path / "broker-0", tmp_path / "copy")

    with spark_kbatch.open(tmp_path / "copy") as logs:
        assert logs.has("groups")
        assert logs.groups() == cluster.groups()


def by_struct(directory: Path) -> dict[bytes, bytes | None]:
    """Return the last value of each key in a partition's log, decoded without what is tested."""
    found: dict[bytes, bytes | None] = {}
    for path in sorted(directory.glob("*.log")):
        for record in reference.decode_batches(path.read_bytes()):
            if record.key is not None:
                found[record.key] = record.value
    return found


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("aryan-distributed", {"mygroup"}),
        (
            "mscaldas-spooldir-cp512",
            {"_confluent-controlcenter-5-1-2-1", "compose-connect-group", "schema-registry"},
        ),
        ("steiz-gzip-unicode", {"energy-monitor-1762539298"}),
    ],
)
def test_groups_in_logs_of_real_brokers_are_the_last_values_of_their_keys(
    shared_data: Path, name: str, groups: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = shared_data / "kafka-segments/licensed" / name
    partitions = sorted(path.glob(f"{OFFSETS}-*"))
    last = {key: value for one in partitions for key, value in by_struct(one).items()}
    wanted = {
        key: struct.unpack(">q", value[2:10])[0]
        for key, value in last.items()
        if value is not None and key[:2] in (b"\0\0", b"\0\1")
    }

    with spark_kbatch.open(path) as logs:
        found = logs.groups()
        ends = {tp: logs.describe(tp.topic) for one in found for tp in one.offsets
                if tp.topic in logs.topic_names()}  # fmt: skip

    assert {one.group_id for one in found} == groups
    assert {
        offset_key(one.group_id, tp.partition, tp.topic): at.committed_offset
        for one in found
        for tp, at in one.offsets.items()
        if at.committed_offset is not None
    } == wanted
    for one in found:
        for tp, at in one.offsets.items():
            there = [info for info in ends.get(tp, []) if info.topic_partition == tp]
            end = there[0].offsets.high_watermark if there else None
            assert at.log_end_offset == end
            assert (at.lag is None) == (end is None or at.committed_offset is None)
    assert "groups in the others are not shown" in caplog.text


def test_a_broker_that_lost_offsets_shows_that_and_what_is_left_by_request(
    shared_data: Path,
) -> None:
    path = shared_data / "kafka-segments/licensed/itumeleng-ksql-txn"

    with pytest.raises(
        CorruptRecordError, match=r"offset 43, and the log ends at 39; foreign\.end"
    ):
        groups_at(path)
    assert groups_at(path, foreign_end="log")


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("kind", [0, 1])
def test_offsets_of_all_versions_are_read_and_a_tombstone_ends_them(
    tmp_path: Path, version: int, kind: int
) -> None:
    log = Log().add((offset_key("a", kind=kind), offset_value(3, version)))
    log.add((offset_key("b", kind=kind), offset_value(4, version)))
    log.add((offset_key("b", kind=kind), None))

    assert groups_at(log.write(tmp_path)) == {"a": {0: 3}}


@pytest.mark.parametrize("codec", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_read(tmp_path: Path, codec: int) -> None:
    log = Log()
    for offset in range(3):
        records = [(offset_key(f"g{n}"), offset_value(offset + n)) for n in range(4)]
        log.add(*records, codec=codec)

    assert groups_at(log.write(tmp_path)) == {f"g{n}": {0: 2 + n} for n in range(4)}


@pytest.mark.parametrize("magic", [0, 1])
def test_offsets_of_old_brokers_are_read(tmp_path: Path, magic: int) -> None:
    messages = [
        reference.encode_message(
            Record(at, 1000, offset_key("a", kind=0), offset_value(at, 0)), magic=magic
        )
        for at in range(3)
    ]
    log = Log()
    log.batches = messages

    assert groups_at(log.write(tmp_path)) == {"a": {0: 2}}


def test_offsets_of_a_transaction_count_once_it_is_committed(tmp_path: Path) -> None:
    log = Log()
    log.add((offset_key("committed"), offset_value(1)), producer=1)
    log.add((offset_key("aborted"), offset_value(1)), producer=2)
    log.add((offset_key("aborted"), offset_value(2)))
    log.add((offset_key("aborted"), offset_value(3)), producer=2)
    log.add((offset_key("open"), offset_value(1)))
    log.add((offset_key("open"), offset_value(4)), producer=3)  # and no marker comes
    log.add((offset_key("committed", 1), offset_value(5)), producer=1)
    log.end_transaction(1).end_transaction(2, abort=True)
    log.add((offset_key("behind it"), offset_value(6)))
    log.add((offset_key("committed"), offset_value(9)), producer=2)  # of its next one
    log.end_transaction(2, abort=True)

    assert groups_at(log.write(tmp_path)) == {
        "aborted": {0: 2}, "behind it": {0: 6}, "committed": {0: 1, 1: 5}, "open": {0: 1},
    }  # fmt: skip


def test_an_offset_that_was_committed_during_a_transaction_is_newer(tmp_path: Path) -> None:
    log = Log().add((offset_key("a"), offset_value(1)), producer=1)
    log.add((offset_key("a"), offset_value(2))).end_transaction(1)

    assert groups_at(log.write(tmp_path)) == {"a": {0: 2}}


@pytest.mark.parametrize("seed", seeds(8))
def test_any_history_of_commits_leaves_what_a_broker_would_load(tmp_path: Path, seed: int) -> None:
    """The model keeps, as a broker, for each key the highest offset in the log of what counts."""
    draw, log = random.Random(seed), Log()
    counts: list[tuple[int, bytes, int | None]] = []
    held: dict[int, list[tuple[int, bytes, int | None]]] = {}
    for number in range(300):
        producer = draw.choice([-1, -1, 1, 2, 3])
        if producer > 0 and draw.random() < 0.3:
            abort = draw.random() < 0.4
            log.end_transaction(producer, abort=abort)
            decided = held.pop(producer, [])
            counts += [] if abort else decided
            continue
        into = counts if producer < 0 else held.setdefault(producer, [])
        records = []
        for at in range(draw.randint(1, 3)):
            key = offset_key(f"g{draw.randrange(3)}", draw.randrange(3))
            value = None if draw.random() < 0.15 else number
            into.append((log.end + at, key, value))
            records.append((key, None if value is None else offset_value(value)))
        log.add(*records, producer=producer, codec=draw.choice([0, 0, 1]))
    last = {key: value for _, key, value in sorted(counts, key=lambda one: one[0])}

    found = groups_at(log.write(tmp_path))

    assert {
        offset_key(group, partition): offset
        for group, offsets in found.items()
        for partition, offset in offsets.items()
    } == {key: value for key, value in last.items() if value is not None}


def test_groups_of_several_partitions_are_listed_together_and_a_gap_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Log().add((offset_key("b"), offset_value(1))).write(tmp_path, 0)
    Log().add((offset_key("a"), offset_value(2))).write(tmp_path, 1)
    assert groups_at(tmp_path) == {"a": {0: 2}, "b": {0: 1}}
    assert caplog.messages == []

    Log().add((offset_key("c"), offset_value(3))).write(tmp_path, 4)
    assert [*groups_at(tmp_path)] == ["a", "b", "c"]
    assert "has partitions 0, 1, 4 of __consumer_offsets: groups in the others" in caplog.text
    assert groups_at(tmp_path / f"{OFFSETS}-4") == {"c": {0: 3}}, "a partition alone"


def test_a_group_without_offsets_is_listed_until_its_tombstone(tmp_path: Path) -> None:
    log = Log().add((group_key("left"), EMPTY_GROUP), (group_key("deleted"), EMPTY_GROUP))
    log.add((group_key("deleted"), None))

    (left,) = spark_kbatch.open(log.write(tmp_path)).groups()

    assert (left.group_id, left.state, left.protocol_type) == ("left", "Empty", "consumer")
    assert (left.generation, left.members, left.offsets) == (4, (), {})


def test_groups_of_newer_protocols_are_named_without_their_members(tmp_path: Path) -> None:
    log = Log()
    log.add((group_key("new"), None), (group_key("new", 3), b"\0\0 epoch"))
    log.add((group_key("new", 5, "member-1"), b"\0\0 a member"))
    log.add((offset_key("new"), offset_value(7, 4)))
    log.add((group_key("was new", 3), b"\0\0 epoch"), (group_key("was new", 5, "m"), b"\0\0"))
    log.add((group_key("was new", 5, "m"), None))
    log.add((group_key("gone", 3), b"\0\0"), (group_key("gone", 3), None))
    log.add((group_key("shared", 11), b"\0\0"), (group_key("streamed", 17), b"\0\0"))
    log.add((struct.pack(">h", 99) + b"of a later Kafka", b"\0\0"))

    found = spark_kbatch.open(log.write(tmp_path)).groups()

    assert [(one.group_id, one.state, one.protocol_type) for one in found] == [
        ("new", "Stable", "consumer"),
        ("shared", "Empty", "share"),
        ("streamed", "Empty", "streams"),
        ("was new", "Empty", "consumer"),
    ]
    assert {(one.generation, one.members) for one in found} == {(-1, ())}
    assert (found[0].offsets[TopicPartition("events", 0)].committed_offset, found[0].lag) == (7, 3)


def with_topic_id(offset: int, topic_id: bytes) -> bytes:
    return offset_value(offset, 4)[:-1] + b"\1\0\20" + topic_id


def test_topics_that_are_elsewhere_have_no_end_and_recreated_ones_are_left_out(
    tmp_path: Path,
) -> None:
    log = Log().add(
        (offset_key("a"), with_topic_id(4, bytes_of_uuid(TOPIC_ID))),
        (offset_key("a", 0, "elsewhere"), with_topic_id(5, bytes_of_uuid(OTHER_ID))),
        (offset_key("a", 1), offset_value(6)),
        (offset_key("recreated"), with_topic_id(1, bytes_of_uuid(OTHER_ID))),
    )

    a, recreated = spark_kbatch.open(log.write(tmp_path)).groups()

    assert {str(tp): (at.committed_offset, at.log_end_offset, at.lag) for tp, at in a.offsets.items()} == {
        "elsewhere-0": (5, None, None), "events-0": (4, 10, 6), "events-1": (6, None, None),
    }  # fmt: skip
    assert a.lag == 6
    assert recreated.offsets == {}


def test_several_disks_are_read_as_one_folder_of_links(tmp_path: Path) -> None:
    Log().add((offset_key("a"), offset_value(4))).write(tmp_path / "disk-0")
    shutil.move(tmp_path / "disk-0/events-0", tmp_path / "disk-1/events-0")
    (tmp_path / "all").mkdir()
    assert spark_kbatch.open(tmp_path / "disk-0").groups()[0].lag == 0
    for one in (*(tmp_path / "disk-0").iterdir(), *(tmp_path / "disk-1").iterdir()):
        (tmp_path / "all" / one.name).symlink_to(one)

    (group,) = spark_kbatch.open(tmp_path / "all").groups()

    assert group.lag == 6


def test_missing_and_damaged_offsets_are_errors(tmp_path: Path) -> None:
    log = Log().add((offset_key("a"), offset_value(1))).add((offset_key("a"), offset_value(2)))
    path = log.write(tmp_path)
    checkpoint(path, "replication", {f"{OFFSETS} 0": 5})
    with pytest.raises(CorruptRecordError, match="has offset 5, and the log ends at 2"):
        groups_at(path)
    assert groups_at(path, foreign_end="log") == {"a": {0: 2}}
    checkpoint(path, "replication", {f"{OFFSETS} 0": 1})
    assert groups_at(path, foreign_end="checkpoint") == {"a": {0: 1}}

    a_segment(path / f"{OFFSETS}-0", 0, Log().add((offset_key("a"), b"\0\x09")).batches)
    with pytest.raises(CorruptRecordError, match=rf"{OFFSETS}-0: version of the offset"):
        groups_at(path)

    data = bytearray(b"".join(log.batches))
    data[-len(log.batches[1]) - 5] ^= 1
    (path / f"{OFFSETS}-0" / f"{0:020d}.log").write_bytes(data)
    with pytest.raises(CorruptRecordError, match=r"00\.log: CRC"):
        groups_at(path)


def test_groups_are_only_read(tmp_path: Path) -> None:
    path = Log().add((offset_key("a"), offset_value(1))).write(tmp_path / "logs")
    before = {one: one.stat().st_mtime_ns for one in path.rglob("*")}
    logs = spark_kbatch.open(path)

    refused = r"group 'a' cannot be changed in .*kbatch mirror --keep-offsets"
    with pytest.raises(ConfigError, match=refused):
        logs.alter_group_offsets("a", {("events", 0): 1})
    with pytest.raises(ConfigError, match=refused):
        logs.delete_group("a")
    options, _ = parse_batch_or_stream_options(
        {"path": str(path), "subscribe": "events", "commit.group.id": "a"}
    )
    with pytest.raises(ConfigError, match=r"commit\.group\.id.*which kbatch only reads"):
        open_stream(options)
    assert {one: one.stat().st_mtime_ns for one in path.rglob("*")} == before


def test_a_place_without_consumer_offsets_has_no_groups(tmp_path: Path) -> None:
    a_partition(tmp_path / "events-0", {0: batches(0, 2)})
    logs = spark_kbatch.open(tmp_path)

    assert not logs.has("groups")
    with pytest.raises(
        ConfigError, match="where the directory has a partition of __consumer_offsets"
    ):
        logs.groups()


def test_groups_are_carried_over_to_a_new_cluster(tmp_path: Path) -> None:
    path = Log().add((offset_key("a"), offset_value(4))).write(tmp_path / "logs")
    spark_kbatch.mirror(path, tmp_path / "new", "events", keep_offsets=True)

    with spark_kbatch.open(path) as logs, spark_kbatch.open(tmp_path / "new") as new:
        for group in logs.groups():
            new.alter_group_offsets(
                group.group_id,
                {tp: at.committed_offset for tp, at in group.offsets.items()
                 if at.committed_offset is not None},
            )  # fmt: skip
        (old,), (found,) = logs.groups(), new.groups()

    assert found.lag == old.lag == 6
