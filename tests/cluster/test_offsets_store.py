"""Records stored in `__consumer_offsets` survive restarts, rewrites, and crashes of both."""

from __future__ import annotations

import errno
import itertools
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.cluster import group_records, state_log
from spark_kbatch.cluster.group_records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    MemberMetadata,
    OffsetKey,
)
from spark_kbatch.cluster.groups import read_groups
from spark_kbatch.cluster.offsets_store import Change, OffsetsStore, StoredGroups
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.cluster.state_log import StateLog
from spark_kbatch.commit.internal_topics import CONSUMER_OFFSETS, read_records
from spark_kbatch.errors import ConfigError, KafkaStorageError, KBatchError, LockTimeoutError
from spark_kbatch.files import Files
from spark_kbatch.model import AppendOrigin, GroupMember, TopicPartition
from spark_kbatch.record import scalar
from spark_kbatch.store.groups import committed
from tests.support import builders
from tests.support.crashes import EVERY_STEP, Crash, Recording
from tests.support.disk import Disk, DiskFiles
from tests.support.jobs import PATH
from tests.support.soundness import ensure_sound
from tests.support.store import append_records as append_by
from tests.support.store import store_of

PLACE = TopicPartition("events", 0)
MEMBER = MemberMetadata("m", None, "c", "/127.0.0.1", 60_000, 10_000, b"subscription", b"all")
GROUP = GroupMetadata("consumer", 3, "range", "m", 1_700_000_000_000, (MEMBER,))


def offset(number: int, group: str = "g", partition: int = 0) -> Change:
    value = CommittedOffset(number, 1, "m" * 50, 1_700_000_000_000 + number)
    return OffsetKey(group, "events", partition), value


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return builders.a_cluster(tmp_path, topics={"events": 3})


@pytest.fixture
def rewrites_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda size: monkeypatch.setattr(state_log, "REWRITE_BYTES", size)


def loaded(cluster: Cluster) -> StoredGroups:
    """Return the groups as the next coordinator loads them."""
    return OffsetsStore(store_of(Cluster(cluster.path))).load()


def state_of(cluster: Cluster) -> tuple[int, int]:
    """Return the log start offset and the log end offset."""
    state = store_of(cluster).manager.replica(CONSUMER_OFFSETS).state
    return state.log_start_offset, state.log_end_offset


def test_appended_changes_are_loaded(cluster: Cluster) -> None:
    kept = OffsetsStore(store_of(cluster))
    kept.append([(GroupKey("g"), GROUP), offset(1), offset(2, partition=1)])
    kept.append([offset(5), offset(7, group="other")])

    assert loaded(cluster) == kept.contents
    assert kept.contents.groups == {"g": GROUP}
    assert {tp: one.offset for tp, one in kept.contents.offsets["g"].items()} == {
        PLACE: 5,
        ("events", 1): 2,
    }


def test_tombstones_remove_their_keys(cluster: Cluster) -> None:
    kept = OffsetsStore(store_of(cluster))
    kept.append([(GroupKey("g"), GROUP), offset(1), offset(2, partition=1)])
    kept.append([(GroupKey("g"), None), (OffsetKey("g", "events", 0), None)])

    assert loaded(cluster) == kept.contents
    assert kept.contents.groups == {}
    assert kept.contents.offsets["g"].keys() == {("events", 1)}
    kept.append([(OffsetKey("g", "events", 1), None), (OffsetKey("none", "events", 1), None)])
    assert kept.contents == loaded(cluster) == StoredGroups()


def test_the_topic_is_internal_and_has_one_partition(cluster: Cluster) -> None:
    assert read_groups(store_of(cluster)) == []
    assert "__consumer_offsets" not in cluster.topic_names(internal=True)

    OffsetsStore(store_of(cluster)).append([offset(1)])

    assert "__consumer_offsets" not in cluster.topic_names()
    assert cluster.topic("__consumer_offsets").partitions == 1
    with pytest.raises(ConfigError, match="own"):
        cluster.delete_topic("__consumer_offsets")
    with pytest.raises(ConfigError, match="own"):
        cluster.create_topic("__consumer_offsets")


def test_the_topic_has_as_many_replicas_as_transaction_state(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    cluster = Cluster(tmp_path / "c", create=True, log_dirs=list(map(str, folders)))
    kept = OffsetsStore(store_of(cluster))
    kept.append([offset(1)])

    assert cluster.topic("__consumer_offsets").replication_factor == 2
    kept._log._rewrite()
    kept.append([offset(2)])
    assert loaded(cluster) == kept.contents
    ensure_sound(store_of(cluster).manager.log(CONSUMER_OFFSETS))


def test_other_processes_see_appended_changes(cluster: Cluster) -> None:
    kept = OffsetsStore(store_of(cluster))
    reader = store_of(Cluster(cluster.path))
    topic_id = cluster.topic("events").topic_id
    value = CommittedOffset(7, 1, "so far", 5, topic_id=topic_id)
    kept.append([(GroupKey("g"), GROUP), (OffsetKey("g", "events", 0), value), offset(1, "simple")])

    first, second = read_groups(reader)

    assert (first.group_id, first.state, first.protocol, first.generation) == (
        "g", "Stable", "range", 3,
    )  # fmt: skip
    assert first.members == (GroupMember("m", None, "c", "127.0.0.1", ()),)
    assert first.offsets == {PLACE: committed(7, "so far", 5)}
    assert (second.group_id, second.state, second.protocol_type) == ("simple", "Empty", "")
    kept._log._rewrite()
    kept.append([offset(2, "simple")])
    assert [one.offsets[PLACE].committed_offset for one in read_groups(reader)] == [7, 2]


def test_reading_groups_imports_no_expensive_modules() -> None:
    costly = "{'kafka', 'numba', 'pyarrow.compute', 'asyncio'}"
    program = (
        f"import sys, spark_kbatch.cluster.offsets_store; print({costly} & sys.modules.keys())"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(spark_kbatch.__file__).parent.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout == "set()\n"


def test_the_creation_of_the_topic_waits_for_its_lock_as_long_as_an_append_may_take(
    cluster: Cluster,
) -> None:
    kept = OffsetsStore(store_of(cluster), timeout_ms=50)
    with FolderParts(cluster.path).manager.locks.metadata(), pytest.raises(LockTimeoutError):
        kept.append([offset(1)])
    assert kept.contents == StoredGroups()

    kept.append([offset(1)])
    assert loaded(cluster) == kept.contents


def test_a_lost_file_of_the_topic_is_not_taken_for_a_cluster_without_groups(
    cluster: Cluster,
) -> None:
    OffsetsStore(store_of(cluster)).append([offset(1)])
    before = loaded(cluster)
    (cluster.path / "topics" / "__consumer_offsets.json").unlink()

    for read in (lambda: loaded(cluster), lambda: read_groups(store_of(cluster))):
        with pytest.raises(KafkaStorageError, match=r"`kbatch repair .*` recreates the file"):
            read()
    list(cluster.repair())
    assert loaded(cluster) == before


# Rewriting.


def test_the_log_is_rewritten_when_it_has_grown(
    cluster: Cluster, rewrites_at: Callable[[int], None]
) -> None:
    rewrites_at(10_000)
    kept = OffsetsStore(store_of(cluster))
    kept.append([(GroupKey("g"), GROUP)])
    for number in range(300):
        kept.append([offset(number)])

    start, end = state_of(cluster)
    assert start > 150
    assert end - start < 150
    assert loaded(cluster) == kept.contents
    assert kept.contents.groups == {"g": GROUP}
    ensure_sound(store_of(cluster).manager.log(CONSUMER_OFFSETS))


def test_a_log_of_mostly_current_records_is_not_rewritten_each_time(
    cluster: Cluster, rewrites_at: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrites_at(1)
    kept = OffsetsStore(store_of(cluster))
    kept.append([offset(1, group=str(number)) for number in range(1000)])
    rewritten: list[int] = []
    rewrite = StateLog._rewrite
    monkeypatch.setattr(StateLog, "_rewrite", lambda one: rewritten.append(1) or rewrite(one))
    for number in range(200):
        kept.append([offset(number)])
    restarted = OffsetsStore(store_of(cluster))
    restarted.load()
    for number in range(200):
        restarted.append([offset(number)])

    assert not rewritten
    assert loaded(cluster) == restarted.contents


def test_records_of_unknown_kinds_are_kept(cluster: Cluster) -> None:
    key, value = b"\0\3\0\1g", b"\0\0something"
    kept = OffsetsStore(store_of(cluster))
    kept.append([offset(1)])
    append(cluster, [(key, value), (b"\0\4x", b"gone"), (b"\0\4x", None), (None, b"no key")])

    restarted = OffsetsStore(store_of(cluster))
    assert restarted.load().others == {key: value}
    restarted._log._rewrite()
    assert loaded(cluster) == restarted.contents
    assert loaded(cluster).others == {key: value}


def append(cluster: Cluster, some: list[tuple[bytes | None, bytes | None]]) -> None:
    answers = []
    append_by(
        store_of(cluster),
        timeout_ms=1000,
        required_acks=-1,
        internal_topics_allowed=True,
        origin=AppendOrigin.COORDINATOR,
        entries_per_partition={CONSUMER_OFFSETS: scalar.encode(some, 1)},
        on_complete=answers.append,
        flush=False,
    )
    assert answers[0][CONSUMER_OFFSETS].error is None


def test_a_reader_that_is_overtaken_by_a_rewrite_starts_over(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = OffsetsStore(store_of(cluster))
    kept.append([(GroupKey("g"), GROUP), offset(1)])
    read = read_records

    def overtaken(*args: object) -> Iterator[object]:
        monkeypatch.setattr(state_log, "read_records", read)
        kept._log._rewrite()
        kept.append([offset(2)])
        return read(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(state_log, "read_records", overtaken)

    assert loaded(cluster) == kept.contents


def test_a_deleted_topic_is_recreated_with_all_current_records(cluster: Cluster) -> None:
    kept = OffsetsStore(store_of(cluster))
    kept.append([(GroupKey("g"), GROUP), offset(1)])
    remove_topic(cluster)

    with pytest.raises(KBatchError):
        kept.append([offset(2)])
    kept.append([offset(3)])

    assert loaded(cluster) == kept.contents
    assert kept.contents.groups == {"g": GROUP}


def remove_topic(cluster: Cluster) -> None:
    (cluster.path / "topics/__consumer_offsets.json").unlink()
    for directory in cluster.path.glob("broker-*/__consumer_offsets-0"):
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()


def test_a_deleted_topic_has_all_current_records_again_though_the_first_attempt_failed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = OffsetsStore(store_of(cluster))
    kept.append([(GroupKey("g"), GROUP), offset(1)])
    remove_topic(cluster)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as failing:
        failing.setattr("spark_kbatch.cluster.state_log.rewrite_locked", full)
        for number in (2, 3):
            with pytest.raises(KBatchError):
                kept.append([offset(number)])
    kept.append([offset(4, partition=1)])

    assert loaded(cluster) == kept.contents
    assert kept.contents == contents_after(
        (GroupKey("g"), GROUP), offset(1), offset(4, partition=1)
    )


def test_a_deleted_topic_that_housekeeping_recreates_has_all_current_records_again(
    cluster: Cluster,
) -> None:
    kept = OffsetsStore(store_of(cluster))
    kept.append([(GroupKey("g"), GROUP), offset(1)])
    remove_topic(cluster)
    with pytest.raises(KBatchError):
        kept.append([offset(2)])

    assert state_log.make_topic(store_of(cluster), CONSUMER_OFFSETS, time.monotonic() + 10)
    kept.append([offset(3)])

    assert loaded(cluster) == kept.contents
    assert kept.contents.groups == {"g": GROUP}


def test_a_failed_rewrite_loses_nothing_and_is_retried_later(
    cluster: Cluster,
    rewrites_at: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rewrites_at(1_000)
    kept = OffsetsStore(store_of(cluster))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as failing, caplog.at_level(logging.WARNING):
        failing.setattr("spark_kbatch.cluster.state_log.rewrite_locked", full)
        for number in range(20):
            kept.append([offset(number)])
    said = [one for one in caplog.messages if "cannot be rewritten" in one]

    assert 2 <= len(said) <= 4
    assert loaded(cluster) == kept.contents
    for number in range(20):
        kept.append([offset(number)])
    assert state_of(cluster)[0] > 20


# Crashes.


@pytest.fixture
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


SEEDS = pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(1), id="one seed"),
        pytest.param(EVERY_STEP, id="many seeds", marks=pytest.mark.slow),
    ],
)
BEFORE: list[Change] = [(GroupKey("g"), GROUP), offset(1), offset(1, group="other")]
AFTER: list[Change] = [(GroupKey("g"), None), offset(2), offset(3, partition=1)]


def crashes(recording: Recording, seeds: range) -> Iterator[Crash]:
    losses = (recording.power_losses(seed) for seed in seeds)
    return itertools.chain(recording.kills(), recording.torn_kills(), *losses)


def opened(files: Files) -> OffsetsStore:
    return OffsetsStore(FolderParts(PATH, files=files), flush=True)


def contents_after(*changes: Change) -> StoredGroups:
    found = StoredGroups()
    for change in changes:
        found.apply(change)
    return found


@pytest.mark.more_in_soak
@SEEDS
@pytest.mark.usefixtures("_quiet")
def test_a_crash_of_an_append_leaves_all_of_it_or_nothing(seeds: range) -> None:
    disk = Disk()
    cluster = Cluster(PATH, create=True, files=DiskFiles(disk))
    cluster.create_topic("events", partitions=2)
    opened(DiskFiles(disk)).append(BEFORE)
    recording = Recording(disk.settled(), lambda files: opened(files).append(AFTER))
    possible = contents_after(*BEFORE), contents_after(*BEFORE, *AFTER)

    for crash in crashes(recording, seeds):
        with crash.met():
            kept = opened(crash.files())
            assert kept.load() in possible, crash
            kept.append([offset(9)])
            assert kept.contents.offsets["g"][PLACE].offset == 9, crash


@pytest.mark.more_in_soak
@SEEDS
@pytest.mark.usefixtures("_quiet")
def test_a_crash_of_a_rewrite_loses_nothing(seeds: range) -> None:
    disk = Disk()
    Cluster(PATH, create=True, files=DiskFiles(disk)).create_topic("events", partitions=2)
    before = opened(DiskFiles(disk))
    for changes in (BEFORE, AFTER, BEFORE):
        before.append(changes)

    def rewrite(files: Files) -> None:
        kept = opened(files)
        kept.load()
        kept._log._rewrite()

    recording = Recording(disk.settled(), rewrite)
    for crash in crashes(recording, seeds):
        with crash.met():
            files = crash.files()
            kept = opened(files)
            assert kept.load() == before.contents, crash
            kept.append([offset(9)])
            kept._log._rewrite()
            assert opened(files).load() == kept.contents, crash


@pytest.mark.more_in_soak
@SEEDS
@pytest.mark.usefixtures("_quiet")
def test_a_crash_of_the_first_append_leaves_a_topic_or_none(seeds: range) -> None:
    disk = Disk()
    Cluster(PATH, create=True, files=DiskFiles(disk)).create_topic("events", partitions=2)
    recording = Recording(disk.settled(), lambda files: opened(files).append(BEFORE))

    for crash in crashes(recording, seeds):
        with crash.met():
            files = crash.files()
            assert opened(files).load() in (StoredGroups(), contents_after(*BEFORE)), crash
            kept = opened(files)
            kept.load()
            kept.append(AFTER)
            assert opened(files).load() == kept.contents, crash


def test_the_error_for_damaged_records_names_them(cluster: Cluster) -> None:
    OffsetsStore(store_of(cluster)).append([offset(1)])
    append(cluster, [(group_records.pack_key(OffsetKey("g", "events", 0)), b"\0\4short")])

    with pytest.raises(KBatchError, match=r"leader_epoch of a record in __consumer_offsets"):
        loaded(cluster)
