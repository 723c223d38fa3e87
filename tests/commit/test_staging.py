"""The files that a task stages for the commit, and the extents that describe them."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from spark_kbatch.commit.staging import (
    Extent,
    OpenFiles,
    Staging,
    abandoned_jobs,
    remove_abandoned_jobs,
)
from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.files import Files
from spark_kbatch.options.topic import Topic, TopicConfig
from tests.support.faults import Fault, FaultyFiles, open_files

TOPICS = {name: Topic(name, f"id of {name}", 3, TopicConfig()) for name in ("clicks", "views")}


def stage(
    folder: Path,
    *batches: tuple[str, int, bytes],
    shared_bytes_max: int = 100,
    segment_bytes: int = 1 << 20,
) -> list[Extent]:
    staging = Staging(Files(), folder, "job", shared_bytes_max=shared_bytes_max, flush=True)
    for topic, partition, data in batches:
        config = TopicConfig(segment_bytes=segment_bytes)
        staging.send(Topic(topic, f"id of {topic}", 3, config), partition, data, len(data) // 10)
    return staging.finish()


def bytes_of(folder: Path, extents: list[Extent], topic: str, partition: int) -> bytes:
    return b"".join(
        (folder / extent.file).read_bytes()[extent.position :][: extent.size_in_bytes]
        for extent in extents
        if extent.topic_partition == (topic, partition)
    )


def test_adjacent_batches_are_one_extent(tmp_path: Path) -> None:
    extents = stage(
        tmp_path,
        ("clicks", 0, b"a" * 20),
        ("clicks", 0, b"b" * 30),
        ("clicks", 1, b"c" * 10),
        ("clicks", 0, b"d" * 40),
        ("views", 0, b"e" * 10),
        ("views", 0, b"f" * 10),
    )
    assert [
        (e.topic, e.partition, e.position, e.size_in_bytes, e.records_count) for e in extents
    ] == [
        ("clicks", 0, 0, 50, 5),
        ("clicks", 1, 50, 10, 1),
        ("clicks", 0, 60, 40, 4),
        ("views", 0, 100, 20, 2),
    ]
    assert {(e.topic_id, e.partition_count) for e in extents} == {
        ("id of clicks", 3),
        ("id of views", 3),
    }
    assert len({e.file for e in extents}) == 1
    assert bytes_of(tmp_path, extents, "clicks", 0) == b"a" * 20 + b"b" * 30 + b"d" * 40


def test_many_small_partitions_share_one_file(tmp_path: Path) -> None:
    extents = stage(tmp_path, *[("clicks", n % 3, b"x" * 20) for n in range(12)])
    assert len(extents) == 12
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 1


def test_batches_past_shared_bytes_max_go_to_a_file_of_their_own(tmp_path: Path) -> None:
    parts = [bytes([65 + n]) * 60 for n in range(6)]
    extents = stage(
        tmp_path,
        *[("clicks", n % 2, part) for n, part in enumerate(parts * 2)],
        shared_bytes_max=100,
    )
    own = [e for e in extents if not e.file.endswith("shared")]
    # Two batches of a partition pass 100 bytes; the other four of each are one extent.
    assert [(e.partition, e.position, e.size_in_bytes) for e in own] == [(0, 0, 240), (1, 0, 240)]
    for partition in (0, 1):
        assert bytes_of(tmp_path, extents, "clicks", partition) == b"".join(parts[partition::2] * 2)


def test_without_a_minimum_every_partition_has_a_file_of_its_own(tmp_path: Path) -> None:
    extents = stage(
        tmp_path, ("clicks", 0, b"a"), ("clicks", 1, b"b"), ("clicks", 0, b"c"), shared_bytes_max=0
    )
    assert [(e.partition, e.position, e.size_in_bytes) for e in extents] == [(0, 0, 2), (1, 0, 1)]


def test_a_file_of_its_own_is_no_larger_than_a_segment(tmp_path: Path) -> None:
    parts = [bytes([65 + n]) * 40 for n in range(7)]
    extents = stage(
        tmp_path, *[("clicks", 2, part) for part in parts], shared_bytes_max=0, segment_bytes=100
    )
    assert [e.size_in_bytes for e in extents] == [80, 80, 80, 40]
    assert len({e.file for e in extents}) == 4
    assert bytes_of(tmp_path, extents, "clicks", 2) == b"".join(parts)


def test_a_topic_with_the_longest_name_has_files_of_its_own_too(tmp_path: Path) -> None:
    topic = Topic("t" * 249, "id", 100_000, TopicConfig(segment_bytes=10))
    staging = Staging(Files(), tmp_path, "job", shared_bytes_max=0, flush=True)
    for _ in range(12):
        staging.send(topic, 99_999, b"x" * 10, 1)
    assert len(staging.finish()) == 12


def test_attempts_of_one_task_write_separate_files(tmp_path: Path) -> None:
    first, second = (stage(tmp_path, ("clicks", 0, b"x" * 10)) for _ in range(2))
    assert first[0].file != second[0].file
    assert {Path(e[0].file).parts[0] for e in (first, second)} == {"job"}


def test_a_task_without_rows_leaves_nothing(tmp_path: Path) -> None:
    staging = Staging(Files(), tmp_path, "job", shared_bytes_max=100, flush=True)
    assert staging.finish() == []
    staging.abandon()
    assert list(tmp_path.iterdir()) == []


def test_an_abandoned_attempt_leaves_nothing(tmp_path: Path) -> None:
    kept = stage(tmp_path, ("clicks", 0, b"x" * 10))
    staging = Staging(Files(), tmp_path, "job", shared_bytes_max=0, flush=True)
    staging.send(TOPICS["clicks"], 0, b"y" * 10, 1)
    staging.abandon()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / kept[0].file]


@pytest.mark.parametrize("at", range(9))
def test_a_task_that_fails_at_any_step_can_be_abandoned(tmp_path: Path, at: int) -> None:
    files = FaultyFiles(Fault(at, errno.ENOSPC, torn=True))
    staging = Staging(files, tmp_path, "job", shared_bytes_max=15, flush=True)

    def work() -> None:
        for partition in (0, 1, 0, 1):
            staging.send(TOPICS["clicks"], partition, b"x" * 10, 1)
        staging.send(TOPICS["clicks"], 0, b"x" * 10, 1)
        staging.finish()

    with pytest.raises(OSError, match="No space left"):
        work()
    staging.abandon()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not open_files(tmp_path)


@pytest.mark.parametrize("flush", [True, False], ids=["flushed", "not flushed"])
def test_only_a_few_of_many_staged_files_are_open(tmp_path: Path, flush: bool) -> None:
    topic = Topic("clicks", "id", 30, TopicConfig(segment_bytes=100))
    most = OpenFiles(4)
    disks = [
        Staging(Files(), tmp_path / name, "job", shared_bytes_max=0, flush=flush, open_files=most)
        for name in ("staging-0", "staging-1")
    ]
    for number in range(5):
        for partition in range(30):
            for disk in disks:
                disk.send(topic, partition, bytes([number, partition]) * 15, 1)
                assert len(open_files(tmp_path)) <= 4
    for name, disk in zip(("staging-0", "staging-1"), disks, strict=True):
        extents = disk.finish()
        for partition in range(30):
            wanted = b"".join(bytes([number, partition]) * 15 for number in range(5))
            assert bytes_of(tmp_path / name, extents, "clicks", partition) == wanted
    assert open_files(tmp_path) == []


def test_each_file_is_flushed_even_if_it_was_closed_before(tmp_path: Path) -> None:
    flushed = set()

    class Noting(Files):
        def flush_descriptor(self, descriptor: int) -> None:
            flushed.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)
            super().flush_descriptor(descriptor)

    topic = Topic("clicks", "id", 9, TopicConfig())
    most = OpenFiles(2)
    disk = Staging(Noting(), tmp_path, "job", shared_bytes_max=0, flush=True, open_files=most)
    for partition in range(9):
        disk.send(topic, partition, b"x" * 10, 1)
    disk.finish()
    assert {f"id-{partition}.0" for partition in range(9)} <= flushed


@pytest.mark.parametrize("then", ["written to", "finished"])
def test_the_error_for_a_file_that_is_gone_when_reopened_names_the_option(
    tmp_path: Path, then: str
) -> None:
    topic = Topic("clicks", "id", 2, TopicConfig())
    disk = Staging(
        Files(), tmp_path, "job", shared_bytes_max=0, flush=True, open_files=OpenFiles(1)
    )
    for partition in (0, 1):
        disk.send(topic, partition, b"x", 1)
    shutil.rmtree(tmp_path / "job")
    use = disk.finish if then == "finished" else lambda: disk.send(topic, 0, b"x", 1)
    with pytest.raises(KafkaStorageError, match=r"staging\.retention\.ms"):
        use()
    disk.abandon()
    assert open_files(tmp_path) == []


def test_a_job_that_ends_during_the_check_is_not_called_abandoned(tmp_path: Path) -> None:
    """Its folder is removed after the listing and before the look at its times."""

    class Ends(Files):
        def modified_ms(self, path: Path) -> int:
            self.remove_dir(path)
            return super().modified_ms(path)

    (tmp_path / "0123456789abcdef0123456789abcdef").mkdir()
    now_ms = 20_779 * 24 * 3600 * 1000
    assert abandoned_jobs(Ends(), tmp_path, retention_ms=1, now_ms=now_ms) == ([], [])
    assert not [*tmp_path.iterdir()]


def test_a_commit_looks_at_some_of_many_jobs_and_each_time_at_others(tmp_path: Path) -> None:
    class Counting(Files):
        looks = 0

        def modified_ms(self, path: Path) -> int:
            self.looks += path.parent == tmp_path
            return super().modified_ms(path)

    files, now_ms = Counting(), 20_779 * 24 * 3600 * 1000
    for number in range(300):
        folder = tmp_path / f"{number:032x}"
        folder.mkdir()
        time_s = now_ms / 1000 - 100 * (number % 2)
        os.utime(folder, (time_s, time_s))
    for done in range(1, 101):
        remove_abandoned_jobs(files, tmp_path, retention_ms=50_000, now_ms=now_ms, most=50)
        assert files.looks <= done * 50
    assert {path.name for path in tmp_path.iterdir()} == {f"{n:032x}" for n in range(0, 300, 2)}
