"""`__transaction_state` is kept small without disturbing readers and commits."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.commit import sequences
from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.commit.snapshot import transactions
from spark_kbatch.errors import CommitError
from spark_kbatch.files import Files
from spark_kbatch.model import TopicPartition
from tests.support import builders
from tests.support.crashes import sample
from tests.support.faults import CAN_BE_TORN, Fault, FaultyFiles, StopsInTheFlip, died
from tests.support.soundness import ensure_sound
from tests.support.store import reader_of, store_of

PARTITIONS = [TopicPartition("events", 0), TopicPartition("events", 1)]
BATCH = builders.batch(n=1)
NOW = builders.FIRST_TIMESTAMP_MS


def write(
    cluster: Cluster,
    transactional_id: str = "job",
    sequence: int = -1,
    *,
    now_ms: int = NOW,
    expiration_ms: int | None = None,
) -> bool:
    """Commit one record to each partition; return False if it was skipped as a duplicate."""
    extents = builders.staged(cluster, {tp: [BATCH] for tp in PARTITIONS})
    committer = Coordinator(
        store_of(cluster).manager,
        lambda: now_ms,
        adopt_min_bytes=1 << 20,
        flush=False,
        id_expiration_ms=expiration_ms,
    )
    return committer.commit(extents, transactional_id=transactional_id, sequence=sequence)


def ids(cluster: Cluster) -> list[tuple[str, int]]:
    """Return the transactional id and sequence of each record in the log, in order."""
    replica = store_of(cluster).manager.replica(TRANSACTION_STATE)
    found = transactions(replica, replica.state.log_start_offset)
    return [(one.transactional_id, one.value.sequence) for one in found]


def ends(cluster: Cluster) -> list[int]:
    return [edges.high_watermark for edges in reader_of(cluster).edges(PARTITIONS).values()]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return builders.a_cluster(tmp_path, topics={"events": 2})


@pytest.fixture
def rewrites_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda size: monkeypatch.setattr(sequences, "REWRITE_BYTES", size)


def test_the_last_sequence_of_each_id_stays_and_jobs_without_one_are_dropped(
    cluster: Cluster, rewrites_at: Callable[[int], None]
) -> None:
    for sequence in range(3):
        write(cluster, "a", sequence)
        write(cluster, f"job-{sequence}")
    write(cluster, "b", 7)
    rewrites_at(1)
    write(cluster, "last-job")
    assert ids(cluster) == [("a", 2), ("b", 7)]
    log = store_of(cluster).manager.log(TRANSACTION_STATE)
    ensure_sound(log)
    assert log.state().segment_size == 0

    shutil.rmtree(
        store_of(cluster).metadata.paths.transactions_dir
    )  # saved sequences are rebuilt from what is left
    for transactional_id, last in (("a", 2), ("b", 7)):
        assert not write(cluster, transactional_id, last)
        assert write(cluster, transactional_id, last + 1)
        assert not write(cluster, transactional_id, last + 1)
    assert ends(cluster) == [10, 10]


def test_a_smaller_log_is_left_as_it_is(
    cluster: Cluster, rewrites_at: Callable[[int], None]
) -> None:
    write(cluster, "a", 0)
    size = store_of(cluster).manager.log(TRANSACTION_STATE).state().segment_size
    rewrites_at(3 * size)
    write(cluster, "job")
    assert ids(cluster) == [("a", 0), ("a", 0), ("job", -1), ("job", -1)]  # prepared, complete


def test_saved_sequences_stay_valid_after_the_log_is_rewritten(
    cluster: Cluster, rewrites_at: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(cluster, "a", 2)
    rewrites_at(1)
    write(cluster)
    monkeypatch.setattr("spark_kbatch.commit.sequences.transactions", None)
    assert not write(cluster, "a", 2)
    assert write(cluster, "a", 3)


def test_the_log_stays_small_over_many_commits(
    cluster: Cluster, rewrites_at: Callable[[int], None]
) -> None:
    rewrites_at(4000)
    sizes = []
    for sequence in range(60):
        write(cluster, "query", sequence)
        log = store_of(cluster).manager.log(TRANSACTION_STATE)
        sizes.append(log.size_in_bytes(log.state()))
    assert max(sizes) < 6000
    assert log.state().log_start_offset > 60
    assert len(log.segments.bases(log.state())) <= 2
    ensure_sound(log)


def test_ids_without_new_commits_expire_if_so_configured(
    cluster: Cluster, rewrites_at: Callable[[int], None]
) -> None:
    write(cluster, "old", 1, now_ms=NOW)
    write(cluster, "young", 1, now_ms=NOW + 100)
    rewrites_at(1)
    write(cluster, now_ms=NOW + 150, expiration_ms=100)
    assert ids(cluster) == [("young", 1)]
    assert write(cluster, "old", 1)
    assert not write(cluster, "young", 1)


def test_a_failed_rewrite_does_not_fail_the_commit(
    cluster: Cluster, rewrites_at: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    class CannotRewrite(Files):
        def flush(self, paths: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

    write(cluster, "a", 1)
    rewrites_at(1)
    with caplog.at_level(logging.WARNING):
        assert write(Cluster(str(cluster.path), files=CannotRewrite()), "b", 1)
    assert "__transaction_state-0 cannot be rewritten for now" in caplog.text
    assert ends(cluster) == [2, 2]
    assert write(cluster, "c", 1)
    assert ids(cluster) == [("a", 1), ("b", 1), ("c", 1)]
    ensure_sound(store_of(cluster).manager.log(TRANSACTION_STATE))


@pytest.mark.more_in_soak
@pytest.mark.parametrize("torn", [False, True], ids=["between steps", "within a step"])
def test_a_rewrite_killed_at_any_step_loses_no_commit(
    cluster: Cluster, tmp_path: Path, torn: bool, rewrites_at: Callable[[int], None]
) -> None:
    for sequence in range(3):
        write(cluster, "a", sequence)
    write(cluster, "b", 5)
    rewrites_at(1)
    dry_run = FaultyFiles()
    shutil.copytree(cluster.path, tmp_path / "dry")
    write(Cluster(str(tmp_path / "dry"), files=dry_run), "c", 0)
    slots = [
        at
        for at, step in enumerate(dry_run.steps)
        if step.startswith("write") and step.endswith("__transaction_state-0/kbatch.state")
    ]
    assert len(slots) == 3
    for at, step in sample(list(enumerate(dry_run.steps)), 3):
        if at <= slots[1] or (torn and step.split()[0] not in CAN_BE_TORN):
            continue
        path = tmp_path / str(at)
        shutil.copytree(cluster.path, path)
        files = FaultyFiles(Fault(at, torn=torn))
        assert died(
            lambda path=path, files=files: write(Cluster(str(path), files=files), "c", 0)
        ), step
        crashed = Cluster(str(path))
        assert ends(crashed) == [5, 5], step
        assert not write(crashed, "a", 2), step
        assert not write(crashed, "b", 5), step
        assert not write(crashed, "c", 0), step
        assert write(crashed, "b", 6), step
        assert ends(crashed) == [6, 6], step
        assert dict(ids(crashed)) == {"a": 2, "b": 6, "c": 0}, step
        ensure_sound(store_of(crashed).manager.log(TRANSACTION_STATE))
        shutil.rmtree(path)


def test_new_segments_are_flushed_even_if_jobs_do_not_flush(
    cluster: Cluster, rewrites_at: Callable[[int], None]
) -> None:
    write(cluster, "a", 1)
    rewrites_at(1)
    files = FaultyFiles()
    write(Cluster(str(cluster.path), files=files), "b", 1)  # with flush=False

    state = "__transaction_state-0/kbatch.state"
    last = max(at for at, step in enumerate(files.steps) if step.endswith(state))
    assert files.steps[last].startswith("flush")


class Overtaken(Files):
    """Files that call `meanwhile` once, before the n-th read of a state or a segment."""

    def __init__(self, at: int, meanwhile: Callable[[], object]) -> None:
        self.at, self.meanwhile, self.reads = at, meanwhile, 0

    def read(self, path: Path, position: int = 0, size: int | None = None) -> bytes:
        self._count()
        return super().read(path, position, size)

    def opened(self, path: Path, *, write: bool = False):  # type: ignore[no-untyped-def]
        if path.suffix == ".log":
            self._count()
        return super().opened(path, write=write)

    def _count(self) -> None:
        self.reads += 1
        if self.reads == self.at + 1:
            self.meanwhile()


@pytest.mark.parametrize("pending", [False, True], ids=["nothing pending", "a commit pending"])
def test_a_snapshot_overtaken_by_a_rewrite_sees_each_commit_as_a_whole(
    cluster: Cluster, rewrites_at: Callable[[int], None], pending: bool
) -> None:
    def commits() -> None:
        rewrites_at(1 << 20)
        write(cluster)
        rewrites_at(1)
        write(cluster)

    write(cluster, "a", 1)
    for at in range(12):
        before = ends(cluster)[0]
        if pending:
            stopped = Cluster(str(cluster.path), files=StopsInTheFlip(2))
            rewrites_at(1 << 20)
            with pytest.raises(CommitError, match="committed"):
                write(stopped)
            before += 1
        files = Overtaken(at, commits)
        found = ends(Cluster(str(cluster.path), files=files))
        assert found[0] == found[1], at
        assert before <= found[0] <= before + 2, at
        if files.reads <= at:
            break
        assert ends(cluster) == [before + 2] * 2
    assert at > 3


def test_a_pending_commit_is_found_without_scanning_the_log(cluster: Cluster) -> None:
    def reads_to_look() -> int:
        stopped = Cluster(str(cluster.path), files=StopsInTheFlip(1))
        with pytest.raises(CommitError, match="committed"):
            write(stopped)
        files = CountingFiles()
        looking = Cluster(str(cluster.path), files=files)
        files.read_bytes = 0
        assert store_of(looking).coordinator(flush=False).is_pending(PARTITIONS)
        write(cluster)
        return files.read_bytes

    first = reads_to_look()
    for sequence in range(100):
        write(cluster, "query", sequence)
    assert (
        reads_to_look() < first + 3 * 4096
    )  # an index entry's distance, and the state's two slots


class CountingFiles(Files):
    def __init__(self) -> None:
        self.read_bytes = 0

    def read(self, path: Path, position: int = 0, size: int | None = None) -> bytes:
        data = super().read(path, position, size)
        self.read_bytes += len(data)
        return data

    def pread_into(self, descriptor: int, position: int, buffer: memoryview) -> int:
        count = super().pread_into(descriptor, position, buffer)
        self.read_bytes += count
        return count
