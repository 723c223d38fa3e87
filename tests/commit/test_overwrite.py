"""Commits that replace a topic's records, and reads of the records that were replaced."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from spark_kbatch.commit import coordinator
from spark_kbatch.commit.coordinator import Coordinator, Overwrite
from spark_kbatch.consumer.planning import DataLoss
from spark_kbatch.consumer.reading import OnLoss, read_range
from spark_kbatch.errors import CommitError, DataLossError, OffsetOutOfRangeError
from spark_kbatch.model import OffsetRange, Piece, TopicPartition
from spark_kbatch.options.read import parse_read_options
from tests.support import builders
from tests.support.builders import contents, records_of
from tests.support.crashes import sample
from tests.support.faults import (
    CAN_BE_TORN,
    DiesAtTheCommitPoint,
    Fault,
    FaultyFiles,
    died,
    run_child,
)
from tests.support.soundness import ensure_sound
from tests.support.store import reader_of, store_of

FIRST, SECOND = PARTITIONS = [TopicPartition("events", 0), TopicPartition("events", 1)]
OTHER = TopicPartition("others", 0)
NOW, DELAY = 1_800_000_000_000, 3_600_000


def batch(seed: int, n: int = 3) -> bytes:
    return builders.batch(n=n, seed=seed)


def overwrite(
    cluster: Cluster,
    batches: dict[tuple[str, int], list[bytes]],
    *,
    now_ms: int = NOW,
    transaction: str = builders.JOB,
    adopt_min_bytes: int = 1 << 20,
) -> None:
    """Replace the records of `events` with these batches."""
    store_of(cluster).manager.now_ms = lambda: now_ms
    topic = cluster.topic("events")
    extents = builders.staged(
        cluster, batches, transaction=transaction, adopt_min_bytes=adopt_min_bytes
    )
    committer = Coordinator(
        store_of(cluster).manager, lambda: now_ms, adopt_min_bytes=adopt_min_bytes, flush=False
    )
    committer.commit(extents, transactional_id="job", overwrite=Overwrite(topic, DELAY))


def collect_garbage(cluster: Cluster, now_ms: int) -> None:
    """Collect garbage in the logs, as `kbatch gc` would at `now_ms`."""
    store_of(cluster).manager.now_ms = lambda: now_ms
    store_of(cluster).manager.delete_old_segments(
        PARTITIONS, store_of(cluster).coordinator(flush=False)
    )


def read(cluster: Cluster, tp: TopicPartition, start: int, end: int, **named: OnLoss) -> list[int]:
    """Return the offsets read from a range that was resolved earlier."""
    pieces = read_range(cluster._store.source, OffsetRange(tp, start, end), ["offset"], **named)
    return [offset for piece in pieces for offset in piece.column("offset").to_pylist()]


def bases(cluster: Cluster, tp: TopicPartition) -> list[int]:
    log = store_of(Cluster(str(cluster.path))).manager.log(tp)  # has no list of segments cached
    return log.segments.bases(log.state())


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """A cluster in which `events` has three records in its first partition and none in the second."""
    cluster = builders.a_cluster(tmp_path, topics={"events": 2, "others": 1})
    builders.write(cluster, {("events", 0): [batch(1)], ("others", 0): [batch(9)]})
    return cluster


def after(n: int, *batches: bytes) -> list[object]:
    """Return what a partition holds after its first `n` records were overwritten."""
    return [record._replace(offset=record.offset + n) for record in records_of(batches)]


@pytest.mark.parametrize("adopt_min_bytes", [1 << 20, 0], ids=["copied", "renamed"])
def test_an_overwritten_topic_has_only_the_new_records_and_offsets_go_on(
    cluster: Cluster, adopt_min_bytes: int
) -> None:
    job = {("events", 0): [batch(2)], ("events", 1): [batch(3)]}
    overwrite(cluster, job, adopt_min_bytes=adopt_min_bytes)
    found = contents(cluster)
    assert found[FIRST] == after(3, batch(2))
    assert found[SECOND] == after(0, batch(3))
    assert found[OTHER] == records_of([batch(9)])
    for tp in found:
        ensure_sound(store_of(cluster).manager.log(tp))

    builders.write(cluster, {("events", 0): [batch(4)]})
    assert contents(cluster)[FIRST] == after(3, batch(2), batch(4))
    (newest, before, _) = cluster.history()
    assert (newest.mode, before.mode) == ("append", "overwrite")
    assert before.offsets == {FIRST: (3, 6), SECOND: (0, 3)}


def test_an_overwrite_without_rows_empties_the_topic(cluster: Cluster) -> None:
    overwrite(cluster, {})
    found = contents(cluster)
    assert (found[FIRST], found[SECOND]) == ([], [])
    assert reader_of(cluster).edges([FIRST])[FIRST].log_start_offset == 3
    assert next(cluster.history()).ends == {FIRST: 3, SECOND: 0}
    overwrite(cluster, {})
    builders.write(cluster, {("events", 0): [batch(2)]})
    assert contents(cluster)[FIRST] == after(3, batch(2))
    ensure_sound(store_of(cluster).manager.log(FIRST))


def test_a_partition_that_gets_no_rows_is_emptied_too(cluster: Cluster) -> None:
    overwrite(cluster, {("events", 1): [batch(3)]})
    assert contents(cluster)[FIRST] == []


def test_a_range_resolved_before_an_overwrite_is_readable_until_its_files_are_deleted(
    cluster: Cluster,
) -> None:
    builders.write(cluster, {("events", 0): [batch(5)]})
    overwrite(cluster, {("events", 0): [batch(2)]})
    collect_garbage(cluster, NOW + DELAY - 1)
    assert read(cluster, FIRST, 1, 9) == list(range(1, 9))
    assert read(Cluster(str(cluster.path)), FIRST, 0, 6) == list(range(6))

    collect_garbage(cluster, NOW + DELAY)
    assert bases(cluster, FIRST) == [6]
    with pytest.raises(
        OffsetOutOfRangeError,
        match=r"offset 1 of events-0 .* offsets 6 to 9 \(exclusive\); commit 2 has overwritten it",
    ):
        read(cluster, FIRST, 1, 9)
    with pytest.raises(
        DataLossError, match=r"offset 1 to 6 cannot be read: commit 2 has overwritten"
    ):
        read(cluster, FIRST, 1, 9, on_loss=DataLoss(fail=True).offsets_gone)
    assert read(cluster, FIRST, 1, 9, on_loss=DataLoss(fail=False).offsets_gone) == [6, 7, 8]
    assert contents(cluster)[FIRST] == after(6, batch(2))


def test_gc_shows_what_is_kept_for_readers_of_overwritten_records_and_until_when(
    cluster: Cluster,
) -> None:
    now_ms = int(time.time() * 1000)
    before = cluster.describe("events")[0].size_in_bytes
    overwrite(cluster, {("events", 0): [batch(2)]}, now_ms=now_ms)
    done = CliRunner().invoke(cli, ["gc", str(cluster.path), "events", "--json"])
    rows = {row["waiting"]: row for row in map(json.loads, done.stdout.splitlines())}
    row = rows["overwritten"]
    assert row["name"] == "events-0"
    assert (row["size_in_bytes"], row["until_ms"]) == (before, now_ms + DELAY)
    lines = CliRunner().invoke(cli, ["gc", str(cluster.path)]).stdout.splitlines()
    kept = f"overwritten records of events-0: {before} bytes, for running readers kept until 2"
    assert any(line.startswith(kept) for line in lines)
    assert lines[-1] == "Nothing to delete yet."
    listed = CliRunner().invoke(cli, ["topics", str(cluster.path), "events", "--json"])
    (first, _) = json.loads(listed.stdout)["partitions"]
    assert first["high_watermark"] - first["log_start_offset"] == 3
    assert first["size_in_bytes"] > before

    store_of(cluster).manager.now_ms = lambda: now_ms + DELAY
    waiting = {one.what for one in cluster.collect_garbage().waiting}
    assert waiting == {"staged", "deleted segments"}


def test_each_overwrite_has_its_own_time(cluster: Cluster) -> None:
    for number in range(3):
        overwrite(cluster, {("events", 0): [batch(number)]}, now_ms=NOW + number * DELAY // 2)
    # The third commit deleted what the first had overwritten an hour before.
    assert bases(cluster, FIRST) == [3, 6, 9]
    with pytest.raises(OffsetOutOfRangeError, match="commit 1 has overwritten it"):
        read(cluster, FIRST, 0, 12)
    assert read(cluster, FIRST, 3, 12) == list(range(3, 12))


GONE = r"offset 2 of events-0 is out of range: .* offsets 3 to 6 \(exclusive\); commit 1 has overwritten it"


def plan(cluster: Cluster, **options: str) -> list[Piece]:
    """Return the tasks' pieces of a batch read of `events` in Spark."""
    read = {"path": str(cluster.path), "subscribe": "events", **options}
    return [piece for task in reader_of(cluster).plan(parse_read_options(read)) for piece in task]


def planned(cluster: Cluster, **options: str) -> list[TopicPartition]:
    """Return the partitions of which such a read may read something."""
    return [piece.wanted.topic_partition for piece in plan(cluster, **options)]


def test_a_read_that_ends_where_an_overwritten_commit_ended_is_refused_by_the_commits_name(
    cluster: Cluster,
) -> None:
    first = next(cluster.history())
    overwrite(cluster, {("events", 0): [batch(2)], ("events", 1): [batch(3)]})
    collect_garbage(cluster, NOW + DELAY)
    second = next(cluster.history())

    ends = {tp: first.ends.get(tp, 0) for tp in PARTITIONS}
    for start in ("earliest", datetime(2000, 1, 1, tzinfo=UTC)):
        with pytest.raises(OffsetOutOfRangeError, match=GONE):
            cluster.read("events", start=start, end=ends)
    for start in ("earliest", {FIRST: 0, SECOND: 0}):
        with pytest.raises(OffsetOutOfRangeError, match="commit 1 has overwritten it"):
            cluster.read("events", start=start, end={**ends, FIRST: 2})

    old = first.ending_offsets("events")
    with pytest.raises(OffsetOutOfRangeError, match=f"option 'endingOffsets': {GONE}"):
        plan(cluster, endingOffsets=old)
    since = {"startingTimestamp": "0", "endingOffsets": old}
    with pytest.raises(OffsetOutOfRangeError, match=f"option 'endingOffsets': {GONE}"):
        plan(cluster, **since)
    with pytest.raises(OffsetOutOfRangeError, match=r"'startingOffsets': offset 0 .* commit 1 has"):
        plan(cluster, startingOffsets='{"events":{"0":0,"1":0}}', endingOffsets=old)

    result = CliRunner().invoke(cli, ["consume", str(cluster.path), "events", "--end", "0:3,1:0"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "commit 1 has overwritten it" in str(result.exception)

    assert len(plan(cluster, endingOffsets=second.ending_offsets("events"))) == 2
    ends = {tp: second.ends[tp] for tp in PARTITIONS}
    assert cluster.read("events", end=ends).read_all().num_rows == 6


def test_a_read_that_accepts_data_loss_warns_of_what_was_overwritten(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    old = next(cluster.history()).ending_offsets("events")
    overwrite(cluster, {("events", 0): [batch(2)]})
    assert planned(cluster, endingOffsets=old, failOnDataLoss="false") == [SECOND]
    assert "commit 1 has overwritten it; reading what is there" in caplog.text


def test_the_ends_of_an_overwrite_that_left_a_partition_empty_can_be_read(cluster: Cluster) -> None:
    overwrite(cluster, {("events", 1): [batch(3)]})
    ends = next(cluster.history())
    assert ends.ends == {FIRST: 3, SECOND: 3}
    builders.write(cluster, {("events", 0): [batch(4)]})
    bounds = {tp: ends.ends[tp] for tp in PARTITIONS}
    assert cluster.read("events", end=bounds).read_all()["partition"].to_pylist() == [1] * 3
    assert planned(cluster, endingOffsets=ends.ending_offsets("events")) == [SECOND]


def test_a_topic_that_an_overwrite_emptied_is_read_up_to_where_it_ends_now(
    cluster: Cluster,
) -> None:
    overwrite(cluster, {})
    ends = next(cluster.history()).ending_offsets("events")
    assert planned(cluster, endingOffsets=ends) == [SECOND]
    assert cluster.read("events", end={0: 3, 1: 0}).read_all().num_rows == 0


def test_a_plan_whose_records_are_overwritten_before_it_is_read_is_data_loss(
    cluster: Cluster,
) -> None:
    options = {"path": str(cluster.path), "subscribe": "events"}
    options |= {"endingOffsets": '{"events":{"0":3,"1":0}}'}
    asked = parse_read_options(options)
    (task, *_) = reader_of(cluster).plan(asked)
    overwrite(cluster, {("events", 0): [batch(2)]})
    with pytest.raises(DataLossError, match="commit 1 has overwritten it"):
        list(reader_of(cluster).read_task(task, ["offset"], asked, "action"))


def test_a_read_that_ends_where_retention_has_moved_the_log_start_is_empty(
    cluster: Cluster,
) -> None:
    builders.write(cluster, {("events", 0): [batch(5)]})
    cluster.delete_records({FIRST: 3})
    assert cluster.read("events", end={0: 3, 1: 0}).read_all().num_rows == 0
    assert planned(cluster, endingOffsets='{"events":{"0":3,"1":0}}') == [SECOND]


def test_deleted_records_are_not_read_even_while_their_files_exist(cluster: Cluster) -> None:
    overwrite(cluster, {("events", 0): [batch(2)]})
    store_of(cluster).manager.now_ms = lambda: NOW
    cluster.delete_records({FIRST: 6})
    builders.write(cluster, {("events", 0): [batch(3)]})
    assert contents(cluster)[FIRST] == after(6, batch(3))
    assert read(cluster, FIRST, 0, 3) == [0, 1, 2]
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 3 .* 6 to 9 \(exclusive\)$"):
        read(cluster, FIRST, 0, 9)


def test_a_failed_overwrite_does_not_make_later_deleted_records_readable(
    cluster: Cluster,
) -> None:
    def dies() -> None:
        overwrite(Cluster(str(cluster.path), files=DiesAtTheCommitPoint()), {})

    assert died(dies)
    assert contents(cluster)[FIRST] == records_of([batch(1)])
    cluster.delete_records({FIRST: 3})
    with pytest.raises(OffsetOutOfRangeError):
        read(cluster, FIRST, 0, 3)
    assert bases(cluster, FIRST) == [3], "nothing of the old segment is left"


def test_a_topic_that_was_recreated_meanwhile_is_left_alone(cluster: Cluster) -> None:
    stale = Overwrite(cluster.topic("events"), DELAY)
    path = cluster.path / "topics/events.json"
    path.write_text(path.read_text().replace(stale.topic.topic_id, "A" * 22))
    committer = Coordinator(store_of(cluster).manager, lambda: NOW, adopt_min_bytes=0, flush=False)
    with pytest.raises(CommitError, match="was recreated while the job ran") as error:
        committer.commit([], transactional_id="job", overwrite=stale)
    assert error.value.outcome == coordinator.NOTHING_VISIBLE
    assert contents(cluster)[FIRST] == records_of([batch(1)])


def _steps(path: Path, batches: dict[tuple[str, int], list[bytes]]) -> list[str]:
    files = FaultyFiles()
    overwrite(Cluster(str(path), files=files), batches)
    return files.steps


@pytest.mark.more_in_soak
@pytest.mark.parametrize("torn", [False, True], ids=["between steps", "within a step"])
def test_an_overwrite_killed_at_any_step_replaces_all_or_nothing(
    cluster: Cluster, tmp_path: Path, torn: bool
) -> None:
    job = {("events", 0): [batch(2)]}
    builders.write(cluster, {("events", 1): [batch(5)]})
    old = [records_of([batch(1)]), records_of([batch(5)])]
    new: list[Sequence[object]] = [after(3, batch(2)), []]
    shutil.copytree(cluster.path, tmp_path / "dry")
    seen = []
    for at, step in sample(list(enumerate(_steps(tmp_path / "dry", job))), 4):
        if torn and step.split()[0] not in CAN_BE_TORN:
            continue
        path = tmp_path / str(at)
        shutil.copytree(cluster.path, path)
        files = FaultyFiles(Fault(at, torn=torn))
        assert died(
            lambda path=path, files=files: overwrite(Cluster(str(path), files=files), job)
        ), step
        crashed = Cluster(str(path))
        found = [contents(crashed)[tp] for tp in PARTITIONS]
        assert found in (old, new), step
        seen.append(found == new)
        builders.write(crashed, {("events", 1): [batch(6)]})
        found_after = contents(crashed)
        assert found_after[FIRST] == found[0], step
        assert found_after[SECOND] == [*found[1], *after(3, batch(6))], step
        overwrite(crashed, {("events", 1): [batch(7)]}, transaction="next")
        assert [contents(crashed)[tp] for tp in PARTITIONS] == [[], after(6, batch(7))], step
        assert read(crashed, SECOND, 0, 9) == list(range(9)), step
        for tp in PARTITIONS:
            ensure_sound(store_of(crashed).manager.log(tp))
        shutil.rmtree(path)
    assert seen == sorted(seen)
    assert set(seen) == {False, True}


def test_readers_during_overwrites_always_see_one_whole_version_of_the_topic(
    cluster: Cluster,
) -> None:
    """Each commit writes the same number of records to both partitions, at higher offsets than before."""
    overwrite(cluster, {("events", 0): [batch(0)], ("events", 1): [batch(0)]})

    def overwrites() -> None:
        mine = Cluster(str(cluster.path))
        for n in range(1, 30):
            overwrite(mine, {("events", p): [batch(n, n=n)] for p in (0, 1)})

    child = run_child(overwrites)
    numbers = set()
    while 29 not in numbers:
        edges = reader_of(cluster).edges(PARTITIONS)
        sizes = [edges[tp].high_watermark - edges[tp].log_start_offset for tp in PARTITIONS]
        assert sizes[0] == sizes[1], edges
        numbers.add(sizes[0])
        for tp in PARTITIONS:
            start, end = edges[tp].log_start_offset, edges[tp].high_watermark
            assert read(cluster, tp, start, end) == list(range(start, end))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
