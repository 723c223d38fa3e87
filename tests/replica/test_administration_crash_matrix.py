"""A process that deletes, grows or alters a topic dies, or loses power, at every step: all or nothing is done.

Two topics share a cluster of one log dir, or of two with copies of its files beside each. A commit to both
may be decided and unfinished when the change starts. The disk may be full: then a topic is deleted or altered
all the same, after a crash too. The steps are those of a run without a fault; each is
a case. The next process finds the topic as before or as after, and finishes what was started.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pytest

from spark_kbatch import Cluster
from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.errors import KBatchError, UnknownTopicOrPartitionError
from spark_kbatch.files import Files
from spark_kbatch.log.checkpoints import read_partition_metadata
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.replica import administration
from tests.support import builders
from tests.support.crashes import EVERY_STEP, Crash, Recording
from tests.support.disk import Disk, DiskFiles
from tests.support.faults import Fault, ReadOnlyFiles, SimulatedProcess
from tests.support.reference import Record
from tests.support.soundness import ensure_sound
from tests.support.store import store_of

PATH = "/simulated/cluster"
DAY_MS = 86_400_000
BATCHES = {
    ("topic", 0): [builders.batch(n=2, seed=1)],
    ("topic", 1): [builders.batch(n=3, seed=2)],
    ("other", 0): [builders.batch(n=1, seed=3)],
}
JOB = {place: [builders.batch(n=2, seed=7)] for place in BATCHES}
MORE = builders.batch(n=1, seed=9)

T = TypeVar("T")
Change = Callable[[Cluster], object]
Look = dict[TopicPartition, list[Record]]


def delete(cluster: Cluster) -> None:
    cluster.delete_topic("topic")


def grow(cluster: Cluster) -> None:
    cluster.create_partitions("topic", 4)


def alter(cluster: Cluster) -> None:
    cluster.alter_topic("topic", {"max.message.bytes": 5000, "min.insync.replicas": 2})


class _ReadOnlyDisk(ReadOnlyFiles, DiskFiles):
    """A read-only mount."""


class Start:
    """The state before a change, and what the change does to the disk."""

    def __init__(
        self, change: Change, *, disks: int, delay_ms: int, pending: bool, full: bool = False
    ) -> None:
        self.change, self.disks, self.disk = change, disks, Disk()
        files = DiskFiles(self.disk)
        log_dirs = [f"/simulated/disk-{n}" for n in range(disks)] if disks > 1 else []
        cluster = Cluster(PATH, create=True, log_dirs=log_dirs, files=files)
        config = TopicConfig(file_delete_delay_ms=delay_ms)
        for name, partitions in (("topic", 2), ("other", 1)):
            cluster.create_topic(
                name, partitions=partitions, replication_factor=disks, config=config
            )
        builders.write(cluster, BATCHES)
        self.batches = BATCHES
        if pending:
            extents = builders.staged(cluster, JOB)
            commit = Recording(
                self.disk, lambda files: builders.commit(Cluster(PATH, files=files), extents)
            )
            flipped = commit.first("write", "topic-0/kbatch.state")
            self.disk = next(crash.disk for crash in commit.kills(stride=1) if crash.at > flipped)
            self.batches = {place: [*BATCHES[place], *JOB[place]] for place in BATCHES}
        if full:
            self.disk.blocks_max = 0
            self.disk.blocks_max = -self.disk.blocks_left()
        self.disk.settled()
        self.before, self.topic = self.look(DiskFiles(self.disk)), self.described(self.disk)
        assert self.before == {
            TopicPartition(*place): builders.records_of(found)
            for place, found in self.batches.items()
        }
        self.recording = Recording(self.disk, self.run)
        self.after = self.look(DiskFiles(self.recording.after))
        self.topic_after = self.described(self.recording.after)
        assert self.topic != self.topic_after

    def some(self, cases: Iterable[T]) -> Iterator[T]:
        """Return all crashes, or with two disks every third; `make soak` looks at all."""
        return itertools.islice(cases, 0, None, 1 if self.disks == 1 else 3)

    def run(self, files: Files) -> None:
        self.change(Cluster(PATH, files=files))

    def look(self, files: Files) -> Look:
        return builders.contents(Cluster(PATH, files=files))

    def described(self, disk: Disk) -> tuple[object, ...]:
        topic = store_of(Cluster(PATH, files=DiskFiles(disk))).metadata.topics.find("topic")
        return (topic,) if topic is None else (topic.topic_id, topic.partitions, topic.config)

    def ensure_survived(self, crash: Crash, *, by: int = 1) -> None:
        """Let some of the possible finders look at a crash, each on its own copy of the disk; others next time."""
        with crash.met():
            reader = _ReadOnlyDisk(crash.disk.copy())
            found, topic = self.look(reader), self.described(crash.disk)
            assert (found, topic) in (
                (self.before, self.topic),
                (self.after, self.topic_after),
            ), crash
            if crash.disk.blocks_max is not None:
                self.again(crash.files(), is_there=topic[0] is not None)
                crash.disk.blocks_max = None  # Room is made.
            everyone = [self.created, self.collected, self.again, self.written_to]
            first = crash.at * by % len(everyone)
            for comes in (everyone + everyone)[first : first + by]:
                files = crash.files()
                message = f"{crash}; then {comes.__name__}"
                try:
                    comes(files, is_there=topic[0] is not None)
                except (OSError, KBatchError, AssertionError) as error:
                    raise AssertionError(f"{message}: {error!r}") from error
                assert not files.open_files(), message

    # Who finds the crash.

    def again(self, files: DiskFiles, *, is_there: bool) -> None:
        """Repeat the change, which was not answered."""
        cluster = Cluster(PATH, files=files)
        error: KBatchError | None = None
        try:
            self.change(cluster)
        except KBatchError as raised:
            error = raised
        if isinstance(error, UnknownTopicOrPartitionError):
            assert not is_there
        else:
            assert error is None or "not be an increase" in str(error), error
        assert self.look(files) == self.after
        assert self.described(files.disk) == self.topic_after
        files.disk.blocks_max = None
        self.ensure_others_work(files)

    def created(self, files: DiskFiles, *, is_there: bool) -> None:
        """Create a topic of this name, which may exist."""
        cluster = Cluster(PATH, files=files)
        topic = administration.create_topic(
            store_of(cluster).manager, "topic", partitions=3, config=TopicConfig()
        )
        assert (topic.topic_id == self.topic[0]) == is_there
        self.append(cluster, ("topic", 1))
        records = self.look(files)[TopicPartition("topic", 1)]
        old = builders.records_of(self.batches["topic", 1])
        assert len(records) == 1 + (len(old) if is_there else 0)
        self.ensure_no_other_names(cluster)
        self.ensure_others_work(files)
        self.ensure_collected(cluster)
        self.append(cluster, ("topic", 1))

    def written_to(self, files: DiskFiles, *, is_there: bool) -> None:
        """Append and commit without knowing of the change."""
        cluster = Cluster(PATH, files=files)
        if is_there:
            self.append(cluster, ("topic", 0))
            builders.write(cluster, {("topic", 1): [MORE]})
        else:
            with pytest.raises(UnknownTopicOrPartitionError):
                builders.staged(cluster, {("topic", 0): [MORE]})
            (result,) = builders.append_records(cluster, {("topic", 0): MORE}).values()
            assert isinstance(result.error, UnknownTopicOrPartitionError)
        self.ensure_others_work(files)

    def collected(self, files: DiskFiles, *, is_there: bool) -> None:
        """Collect garbage, a day later."""
        cluster = Cluster(PATH, files=files)
        self.ensure_collected(cluster)
        if not is_there:
            names = "\n".join(files.disk.contents())
            assert "topic-" not in names
            assert "topic.json" not in names
            assert "partitions/topic" not in names
        self.ensure_others_work(files)

    # What they find.

    def ensure_collected(self, cluster: Cluster) -> None:
        now_ms = store_of(cluster).manager.now_ms
        store_of(cluster).manager.now_ms = lambda: now_ms() + DAY_MS
        cluster.collect_garbage()
        names = "\n".join(store_of(cluster).files.disk.contents())  # type: ignore[attr-defined]
        assert "-delete" not in names
        assert "deleted/" not in names

    def ensure_no_other_names(self, cluster: Cluster) -> None:
        """Check that each directory that has a topic's name has its id."""
        for log_dir in store_of(cluster).metadata.cluster_file.log_dirs():
            for name in store_of(cluster).files.list(log_dir.path):
                topic = store_of(cluster).metadata.topics.find(name.rpartition("-")[0] or "none")
                if topic is not None and int(name.rpartition("-")[2]) < topic.partitions:
                    found = read_partition_metadata(store_of(cluster).files, log_dir.path / name)
                    assert found == topic.topic_id, name

    def ensure_others_work(self, files: DiskFiles) -> None:
        cluster = Cluster(PATH, files=files)
        before = self.look(files)[TopicPartition("other", 0)]
        assert before == builders.records_of(self.batches["other", 0])
        self.append(cluster, ("other", 0))
        builders.write(cluster, {("other", 0): [MORE]})
        expected = builders.records_of([*self.batches["other", 0], MORE, MORE])
        assert self.look(files)[TopicPartition("other", 0)] == expected
        for topic_partition in [TopicPartition("other", 0), TRANSACTION_STATE]:
            ensure_sound(store_of(cluster).manager.log(topic_partition))

    def append(self, cluster: Cluster, place: tuple[str, int]) -> None:
        (result,) = builders.append_records(cluster, {place: MORE}, flush=True).values()
        assert result.error is None


STARTS: dict[str, tuple[Change, int, int, bool] | tuple[Change, int, int, bool, bool]] = {
    "deleted": (delete, 1, 60_000, False),
    "deleted at once": (delete, 1, 0, False),
    "deleted with a commit to finish": (delete, 1, 60_000, True),
    "deleted on two disks": (delete, 2, 0, False),
    "deleted on a full disk": (delete, 1, 60_000, False, True),
    "deleted on a full disk with a commit to finish": (delete, 1, 60_000, True, True),
    "grown": (grow, 1, 60_000, False),
    "grown on two disks with a commit to finish": (grow, 2, 60_000, True),
    "altered": (alter, 1, 60_000, False),
    "altered on a full disk": (alter, 1, 60_000, False, True),
    "altered on two disks": (alter, 2, 60_000, False),
}


@pytest.fixture(scope="module", params=STARTS)
def start(request: pytest.FixtureRequest) -> Start:
    change, disks, delay_ms, pending, *full = STARTS[request.param]
    return Start(change, disks=disks, delay_ms=delay_ms, pending=pending, full=bool(full))


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silence the warnings that each case logs."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.more_in_soak
@pytest.mark.parametrize("torn", [False, True], ids=["between steps", "within a step"])
def test_a_change_killed_at_any_step_is_done_or_not(start: Start, torn: bool) -> None:
    for crash in start.some(start.recording.torn_kills() if torn else start.recording.kills()):
        start.ensure_survived(crash)


@pytest.mark.more_in_soak
def test_a_change_whose_power_is_lost_at_any_step_is_done_or_not(start: Start) -> None:
    for crash in start.some(start.recording.power_losses()):
        start.ensure_survived(crash)


@pytest.mark.slow
@pytest.mark.parametrize("seed", EVERY_STEP)
def test_a_change_that_crashes_in_another_way_is_met_by_everyone(start: Start, seed: int) -> None:
    recording = start.recording
    for crash in [
        *recording.power_losses(seed),
        *recording.torn_kills(seed),
        *recording.kills(seed),
    ]:
        start.ensure_survived(crash, by=4)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            Fault(at=0, error=errno.ENOSPC, torn=True, lasting=True),
            id="full disk",
            marks=pytest.mark.slow,
        ),
        pytest.param(Fault(at=0, error=errno.EIO, torn=True), id="one bad write"),
        pytest.param(
            Fault(at=0, error=errno.EROFS, lasting=True),
            id="remounted read-only",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_change_that_the_disk_fails_at_any_step_is_done_or_not(
    start: Start, fault: Fault
) -> None:
    for at, step in start.some(enumerate(start.recording.steps[:-1])):
        files = SimulatedProcess(
            start.disk.copy(), Fault(at, fault.error, fault.torn, fault.lasting)
        )
        with contextlib.suppress(OSError, KBatchError):
            start.run(files)
        assert not files.open_files(), step
        start.ensure_survived(Crash(f"{fault} at step {at}: {step}", at, files.disk))


@pytest.mark.more_in_soak
def test_who_comes_after_a_crash_may_die_as_well(start: Start) -> None:
    for first in itertools.islice(start.recording.kills(), 0, None, 4):
        second = Recording(first.disk, lambda files: Cluster(PATH, files=files).collect_garbage())
        for crash in start.some(second.kills()):
            start.ensure_survived(Crash(f"{first}; then {crash}", crash.at, crash.disk))
