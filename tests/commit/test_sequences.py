"""A retried transaction is skipped if the first attempt was committed, wherever that attempt ended."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.commit import sequences
from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.errors import CommitError
from spark_kbatch.files import Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.store.repetitions import Attempt, Evidence
from tests.support import builders
from tests.support.crashes import sample
from tests.support.faults import CAN_BE_TORN, Fault, FaultyFiles, died
from tests.support.store import store_of

PLACES = [("events", 0), ("events", 1)]


def write(
    cluster: Cluster, seed: int, transactional_id: str, sequence: int, flush: bool = True,
    source_progress: bytes = b"", is_told: bool = True,
) -> bool:  # fmt: skip
    """Commit one batch to each partition; return False if it was skipped as a duplicate.

    Each commit has other rows. So one that is repeated is skipped only where its evidence is known, and refused where that
    is lost; without `is_told` there is none.
    """
    attempt = None
    if is_told and sequence >= 0 and not source_progress:
        plan = f"the plan of {sequence}", "where it ends"
        evidence = Evidence("events", f"rows {seed}", *plan, transactional_id, "a-run", "now")
        attempt = Attempt(transactional_id, sequence, evidence, None)
    job = {place: [builders.batch(n=1, seed=seed)] for place in PLACES}
    extents = builders.staged(cluster, job, transaction=f"{transactional_id}-{sequence}")
    coordinator = Coordinator(
        store_of(cluster).manager,
        lambda: builders.FIRST_TIMESTAMP_MS,
        adopt_min_bytes=1 << 20,
        flush=flush,
    )
    return coordinator.commit(
        extents,
        transactional_id=transactional_id,
        sequence=sequence,
        attempt=attempt,
        source_progress=source_progress,
    )


def seeds(cluster: Cluster) -> list[int]:
    """Return the seeds of the jobs in the log; each is in both partitions or in neither."""
    by_value = {builders.records_of([builders.batch(n=1, seed=n)])[0].value: n for n in range(20)}
    parts = builders.contents(Cluster(str(cluster.path)))
    first, second = ([by_value[r.value] for r in parts[TopicPartition(*place)]] for place in PLACES)
    assert first == second
    return first


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return builders.a_cluster(tmp_path, topics={"events": 2})


@pytest.mark.parametrize("again", [3, 2, 0])
def test_a_sequence_not_above_the_last_one_is_skipped(cluster: Cluster, again: int) -> None:
    assert write(cluster, 1, "query", 3)
    assert not write(cluster, 2, "query", again, is_told=False)
    assert write(cluster, 4, "query", 4)
    assert seeds(cluster) == [1, 4]


def test_each_id_has_its_own_sequences(cluster: Cluster) -> None:
    for transactional_id in ("a", "b", "höhe/../x" * 90):
        assert write(cluster, 1, transactional_id, 0)
        assert not write(cluster, 2, transactional_id, 0)
    assert seeds(cluster) == [1, 1, 1]


def test_jobs_without_a_sequence_are_never_skipped(cluster: Cluster) -> None:
    assert write(cluster, 1, "job", -1)
    assert write(cluster, 2, "job", -1)
    assert seeds(cluster) == [1, 2]


def test_another_process_knows_what_this_one_committed(cluster: Cluster) -> None:
    write(cluster, 1, "query", 0)
    assert not write(Cluster(str(cluster.path)), 2, "query", 0)


@pytest.mark.parametrize("flush", [True, False], ids=["flushed", "not flushed"])
def test_the_last_sequence_is_found_without_scanning_the_log(
    cluster: Cluster, flush: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sequence in range(30):
        write(cluster, 1, "query", sequence, flush)
    looked_at = []
    records = sequences.transactions

    def counting(*arguments: object) -> object:
        for transaction in records(*arguments):  # type: ignore[arg-type]
            looked_at.append(transaction)
            yield transaction

    monkeypatch.setattr(sequences, "transactions", counting)
    assert not write(cluster, 2, "query", 29, flush)
    assert len(looked_at) == 1


@pytest.mark.parametrize("is_rewritten", [False, True], ids=["", "rewritten"])
@pytest.mark.parametrize("is_saved", [True, False], ids=["saved", "scanned"])
def test_a_job_with_the_id_of_a_mirror_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_saved: bool, is_rewritten: bool
) -> None:
    if is_rewritten:
        monkeypatch.setattr(sequences, "REWRITE_BYTES", 1)
    write(cluster, 1, "etl", 2, source_progress=b"{}")
    if not is_saved:
        shutil.rmtree(saved_for(cluster).parent)

    for sequence in (0, 3):
        with pytest.raises(CommitError, match=r"nothing is visible.*'etl' is the name of a mirror"):
            write(cluster, 2, "etl", sequence)

    assert write(cluster, 3, "etl", 3, source_progress=b"{}")
    assert seeds(cluster) == [1, 3]


def test_a_mirror_with_the_id_of_a_job_is_refused(cluster: Cluster) -> None:
    """Ids of jobs have an @, which a mirror's name may have too."""
    write(cluster, 1, "etl", 2)

    with pytest.raises(CommitError, match=r"'etl' is the txnAppId of a job.*--name"):
        write(cluster, 2, "etl", 3, source_progress=b"{}")

    assert seeds(cluster) == [1]


def saved_by(cluster: Cluster) -> list[Path]:
    return sorted(store_of(cluster).metadata.paths.transactions_dir.glob("*.json"))


def saved_for(cluster: Cluster) -> Path:
    (path,) = saved_by(cluster)
    return path


def _change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _another_boot(path: Path) -> None:
    _change(path, offset=0, sequence=0)
    path.with_name("whole").write_text("00")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "all removed": lambda path: shutil.rmtree(path.parent),
    "empty": lambda path: path.write_bytes(b""),
    "no object": lambda path: path.write_text("[1]"),
    "without a key": lambda path: path.write_text(
        json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "is_mirror"})
    ),
    "another sequence than its record": lambda path: _change(path, offset=0, sequence=1),
    "past the end": lambda path: _change(path, offset=999),
    "of a CompleteCommit": lambda path: _change(path, offset=1),
    "of another boot": _another_boot,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_without_a_valid_saved_sequence_the_log_is_scanned(
    cluster: Cluster, damage: Callable[[Path], object]
) -> None:
    write(cluster, 1, "query", 0)
    write(cluster, 2, "query", 5)
    damage(saved_for(cluster))
    assert not write(cluster, 3, "query", 5)
    assert write(cluster, 4, "query", 6)
    assert seeds(cluster) == [1, 2, 4]


@pytest.mark.parametrize("is_saved", [True, False], ids=["saved", "scanned"])
def test_a_repetition_is_told_after_the_log_was_rewritten(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_saved: bool
) -> None:
    write(cluster, 1, "query", 0)
    with monkeypatch.context() as patch:
        patch.setattr(sequences, "REWRITE_BYTES", 1)
        write(cluster, 2, "another", 0)
    if not is_saved:
        shutil.rmtree(saved_by(cluster)[0].parent)

    assert not write(cluster, 3, "query", 0)
    assert not write(cluster, 4, "another", 0)
    assert seeds(cluster) == [1, 2]


@pytest.mark.parametrize("flush", [True, False], ids=["flushed", "not flushed"])
def test_what_tells_repetitions_costs_no_file_and_no_flush(tmp_path: Path, flush: bool) -> None:
    def steps(*, is_told: bool) -> list[str]:
        folder = tmp_path / "cluster"
        shutil.rmtree(folder, ignore_errors=True)
        cluster = builders.a_cluster(folder, topics={"events": 2})
        write(cluster, 0, "query", 0, flush, is_told=is_told)
        files = FaultyFiles()
        write(Cluster(str(cluster.path), files=files), 1, "query", 1, flush, is_told=is_told)
        return [re.sub(r"\b[0-9a-f]{32}\b", "ID", step) for step in files.steps]

    assert steps(is_told=True) == steps(is_told=False)


def test_what_an_earlier_release_wrote_is_not_taken_for_another_one(cluster: Cluster) -> None:
    write(cluster, 1, "query", 3, is_told=False)
    path = saved_for(cluster)
    saved = json.loads(path.read_text())
    del saved["evidence"]
    path.write_text(json.dumps(saved))

    assert not write(cluster, 2, "query", 3)
    with pytest.raises(CommitError, match="micro-batch 2 of query is no repetition"):
        write(cluster, 2, "query", 2)
    assert write(cluster, 4, "query", 4)
    assert not write(cluster, 5, "query", 4)
    assert seeds(cluster) == [1, 4]


def test_a_full_disk_after_the_commit_point_loses_only_the_saved_sequence(cluster: Cluster) -> None:
    class CannotSaveSequences(Files):
        def write(self, path: Path, position: int, data: object) -> None:
            if path.parent.name == "transactions":
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(path, position, data)  # type: ignore[arg-type]

    write(cluster, 1, "query", 0)
    assert write(Cluster(str(cluster.path), files=CannotSaveSequences()), 2, "query", 1)
    assert not (store_of(cluster).metadata.paths.transactions_dir / "whole").exists()
    assert not write(cluster, 3, "query", 1)
    assert seeds(cluster) == [1, 2]


def test_the_first_commit_of_an_id_does_not_scan_the_log(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(cluster, 1, "query", 0)
    monkeypatch.setattr(sequences, "transactions", None)
    assert write(cluster, 2, "another", 0)


def test_unflushed_saved_sequences_are_valid_until_the_machine_reboots(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(cluster, 1, "query", 0, flush=True)
    write(cluster, 2, "query", 1, flush=False)
    with monkeypatch.context() as patch:
        patch.setattr(sequences, "transactions", None)
        assert write(cluster, 3, "another", 0, flush=False)
    # A power loss took what the second commit saved, and left what the first one did.
    _change(saved_by(cluster)[1], sequence=0, offset=0)
    _change(saved_by(cluster)[0], sequence=0, offset=0)
    monkeypatch.setattr(sequences, "boot_id", lambda: bytes(16))
    assert not write(cluster, 4, "query", 1, flush=True)
    assert not write(cluster, 4, "another", 0, flush=True)
    assert seeds(cluster) == [1, 2, 3]


@pytest.mark.more_in_soak
def test_a_transaction_retried_after_any_crash_is_there_once(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path / "before", topics={"events": 2})
    write(cluster, 0, "query", 0)
    write(cluster, 1, "query", 1)
    dry_run = FaultyFiles()
    shutil.copytree(cluster.path, tmp_path / "dry")
    write(Cluster(str(tmp_path / "dry"), files=dry_run), 2, "query", 2)
    assert any("/transactions/" in step for step in dry_run.steps)

    repeated = 0
    for torn in (False, True):
        for at, step in sample(list(enumerate(dry_run.steps)), 4):
            if torn and step.split()[0] not in CAN_BE_TORN:
                continue
            path = tmp_path / "copy"
            shutil.copytree(cluster.path, path)
            files = FaultyFiles(Fault(at, torn=torn))
            assert died(lambda path=path, files=files: write(Cluster(str(path), files=files), 2, "query", 2))  # fmt: skip
            crashed = Cluster(str(path))
            is_there = seeds(crashed) == [0, 1, 2]
            # Spark retries it with tasks that run again.
            assert write(crashed, 3, "query", 2) == (not is_there), step
            assert seeds(crashed) == ([0, 1, 2] if is_there else [0, 1, 3]), step
            assert write(crashed, 4, "query", 3), step
            repeated += is_there
            shutil.rmtree(path)
    assert repeated > 1


def test_rolling_forward_keeps_the_sequence(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 2})

    class DiesSavingTheSequence(Files):
        def write(self, path: Path, position: int, data: object) -> None:
            if path.parent.name == "transactions":
                raise KeyboardInterrupt
            super().write(path, position, data)  # type: ignore[arg-type]

    with pytest.raises(KeyboardInterrupt):
        write(Cluster(str(cluster.path), files=DiesSavingTheSequence()), 1, "query", 0)
    assert store_of(cluster).manager.log(TRANSACTION_STATE).state().has_pending_commit
    assert not write(cluster, 2, "query", 0)
    assert saved_for(cluster).exists()
    assert seeds(cluster) == [1]


def test_an_error_before_the_commit_point_leaves_the_sequence_free(cluster: Cluster) -> None:
    class CannotPlace(Files):
        def write_at(self, descriptor: int, position: int, data: object) -> None:
            if Path(f"/proc/self/fd/{descriptor}").readlink().name.endswith(".log"):
                raise OSError(errno.EIO, "Input/output error")
            super().write_at(descriptor, position, data)  # type: ignore[arg-type]

    with pytest.raises(CommitError, match="nothing is visible"):
        write(Cluster(str(cluster.path), files=CannotPlace()), 1, "query", 0)
    assert write(cluster, 2, "query", 0)
    assert seeds(cluster) == [2]
