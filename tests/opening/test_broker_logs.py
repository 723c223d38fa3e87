"""Logs of a real broker, read in place: real directories, every kind of PATH, transactions."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click.testing
import pytest

import spark_kbatch
from spark_kbatch import (
    Cluster,
    ConfigError,
    CorruptRecordError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.cli.main import cli
from spark_kbatch.files import Files
from spark_kbatch.opening.stores import open_for_reading
from spark_kbatch.options.read import parse_read_options
from tests.support import builders, reference
from tests.support.broker_dirs import (
    TOPIC_ID,
    a_partition,
    a_segment,
    batches,
    checkpoint,
    listing,
    read,
    records_in,
    up_to_damage,
)
from tests.support.crashes import sample
from tests.support.faults import ReadOnlyFiles
from tests.support.log_histories import data_batch, marker_batch
from tests.support.reference import Record, decode_batches, read_header
from tests.support.store import reader_of

SEGMENTS = Path("kafka-segments")
CONTROL = 0x20
# Of `itumeleng-ksql-txn`: its broker acknowledged them, as its high watermarks say, and lost them in a crash.
LOST_BY_THEIR_BROKER = {"__consumer_offsets-29": (39, 43), "_schemas-0": (38, 41)}


def entries(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (last offset, bytes) of each entry of a log, a batch or a message of any format."""
    position = 0
    while position < len(data):
        offset, size = struct.unpack_from(">qi", data, position)
        entry = data[position : position + 12 + size]
        if entry[16] == 2:
            offset += read_header(entry).last_offset_delta
        yield offset, entry
        position += len(entry)


def digest(records: Sequence[Record]) -> str:
    """Return the digest that the manifest has for these records."""
    found = hashlib.sha256()

    def add(data: bytes | None) -> None:
        found.update(struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data)

    for record in records:
        add(record.key)
        add(record.value)
        found.update(struct.pack(">qq", record.offset, record.timestamp))
        for key, value in record.headers:
            add(key.encode())
            add(value)
    return found.hexdigest()


def control_records(log: Path) -> list[Record]:
    """Return the log's control records, which no consumer sees."""
    return [
        record
        for _, entry in entries(log.read_bytes())
        if entry[16] == 2 and read_header(entry).attributes & CONTROL
        for record in decode_batches(entry)
    ]


def manifest(shared_data: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((shared_data / SEGMENTS / "manifest.json").read_text())
    assert len(found) == 43
    return found


def test_logs_of_real_brokers_are_read_as_their_manifest_says(shared_data: Path) -> None:
    files = ReadOnlyFiles()
    for entry in manifest(shared_data):
        log = shared_data / SEGMENTS / entry["file"]
        topic, _, partition = log.parent.name.rpartition("-")
        for path in (log.parent.parent, log.parent, log):
            logs = open_for_reading(str(path), files=files)
            rows, error = up_to_damage(logs.read(topic, partitions=[int(partition)]))
            if error is not None:
                missing = error.offset, error.next_offset
                assert missing == LOST_BY_THEIR_BROKER[str(error.topic_partition)]
                assert path != log
            found = [record for batch in rows for record in builders.as_read(batch)]
            whole = sorted(found + control_records(log), key=lambda record: record.offset)
            assert len(whole) == entry["records"], path
            assert digest(whole) == entry["records_sha256"], path


def test_the_high_watermark_is_the_log_end_after_a_clean_shutdown(shared_data: Path) -> None:
    for name in ("aryan-distributed", "biggerbrain-gzip"):
        path = str(shared_data / SEGMENTS / "licensed" / name)
        logs, bounded = (open_for_reading(path, foreign_end=end) for end in (None, "checkpoint"))
        topics = logs.topic_names(internal=True)
        assert logs.describe(topics) == bounded.describe(topics)


def test_a_high_watermark_above_the_end_of_a_real_log_is_told(shared_data: Path) -> None:
    path = shared_data / SEGMENTS / "licensed" / "itumeleng-ksql-txn"
    logs = open_for_reading(str(path))

    told = {
        str(one.topic_partition): one
        for one in logs.describe(logs.topic_names(internal=True))
        if one.error
    }

    assert told.keys() == LOST_BY_THEIR_BROKER.keys()
    for name, (end, reached) in LOST_BY_THEIR_BROKER.items():
        assert told[name].offsets.high_watermark == end
        assert f"replication-offset-checkpoint has offset {reached}" in told[name].error


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda _: None, id="removed"),
        pytest.param(lambda data: b"", id="emptied"),
        pytest.param(lambda data: bytes(len(data)), id="zeroed"),
        pytest.param(lambda data: data[: len(data) // 2], id="cut"),
        pytest.param(lambda data: random.Random(3).randbytes(len(data) + 100), id="garbage"),
    ],
)
def test_a_real_log_dir_is_read_without_the_files_beside_its_logs(
    shared_data: Path, tmp_path: Path, damage: Callable[[bytes], bytes | None]
) -> None:
    folder = shared_data / SEGMENTS / "licensed"
    topics = {"aryan-distributed": "design", "itumeleng-ksql-txn": "_schemas"}
    for name, topic in topics.items():
        copy = tmp_path / name
        shutil.copytree(folder / name, copy, copy_function=shutil.copyfile)
        for path in copy.rglob("*"):
            path.chmod(0o755)
        for path in [path for path in copy.rglob("*") if path.is_file() and path.suffix != ".log"]:
            damaged = damage(path.read_bytes())
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)

        expected = read(folder / name, topic, foreign_end="log")
        assert read(copy, topic, foreign_end="log") == expected


@pytest.mark.more_in_soak
@pytest.mark.parametrize(
    "name",
    [
        "segmentio-mixed/v1-v1/test-edgy-0",
        "segmentio-mixed/v1c-v1-v1c/test-breezy-0",
        "segmentio-mixed/v2bc-v1/test-hardy-0",
        "kafka-rust-v0/fetch2.mytopic.nocompression.kafka.0900/my-topic-0",
    ],
)
def test_a_log_of_older_formats_cut_anywhere_keeps_the_whole_entries_before_the_cut(
    shared_data: Path, tmp_path: Path, name: str
) -> None:
    [log] = (shared_data / SEGMENTS / "licensed" / name).glob("*.log")
    whole = log.read_bytes()
    expected = read(log, log.parent.name[:-2])
    copy = tmp_path / "t.log"

    for size in sample(range(len(whole) + 1), 4):
        copy.write_bytes(whole[:size])
        end = last = 0
        for last_offset, entry in entries(whole):
            if (end := end + len(entry)) > size:
                break
            last = last_offset + 1
        if any(whole[:size]) and not last:
            with pytest.raises(CorruptRecordError, match="starts with no valid batch"):
                read(copy)
        else:
            assert read(copy) == expected[:last]


@pytest.mark.parametrize(
    "name",
    [
        "segmentio-mixed/v1c-v1-v1c/test-breezy-0",
        "segmentio-mixed/v2bc-v1/test-hardy-0",
        "kafka-rust-v0/fetch1.mytopic.1p.snappy.kafka.0822/my-topic-0",
    ],
)
def test_every_range_of_a_log_with_wrappers_gives_exactly_its_records(
    shared_data: Path, tmp_path: Path, name: str
) -> None:
    path = shared_data / SEGMENTS / "licensed" / name
    shutil.copytree(path, tmp_path / "t-0", copy_function=shutil.copyfile)
    (tmp_path / "t-0").chmod(0o755)
    expected = read(tmp_path)

    for start in range(0, len(expected) + 1, 1 + len(expected) // 8):
        for end in range(start, len(expected) + 1, 1 + len(expected) // 8):
            assert read(tmp_path, start=start, end=end) == expected[start:end]
        checkpoint(tmp_path, "replication", {"t 0": start})
        assert read(tmp_path, foreign_end="checkpoint") == expected[:start]


def test_a_log_of_an_older_format_ends_before_a_damaged_last_message(
    shared_data: Path, tmp_path: Path
) -> None:
    [log] = (shared_data / SEGMENTS / "licensed/segmentio-mixed/v1-v1/test-edgy-0").glob("*.log")
    whole = log.read_bytes()
    expected = read(log, "test-edgy")
    *_, (_, last) = entries(whole)
    copy = tmp_path / "t.log"

    for position in range(len(whole) - len(last) + 8, len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 0x20
        copy.write_bytes(changed)
        assert read(copy) == expected[:-1]


# Kinds of PATH.


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two partitions of `events`, one of `views`, an internal topic, and a broker's other files."""
    path = tmp_path / "kafka-logs"
    a_partition(path / "events-0", {0: batches(0, 4)})
    a_partition(path / "events-12", {0: batches(0, 6)})
    a_partition(path / "views-1", {0: batches(0, 2)})
    a_partition(path / "__consumer_offsets-7", {0: batches(0, 2)})
    for name in (
        f"events-1.{'0' * 32}-delete",
        f"events-2.{'0' * 32}-future",
        f"events-3.{'0' * 32}-stray",
        "events-x",
        "events",
        "lost+found",
        "remote-log-index-cache",
        "a b-0",
    ):
        a_partition(path / name, {0: batches(0, 2)})
    (path / "meta.properties").write_text("version=1\nnode.id=1\n")
    (path / "notes-4").write_text("a file")
    (path / ".lock").write_bytes(b"")
    return path


def test_a_log_dir_has_the_topics_of_its_partitions(log_dir: Path) -> None:
    logs = spark_kbatch.open(str(log_dir))

    assert not logs.has("catalog")
    assert logs.topic_names() == ["events", "views"]
    assert logs.topic_names(internal=True) == ["__consumer_offsets", "events", "views"]
    assert [tp.partition for tp in logs.partitions("events")] == [0, 12]
    assert [(topic.name, topic.topic_id, topic.partitions) for topic in logs.topics()] == [
        ("events", TOPIC_ID, 2),
        ("views", TOPIC_ID, 1),
    ]
    assert read(log_dir, "events") == records_in(batches(0, 4)) + records_in(batches(0, 6))
    assert read(log_dir, "__consumer_offsets") == records_in(batches(0, 2))
    sizes = [info.size_in_bytes for info in logs.describe(["events"])]
    assert sizes == [sum(map(len, batches(0, end))) for end in (4, 6)]


@pytest.mark.parametrize(
    ("path", "topic", "partition"),
    [
        pytest.param("kafka-logs/events-12", "events", 12, id="partition"),
        pytest.param(f"kafka-logs/events-12/{0:020d}.log", "events", 12, id="file-of-a-partition"),
        pytest.param("copy", "copy", 0, id="folder"),
        pytest.param(f"copy/{0:020d}.log", f"{0:020d}", 0, id="file"),
        pytest.param("my orders.log", "my_orders", 0, id="file-with-a-name"),
    ],
)
def test_a_partition_or_a_file_is_one_topic(
    log_dir: Path, path: str, topic: str, partition: int
) -> None:
    place = log_dir.parent
    shutil.copytree(log_dir / "events-12", place / "copy")
    shutil.copyfile(log_dir / "events-12" / f"{0:020d}.log", place / "my orders.log")
    logs = open_for_reading(str(place / path))

    [info] = logs.describe(logs.topic_names())
    assert info.topic_partition == (topic, partition)
    assert info.offsets.log_end_offset == 6
    assert read(place / path, topic) == records_in(batches(0, 6))


def test_a_path_to_a_file_reads_that_segment_alone(tmp_path: Path) -> None:
    directory = a_partition(tmp_path / "t-0", {0: batches(0, 6), 6: batches(6, 12), 12: []})
    renamed = tmp_path / "t.log"
    renamed.write_bytes((directory / f"{6:020d}.log").read_bytes())

    assert read(directory / f"{6:020d}.log") == records_in(batches(6, 12))
    assert read(renamed) == records_in(batches(6, 12))
    assert read(renamed, start=9, end=11) == records_in(batches(6, 12))[3:5]


def test_a_partitions_checkpoints_are_read_from_its_log_dir(log_dir: Path) -> None:
    checkpoint(log_dir, "log-start", {"events 12": 2})
    checkpoint(log_dir, "replication", {"events 12": 5})

    for path in (log_dir, log_dir / "events-12"):
        logs = open_for_reading(str(path), foreign_end="checkpoint")
        [tp] = [tp for tp in logs.partitions("events") if tp.partition == 12]
        assert reader_of(logs).edges([tp])[tp] == (2, 5, 5, 6)


def test_an_empty_log_dir_has_no_topics(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\n")
    logs = open_for_reading(str(tmp_path))

    assert logs.topics() == []
    with pytest.raises(UnknownTopicOrPartitionError, match="it has none"):
        logs.partitions("events")


@pytest.mark.parametrize(
    "made", [pytest.param([], id="empty"), ["notes-1/text"], ["text"], ["old.log/text"]]
)
def test_a_path_that_is_neither_a_clusters_nor_a_brokers_is_refused_with_what_was_expected(
    tmp_path: Path, made: list[str]
) -> None:
    for name in made:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("text")

    for path in (tmp_path, tmp_path / "absent", *tmp_path.iterdir()):
        with pytest.raises(ConfigError) as caught:
            open_for_reading(str(path))
        assert str(path) in str(caught.value)
        assert "cluster.json" in str(caught.value)
        assert "events-0" in str(caught.value)


def test_parts_of_a_kbatch_cluster_are_refused(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    partition = cluster.path / "broker-0" / "events-0"

    assert isinstance(open_for_reading(str(cluster.path)), Cluster)
    for path in (partition.parent, partition, partition / f"{0:020d}.log"):
        with pytest.raises(ConfigError, match=f"part of the kbatch cluster at {cluster.path}:"):
            open_for_reading(str(path))


def test_errors_for_unknown_topics_and_partitions_name_the_existing_ones(log_dir: Path) -> None:
    logs = open_for_reading(str(log_dir))

    with pytest.raises(
        UnknownTopicOrPartitionError, match="of its 3 topics the nearest are: events"
    ):
        logs.partitions("event")
    with pytest.raises(UnknownTopicOrPartitionError, match=r"events-3 does not exist .*: 0, 12"):
        list(logs.read("events", partitions=[3]))


def test_a_question_about_one_topic_reads_no_files_of_other_topics(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker may have thousands of partitions, and a stream asks about each of its own topics."""
    logs = open_for_reading(str(log_dir))
    looked_at = []
    is_dir = Path.is_dir

    def noted(path: Path) -> bool:
        looked_at.append(path.name)
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", noted)
    reader_of(logs).edges(logs.partitions("views"))
    logs.topic("views")

    assert set(looked_at) == {"views-1"}


def test_writing_is_refused_before_anything_is_written(log_dir: Path) -> None:
    before = listing(log_dir)
    logs = spark_kbatch.open(str(log_dir))

    with pytest.raises(ConfigError, match=r"kbatch only reads.*kbatch export"):
        logs.producer(linger_ms=5)
    with pytest.raises(ConfigError, match="topics and their records cannot be changed in"):
        logs.create_topic("new", partitions=3)
    with pytest.raises(ConfigError, match="a Kafka broker's, which kbatch only reads"):
        spark_kbatch.open(str(log_dir), create=True)
    with pytest.raises(ConfigError, match="a Kafka broker's, which kbatch only reads"):
        spark_kbatch.open(str(log_dir / "events-0"), create=True)
    assert listing(log_dir) == before


def test_foreign_end_is_log_or_checkpoint(log_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"'foreign_end' is 'end'; accepted: log, checkpoint"):
        spark_kbatch.open(str(log_dir), foreign_end="end")
    logs = spark_kbatch.open(str(log_dir), foreign_end="checkpoint")
    with pytest.raises(ConfigError, match="has no replication-offset-checkpoint"):
        logs.describe(["events"])


def test_the_error_for_an_unreadable_directory_has_its_path(log_dir: Path) -> None:
    class Unreadable(Files):
        def list(self, directory: Path) -> list[str]:
            raise PermissionError(13, "Permission denied", str(directory))

    with pytest.raises(ConfigError, match=f"{log_dir} cannot be read: Permission denied"):
        open_for_reading(str(log_dir), files=Unreadable())


# Transactions.


def test_committed_data_ends_before_open_transactions_and_leaves_out_aborted_ones(
    tmp_path: Path,
) -> None:
    held = [
        data_batch(base_offset=0, n=2, producer_id=1, transactional=True),
        data_batch(base_offset=2, n=2, producer_id=2, transactional=True),
        data_batch(base_offset=4, n=2),
        marker_batch(base_offset=6, producer_id=1, abort=True),
        marker_batch(base_offset=7, producer_id=2, abort=False),
        data_batch(base_offset=8, n=1, producer_id=3, transactional=True),
        data_batch(base_offset=9, n=2),
    ]
    a_partition(tmp_path / "t-0", {0: held[:3], 6: held[3:]})

    def offsets(path: Path, level: str) -> list[int]:
        logs = open_for_reading(str(path))
        rows = logs.read("t", columns=["offset"], isolation_level=level)
        return [offset for batch in rows for offset in batch["offset"].to_pylist()]

    logs = open_for_reading(str(tmp_path))
    [info] = logs.describe(["t"])
    assert info.offsets == (0, 11, 8, 11)
    assert offsets(tmp_path, "read_committed") == [2, 3, 4, 5]
    assert offsets(tmp_path, "read_uncommitted") == [0, 1, 2, 3, 4, 5, 8, 9, 10]

    # The broker goes on writing and commits the open transaction.
    log = tmp_path / "t-0" / f"{6:020d}.log"
    with log.open("ab") as file:
        file.write(marker_batch(base_offset=11, producer_id=3, abort=False))
    assert logs.describe(["t"])[0].offsets == (0, 12, 12, 12)
    assert offsets(tmp_path, "read_committed") == [2, 3, 4, 5, 8, 9, 10]
    # The second segment alone does not show where the first transactions started.
    assert offsets(log, "read_committed") == [8, 9, 10]


def test_a_high_watermark_below_a_marker_leaves_its_transaction_open(tmp_path: Path) -> None:
    held = [
        data_batch(base_offset=0, n=3),
        data_batch(base_offset=3, n=2, producer_id=1, transactional=True),
        marker_batch(base_offset=5, producer_id=1, abort=False),
    ]
    a_segment(tmp_path / "t-0", 0, held)

    for high_watermark, stable in ((2, 2), (4, 3), (5, 3), (6, 6)):
        checkpoint(tmp_path, "replication", {"t 0": high_watermark})
        logs = open_for_reading(str(tmp_path), foreign_end="checkpoint")
        assert logs.describe(["t"])[0].offsets == (0, high_watermark, stable, 6)


# The command.


def run(*arguments: str) -> tuple[int, str]:
    done = click.testing.CliRunner().invoke(cli, arguments)
    return done.exit_code, done.output


def test_the_command_reads_a_log_dir(log_dir: Path) -> None:
    checkpoint(log_dir, "replication", {"events 12": 5, "events 0": 4})
    a_partition(log_dir / "__commits-0", {0: batches(0, 2)})
    before = listing(log_dir)

    code, output = run("topics", str(log_dir), "--json", "--foreign-end", "checkpoint", "events")
    found = json.loads(output)
    assert (code, found["topic"], found["topic_id"]) == (0, "events", TOPIC_ID)
    assert [(p["partition"], p["high_watermark"]) for p in found["partitions"]] == [(0, 4), (12, 5)]

    code, output = run("topics", str(log_dir))
    assert code == 0
    assert "views" in output
    assert "__consumer_offsets" not in output
    assert "__commits" not in output, "of a copied folder of ours"

    code, output = run("consume", str(log_dir / "events-12"), "events", "--json", "--start", "4")
    assert code == 0
    assert [json.loads(line)["offset"] for line in output.splitlines()] == [4, 5]
    assert listing(log_dir) == before


def test_a_batch_over_the_limit_is_an_error_that_names_file_and_option(tmp_path: Path) -> None:
    batch = reference.encode_batch([Record(0, 5, None, bytes(9000))], codec=4)
    log = a_segment(tmp_path / "t-0", 0, [batch])
    logs = spark_kbatch.open(str(tmp_path))
    ask = {"path": str(tmp_path), "subscribe": "t"}

    def through_options(limit: int) -> int:
        options = parse_read_options({**ask, "max.decompressed.batch.bytes": str(limit)})
        (task,) = reader_of(logs).plan(options)
        return sum(
            rows.num_rows for rows in reader_of(logs).read_task(task, ["value"], options, "action")
        )

    def by_command(limit: int) -> int:
        words = ["consume", str(tmp_path), "t", "--max-decompressed-batch-bytes", str(limit)]
        done = click.testing.CliRunner().invoke(cli, words)
        if done.exception:
            raise done.exception
        return len(done.output.splitlines())

    def in_python(limit: int) -> int:
        return logs.read("t", max_decompressed_batch_bytes=limit).read_all().num_rows

    for read_with in (through_options, by_command, in_python):
        assert read_with(9100) == 1
        with pytest.raises(CorruptRecordError, match=r"max\.decompressed\.batch\.bytes") as raised:
            read_with(9000)
        assert str(log) in str(raised.value)
    for limit in (0, 2**31, "9100", True):
        with pytest.raises(ConfigError, match="max_decompressed_batch_bytes is"):
            logs.read("t", max_decompressed_batch_bytes=limit)
