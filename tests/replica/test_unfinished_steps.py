"""What a kill leaves between two writes that belong together, and what is said of it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.log import truncation
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.replica.manager import ReplicaManager
from tests.support.faults import Killed

Clean = Callable[[Cluster], object]


def a_cluster(tmp_path: Path) -> Cluster:
    disks = [tmp_path / f"disk-{number}" for number in range(2)]
    cluster = spark_kbatch.open(tmp_path / "c", create=True, log_dirs=list(map(str, disks)))
    cluster.create_topic("t", partitions=1, replication_factor=2)
    return cluster


def send(cluster: Cluster, *values: str) -> None:
    with cluster.producer(acks="all") as producer:
        for value in values:
            producer.send("t", value=value)


def write(cluster: Cluster, values: list[str], *, overwrite: bool = False) -> None:
    """Write as a Spark job does."""
    options = parse_write_options({"path": str(cluster.path), "topic": "t"})
    job = begin_job(options, overwrite=overwrite)
    rows = pa.record_batch({"value": pa.array(values, pa.string())})
    job.commit_batch([job.stage(iter([rows]))])


def values_of(cluster: Cluster) -> list[bytes]:
    return cluster.read("t", columns=["value"]).read_all()["value"].to_pylist()  # type: ignore[no-any-return]


def raises(error: BaseException) -> Callable[..., None]:
    def fail(*_arguments: object, **_named: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    "clean",
    [
        pytest.param(lambda cluster: cluster.delete_records({("t", 0): 5}), id="delete-records"),
        pytest.param(lambda cluster: cluster.collect_garbage(), id="gc"),
        pytest.param(lambda cluster: write(cluster, [], overwrite=True), id="overwrite"),
    ],
)
def test_a_follower_killed_as_it_starts_over_can_have_its_records_deleted(
    tmp_path: Path, clean: Clean, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = a_cluster(tmp_path)
    send(cluster, "a", "b", "c")
    disk = tmp_path / "disk-1"
    disk.rename(tmp_path / "away")  # it misses two records, and the deletion of all
    send(cluster, "d", "e")
    cluster.delete_records({("t", 0): 5})
    (tmp_path / "away").rename(disk)
    with monkeypatch.context() as patched:
        patched.setattr(truncation, "segment_at", raises(Killed()))
        with pytest.raises(Killed):
            spark_kbatch.open(tmp_path / "c").replicate()
    files = {path.name for path in (disk / "broker-1/t-0").glob("*.log")}
    assert files == {f"{0:020d}.log"}, "the state says that it starts at 5, and no file does"

    cluster = spark_kbatch.open(tmp_path / "c")
    cluster.replicate()
    clean(cluster)

    send(cluster, "f")
    assert values_of(cluster) == [b"f"]
    assert not [one for one in cluster.verify() if one.found or one.damaged]


@pytest.mark.parametrize("step", ["delete_old_segments", "remove_deleted_topics"])
@pytest.mark.parametrize(
    "error", [StopIteration(), OSError(5, "Input/output error")], ids=["fault-of-ours", "disk"]
)
def test_a_decided_commit_is_not_failed_by_what_is_cleaned_up_after_it(
    tmp_path: Path,
    step: str,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = a_cluster(tmp_path)
    monkeypatch.setattr(ReplicaManager, step, raises(error))

    write(cluster, ["a"], overwrite=True)

    assert values_of(cluster) == [b"a"]
    assert f"cannot be {step.partition('_')[0]}d for now: {error or repr(error)}" in caplog.text
    assert ("Traceback" in caplog.text) == isinstance(error, StopIteration)


def kill_at_the_flip_of(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a commit's process die once it is decided, before it has written the state in one directory."""
    write_state, flip = PartitionLog.write_state, Coordinator._flip
    is_decided = False

    def flipping(self: Coordinator, *arguments: object, **named: object) -> None:
        nonlocal is_decided
        is_decided = True
        flip(self, *arguments, **named)  # type: ignore[arg-type]

    def writing(self: PartitionLog, *arguments: object, **named: object) -> None:
        if is_decided and str(self.directory).endswith(directory):
            raise Killed
        write_state(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Coordinator, "_flip", flipping)
    monkeypatch.setattr(PartitionLog, "write_state", writing)


@pytest.mark.parametrize(
    "directory", ["broker-0/__commits-0", "broker-1/__commits-0", "broker-0/t-0", "broker-1/t-0"]
)
def test_verify_finds_no_fault_where_a_decided_commit_waits_to_be_finished(
    tmp_path: Path, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = a_cluster(tmp_path)
    with monkeypatch.context() as patched:
        kill_at_the_flip_of(directory, patched)
        with pytest.raises(Killed):
            write(cluster, ["a", "b"])
    cluster = spark_kbatch.open(tmp_path / "c")

    assert not [one for one in cluster.verify() if one.found or one.damaged or one.offline]


@pytest.mark.parametrize("name", ["__commits-0", "t-0"])
def test_verify_lists_a_replica_that_lacks_what_the_waiting_commit_placed_in_it(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = a_cluster(tmp_path)
    with monkeypatch.context() as patched:
        kill_at_the_flip_of(f"broker-1/{name}", patched)
        with pytest.raises(Killed):
            write(cluster, ["a", "b"])
    log = tmp_path / "disk-1/broker-1" / name / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-7])

    (report,) = [one for one in spark_kbatch.open(tmp_path / "c").verify() if one.found]

    assert str(report.topic_partition) == name
    assert "replica on node 1 is not in sync" in report.found[0]
