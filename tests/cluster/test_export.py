"""Export into a broker's log dir: the files that it writes, and those left after a refusal or a kill."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import (
    ConfigError,
    CorruptRecordError,
    KafkaStorageError,
    LogDirLockedError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Files
from spark_kbatch.log.checkpoints import write_meta_properties, write_partition_metadata
from spark_kbatch.model import TopicPartition, random_id
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders
from tests.support.client_transactions import (
    GAPS_END,
    GAPS_OFFSETS,
    GIVEN,
    ClientTransactions,
    leave_gaps,
)
from tests.support.crashes import stride_of
from tests.support.faults import Fault, FaultyFiles, died
from tests.support.reference import (
    Record,
    decode_batches,
    decode_messages,
    read_header,
    split_batches,
)
from tests.support.store import store_of

CONFIG = TopicConfig(segment_bytes=700, index_interval_bytes=200)
TOPIC_ID = "I9kB3I7cRKaTU-raoqXJJQ"
OTHER_TOPIC = "other 0 7"
EVENTS_0 = TopicPartition("events", 0)


def a_broker_log_dir(folder: Path, *, partitions: int = 2, topic: str = "events") -> Path:
    """Create a log dir as a stopped broker with a new topic leaves it."""
    log_dir = folder / "broker"
    log_dir.mkdir()
    files = Files()
    write_meta_properties(
        files, log_dir, cluster_id=random_id(), node_id=1, directory_id=random_id()
    )
    lines = [OTHER_TOPIC, *(f"{topic} {p} 0" for p in range(partitions))]
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (log_dir / name).write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    (log_dir / "log-start-offset-checkpoint").write_text(f"0\n1\n{OTHER_TOPIC}\n")
    (log_dir / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":9}')
    for partition in range(partitions):
        directory = log_dir / f"{topic}-{partition}"
        directory.mkdir()
        for ending in ("log", "index", "timeindex"):
            (directory / f"{0:020d}.{ending}").touch()
        write_partition_metadata(files, directory, TOPIC_ID)
        (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    return log_dir


def a_cluster(tmp_path: Path, *, batches: int = 20, partitions: int = 2) -> Cluster:
    cluster = builders.a_cluster(tmp_path, topics={"events": partitions}, config=CONFIG)
    for seed in range(batches):
        for p in range(partitions):
            data = builders.idempotent_batch(base_sequence=3 * seed, n=3, key=b"%d" % p)
            builders.append_records(cluster, {("events", p): data})
    return cluster


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def records(directory: Path) -> list[Record]:
    return [record for path in segments(directory) for record in decode_batches(path.read_bytes())]


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file below `folder` except the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def test_exported_segments_and_indexes_are_those_of_the_log(tmp_path: Path) -> None:
    cluster, log_dir = a_cluster(tmp_path), a_broker_log_dir(tmp_path)

    cluster.export("events", to=log_dir)

    for partition, held in builders.contents(cluster).items():
        ours, theirs = (
            store_of(cluster).metadata.cluster_file.log_directory(partition),
            log_dir / str(partition),
        )
        assert len(segments(theirs)) > 2
        assert records(theirs) == held
        for path in segments(ours):
            for ending in (".log", ".index", ".timeindex"):
                found = (theirs / path.name).with_suffix(ending)
                assert found.stat().st_size >= path.with_suffix(ending).stat().st_size
            index = path.with_suffix(".index").read_bytes()
            assert (theirs / path.name).with_suffix(".index").read_bytes() == index


def test_decided_records_alone_are_exported_at_their_offsets(tmp_path: Path) -> None:
    cluster, log_dir = (
        builders.a_cluster(tmp_path, topics={"events": 2}),
        a_broker_log_dir(tmp_path),
    )
    leave_gaps(cluster, "events")
    client = ClientTransactions(cluster, 6000)
    client.send(EVENTS_0, b"open")
    builders.write(cluster, {("events", 0): [builders.batch()]})

    exported = cluster.export("events", to=log_dir)

    assert [one.log_end_offset for one in exported] == [GAPS_END, GAPS_END]
    for partition in range(2):
        directory = log_dir / f"events-{partition}"
        assert [(r.offset, r.value) for r in records(directory)] == list(
            zip(GAPS_OFFSETS, GIVEN, strict=True)
        )
        headers = [
            read_header(batch)
            for path in segments(directory)
            for batch in split_batches(path.read_bytes())
        ]
        bounds = [(one.base_offset, one.base_offset + one.last_offset_delta) for one in headers]
        assert bounds == [(0, 1), (2, 2), (3, 4), (5, 5), (6, 6)]
        assert [one.records_count for one in headers] == [2, 0, 0, 0, 1]
        assert {(one.attributes, one.producer_id) for one in headers} == {(0, -1)}
    with spark_kbatch.open(log_dir) as broker:
        assert broker.read("events").read_all()["value"].to_pylist() == [*GIVEN, *GIVEN]


def test_every_time_index_ends_with_the_largest_time(tmp_path: Path) -> None:
    """A broker that was shut down cleanly reads the largest time there."""
    cluster, log_dir = a_cluster(tmp_path, batches=2), a_broker_log_dir(tmp_path)

    cluster.export("events", to=log_dir)

    entry = (log_dir / "events-0" / f"{0:020d}.timeindex").read_bytes()
    assert entry == builders.FIRST_TIMESTAMP_MS.to_bytes(8) + (2).to_bytes(4)


def test_batches_have_leader_epoch_0_and_no_producer(tmp_path: Path) -> None:
    cluster, log_dir = a_cluster(tmp_path), a_broker_log_dir(tmp_path)

    cluster.export("events", to=log_dir)

    for path in segments(log_dir / "events-0"):
        for batch in split_batches(path.read_bytes()):
            header = read_header(batch)
            assert header.leader_epoch == 0
            assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)


def test_the_topic_keeps_its_id_on_the_broker(tmp_path: Path) -> None:
    cluster, log_dir = a_cluster(tmp_path), a_broker_log_dir(tmp_path)

    cluster.export("events", to=log_dir)

    text = (log_dir / "events-1" / "partition.metadata").read_text()
    assert text == f"version: 0\ntopic_id: {TOPIC_ID}"
    assert store_of(cluster).metadata.topics.topic("events").topic_id != TOPIC_ID


def test_checkpoints_drop_the_exported_partitions_and_keep_the_others(tmp_path: Path) -> None:
    cluster, log_dir = a_cluster(tmp_path), a_broker_log_dir(tmp_path)

    cluster.export("events", to=log_dir)

    for name in ("recovery-point", "replication", "log-start"):
        text = (log_dir / f"{name}-offset-checkpoint").read_text()
        assert text == f"0\n1\n{OTHER_TOPIC}\n"
    assert (log_dir / ".kafka_cleanshutdown").exists()
    assert sorted(path.name for path in log_dir.iterdir() if path.is_dir()) == [
        "events-0",
        "events-1",
    ]


@pytest.mark.parametrize(
    ("log_start", "first"), [(4, 3), (30, 30), (60, 60)], ids=["in a batch", "later", "at the end"]
)
def test_an_exported_log_starts_with_the_batch_that_holds_its_log_start(
    tmp_path: Path, log_start: int, first: int
) -> None:
    cluster, log_dir = a_cluster(tmp_path, partitions=1), a_broker_log_dir(tmp_path, partitions=1)
    cluster.delete_records({EVENTS_0: log_start})

    (exported,) = cluster.export("events", to=log_dir)

    directory = log_dir / "events-0"
    assert int(segments(directory)[0].stem) == first
    assert [record.offset for record in records(directory)] == list(range(first, 60))
    assert (exported.log_start_offset, exported.log_end_offset) == (log_start, 60)
    assert (directory / "leader-epoch-checkpoint").read_text() == f"0\n1\n0 {first}\n"
    text = (log_dir / "log-start-offset-checkpoint").read_text()
    assert text == f"0\n2\n{OTHER_TOPIC}\nevents 0 {log_start}\n"


@pytest.mark.parametrize("version", ["0.9.0", "0.10.2"], ids=["v0", "v1"])
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_messages_of_formats_v0_and_v1_are_exported_from_any_offset(
    tmp_path: Path, version: str, compression: str
) -> None:
    config = TopicConfig(index_interval_bytes=0, message_format_version=version)
    cluster = builders.a_cluster(tmp_path, config=config)
    with cluster.producer(compression_type=compression, linger_ms=10_000) as producer:
        for size in (1, 3, 1, 4):
            for number in range(size):
                producer.send("events", b"%d of %d" % (number, size))
            producer.flush()
    (held,) = builders.contents(cluster).values()
    (path,) = segments(store_of(cluster).metadata.cluster_file.log_directory(EVENTS_0))

    for log_start in range(9):
        folder = tmp_path / str(log_start)
        folder.mkdir()
        log_dir = a_broker_log_dir(folder, partitions=1)
        cluster.delete_records({EVENTS_0: log_start})

        cluster.export("events", to=log_dir)

        (exported,) = segments(log_dir / "events-0")
        first = (
            max(b for b in (0, 1, 4, 5) if b <= log_start) if compression == "gzip" else log_start
        )
        assert int(exported.stem) == first
        data = path.read_bytes()
        assert data.endswith(exported.read_bytes())
        assert [r.offset for r in decode_messages(exported.read_bytes())] == [
            record.offset for record in held[first:]
        ]


def test_an_exported_log_dir_reads_the_same_as_the_cluster(tmp_path: Path) -> None:
    cluster, log_dir = a_cluster(tmp_path, partitions=1), a_broker_log_dir(tmp_path, partitions=1)
    cluster.delete_records({EVENTS_0: 4})

    cluster.export("events", to=log_dir)

    with spark_kbatch.open(str(log_dir)) as there:
        found = [record for batch in there.read("events") for record in builders.as_read(batch)]
    assert found == builders.contents(cluster)[EVENTS_0]
    assert found[0].offset == 4


def test_uncommitted_records_are_not_exported(tmp_path: Path) -> None:
    cluster, log_dir = a_cluster(tmp_path, batches=2), a_broker_log_dir(tmp_path)
    ours = store_of(cluster).metadata.cluster_file.log_directory(EVENTS_0)
    with (ours / f"{0:020d}.log").open("ab") as file:
        file.write(builders.batch(base_offset=6, leader_epoch=0))

    cluster.export("events", to=log_dir)

    assert len(records(log_dir / "events-0")) == 6


def test_a_topic_is_exported_while_a_disk_is_away_unless_it_is_there_alone(tmp_path: Path) -> None:
    disks = [tmp_path / f"disk-{node}" for node in range(3)]
    cluster = Cluster(tmp_path / "cluster", create=True, log_dirs=disks)
    cluster.create_topic("events", 2, replication_factor=3)
    cluster.create_topic("alone", 2)
    with cluster.producer(acks="all", flush=False) as producer:
        for topic in ("events", "alone"):
            for number in range(4):
                producer.send(topic, value=f"{number}", partition=number % 2).result()
    shutil.rmtree(disks[0])  # of a leader
    cluster = Cluster(tmp_path / "cluster")

    log_dir = a_broker_log_dir(tmp_path)
    cluster.export("events", to=log_dir)
    found = [[one.value for one in records(log_dir / f"events-{number}")] for number in range(2)]
    assert found == [[b"0", b"2"], [b"1", b"3"]]

    (tmp_path / "other").mkdir()
    log_dir = a_broker_log_dir(tmp_path / "other", topic="alone")
    before = tree(log_dir)
    with pytest.raises(KafkaStorageError, match=r"alone-0 .*disk-0"):
        cluster.export("alone", to=log_dir)
    assert tree(log_dir) == before


def test_an_empty_topic_is_exported_empty(tmp_path: Path) -> None:
    cluster, log_dir = a_cluster(tmp_path, batches=0), a_broker_log_dir(tmp_path)
    before = tree(log_dir / "events-0")

    cluster.export("events", to=log_dir)

    assert tree(log_dir / "events-0") == before


def test_a_topic_with_the_longest_name_is_exported(tmp_path: Path) -> None:
    name = 249 * "n"
    cluster = builders.a_cluster(tmp_path, topics={name: 1})
    builders.write(cluster, {(name, 0): [builders.batch()]})

    cluster.export(name, to=a_broker_log_dir(tmp_path, partitions=1, topic=name))

    assert len(records(tmp_path / "broker" / f"{name}-0")) == 3


def without_meta(log_dir: Path) -> None:
    (log_dir / "meta.properties").unlink()


def without_the_topic(log_dir: Path) -> None:
    shutil.rmtree(log_dir / "events-0")
    shutil.rmtree(log_dir / "events-1")


def with_fewer_partitions(log_dir: Path) -> None:
    shutil.rmtree(log_dir / "events-1")


def with_more_partitions(log_dir: Path) -> None:
    shutil.copytree(log_dir / "events-1", log_dir / "events-2")


def with_records(log_dir: Path) -> None:
    (log_dir / "events-1" / f"{0:020d}.log").write_bytes(builders.batch())


def without_partition_metadata(log_dir: Path) -> None:
    (log_dir / "events-1" / "partition.metadata").unlink()


def with_another_topics_partition(log_dir: Path) -> None:
    write_partition_metadata(Files(), log_dir / "events-1", random_id())


def absent(log_dir: Path) -> None:
    shutil.rmtree(log_dir)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (absent, "has no meta.properties"),
        (without_meta, "has no meta.properties"),
        (
            without_the_topic,
            "has no directory events-0: create topic 'events' .* with 2 partitions",
        ),
        (with_fewer_partitions, "has no directory events-1"),
        (with_more_partitions, "has more than 2 partitions"),
        (with_records, "events-1 holds records already .* delete it on the broker"),
        (without_partition_metadata, "start the broker once"),
        (with_another_topics_partition, "are of 2 topics"),
    ],
)
def test_a_log_dir_that_cannot_take_the_topic_is_refused_and_left_as_it_is(
    tmp_path: Path, change: Callable[[Path], None], reason: str
) -> None:
    cluster, log_dir = a_cluster(tmp_path, batches=1), a_broker_log_dir(tmp_path)
    change(log_dir)
    before = tree(log_dir)

    with pytest.raises(ConfigError, match=reason):
        cluster.export("events", to=log_dir)

    assert tree(log_dir) == before


def test_the_log_dir_of_a_kbatch_cluster_is_refused(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, batches=1)

    with pytest.raises(ConfigError, match="of a kbatch cluster"):
        cluster.export("events", to=store_of(cluster).metadata.cluster_file.log_dir(0).path)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    cluster, log_dir = a_cluster(tmp_path, batches=1), a_broker_log_dir(tmp_path)
    (log_dir / "replication-offset-checkpoint").write_text("0\n7\n")
    before = tree(log_dir)

    with pytest.raises(KafkaStorageError, match="replication-offset-checkpoint"):
        cluster.export("events", to=log_dir)

    assert tree(log_dir) == before


def test_a_damaged_batch_is_not_exported(tmp_path: Path) -> None:
    cluster, log_dir = a_cluster(tmp_path, batches=1), a_broker_log_dir(tmp_path)
    path = (
        store_of(cluster).metadata.cluster_file.log_directory(TopicPartition("events", 1))
        / f"{0:020d}.log"
    )
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    before = tree(log_dir)

    with pytest.raises(CorruptRecordError, match=f"position 0 of {path}: CRC"):
        cluster.export("events", to=log_dir)

    assert tree(log_dir) == before


def test_an_unknown_topic_is_refused(tmp_path: Path) -> None:
    cluster, log_dir = a_cluster(tmp_path, batches=1), a_broker_log_dir(tmp_path)

    with pytest.raises(UnknownTopicOrPartitionError, match="'absent'"):
        cluster.export("absent", to=log_dir)


HOLDS_THE_LOCK = """
import fcntl, sys, time
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX if sys.argv[2] == "exclusive" else fcntl.LOCK_SH)
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
def test_a_log_dir_that_another_process_has_locked_is_refused(tmp_path: Path, kind: str) -> None:
    cluster, log_dir = a_cluster(tmp_path, batches=1), a_broker_log_dir(tmp_path)
    (log_dir / ".lock").touch()
    command = [sys.executable, "-c", HOLDS_THE_LOCK, str(log_dir / ".lock"), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            with pytest.raises(LogDirLockedError, match="stop it first"):
                cluster.export("events", to=log_dir)
        finally:
            holder.kill()

    cluster.export("events", to=log_dir)


class LooksAtTheLock(Files):
    """Files that check at every rename in the log dir whether a broker could start."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir, self.could_start = log_dir, list[bool]()

    def rename(self, source: Path, target: Path) -> None:
        if target.is_relative_to(self.log_dir):
            command = f"import fcntl; fcntl.lockf(open({str(self.log_dir / '.lock')!r}, 'r+b'), 6)"
            done = subprocess.run([sys.executable, "-c", command], capture_output=True, check=False)
            self.could_start.append(done.returncode == 0)
        super().rename(source, target)


def test_no_broker_can_start_during_an_export(tmp_path: Path) -> None:
    log_dir = a_broker_log_dir(tmp_path, partitions=1)
    a_cluster(tmp_path, batches=1, partitions=1)
    files = LooksAtTheLock(log_dir)

    Cluster(str(tmp_path / "cluster"), files=files).export("events", to=log_dir)

    assert len(files.could_start) >= 4
    assert not any(files.could_start)


@pytest.mark.more_in_soak
def test_a_killed_export_leaves_each_partition_empty_or_whole_and_a_retry_succeeds_or_is_refused(
    tmp_path: Path,
) -> None:
    """At every step of it. Directories that a broker removes when it starts may be left."""
    cluster, log_dir = a_cluster(tmp_path, batches=1), a_broker_log_dir(tmp_path)
    pristine = tmp_path / "pristine"
    shutil.copytree(log_dir, pristine)
    path = str(cluster.path)
    held = list(builders.contents(cluster).values())
    outcomes = set()

    def killed_at(step: int) -> bool:
        dying = Cluster(path, files=FaultyFiles(Fault(step, torn=True)))
        return died(lambda: dying.export("events", to=log_dir))

    for step in itertools.count(step=stride_of(2)):
        if not killed_at(step):
            break
        for directory in log_dir.iterdir():
            if directory.is_dir():
                assert directory.name in ("events-0", "events-1") or directory.name.endswith(
                    (f".{TOPIC_ID}-new-delete", f".{TOPIC_ID}-old-delete")
                )
        there = [log_dir / f"events-{p}" for p in range(2)]
        found = [records(directory) if directory.exists() else [] for directory in there]
        assert all(some in ([], whole) for some, whole in zip(found, held, strict=True))
        try:
            Cluster(path).export("events", to=log_dir)
            outcome = "repeated"
        except ConfigError as error:
            outcome = "full" if "holds records already" in str(error) else "missing"
        assert (outcome == "full") == any(found)
        assert outcome != "repeated" or [records(directory) for directory in there] == held
        outcomes.add(outcome)
        shutil.rmtree(log_dir)
        shutil.copytree(pristine, log_dir)

    assert outcomes == {"repeated", "full", "missing"}
    assert [records(log_dir / f"events-{p}") for p in range(2)] == held


@pytest.mark.parametrize("step", ["write", "flush", "make_dir"])
def test_a_disk_that_fails_before_the_swap_leaves_the_log_dir_as_it_was(
    tmp_path: Path, step: str
) -> None:
    cluster, log_dir = a_cluster(tmp_path, batches=1), a_broker_log_dir(tmp_path)
    before = tree(log_dir)
    counting = FaultyFiles()
    shutil.copytree(log_dir, tmp_path / "copy")
    Cluster(str(cluster.path), files=counting).export("events", to=tmp_path / "copy")
    at = next(n for n, name in enumerate(counting.steps) if name.startswith(step) and "new" in name)

    failing = Cluster(str(cluster.path), files=FaultyFiles(Fault(at, error=28)))
    with pytest.raises(OSError, match="No space left"):
        failing.export("events", to=log_dir)

    assert tree(log_dir) == before


def test_the_command_prints_what_each_partition_holds(tmp_path: Path) -> None:
    cluster, log_dir = a_cluster(tmp_path, batches=20), a_broker_log_dir(tmp_path)

    done = CliRunner().invoke(
        cli, ["export", str(cluster.path), "events", "--log-dir", str(log_dir)]
    )

    assert done.exit_code == 0, done.output
    _headings, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    sizes = [sum(p.stat().st_size for p in segments(log_dir / f"events-{n}")) for n in range(2)]
    counts = [str(len(segments(log_dir / f"events-{n}"))) for n in range(2)]
    assert rows == [[str(n), "0", "60", "60", counts[n], str(sizes[n])] for n in range(2)]
    assert "retention.ms=-1" in done.stderr


def test_the_command_prints_json(tmp_path: Path) -> None:
    cluster, log_dir = a_cluster(tmp_path, batches=1), a_broker_log_dir(tmp_path)

    words = ["export", str(cluster.path), "events", "--log-dir", str(log_dir), "--json"]
    done = CliRunner().invoke(cli, words)

    first, second = map(json.loads, done.stdout.splitlines())
    size = segments(log_dir / "events-0")[0].stat().st_size
    assert (first["partition"], second["partition"]) == (0, 1)
    assert first == {
        "topic": "events", "partition": 0, "log_start_offset": 0, "log_end_offset": 3,
        "segments_count": 1, "size_in_bytes": size,
    }  # fmt: skip
