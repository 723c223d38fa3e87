"""A job that does everything a commit can do, and every process that may run after its crash.

The job has two tasks and writes two topics of two partitions, in every possible way: copied from the file
that partitions share, copied and rolled in the middle, renamed, and copied from a separate file. It is a
stream's job, so that it may be retried. A producer has written to each partition before.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from spark_kbatch import Cluster
from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.commit.staging import Extent
from spark_kbatch.errors import KBatchError
from spark_kbatch.files import Files, LockFile
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders
from tests.support.crashes import Crash, killed
from tests.support.disk import Disk, DiskFiles
from tests.support.faults import ReadOnlyFiles, SimulatedProcess
from tests.support.reference import Record
from tests.support.soundness import ensure_sound
from tests.support.store import store_of

PATH = "/simulated/cluster"
ADOPT_MIN_BYTES = 1 << 10
SEGMENT_BYTES = 16 << 10
QUERY_ID = "the-query"

Batches = Mapping[tuple[str, int], list[bytes]]
Contents = dict[TopicPartition, list[Record]]


class Scenario:
    """The topics' records before the job, the job, and everything that may happen after it."""

    def __init__(self, *, flush: bool = True) -> None:
        self.flush = flush
        seeds = itertools.count()

        def batch(size: int = 20) -> bytes:
            return builders.batch(n=2, value_bytes=size // 2, seed=next(seeds))

        places = [("copied", 0), ("copied", 1), ("rolled", 0), ("rolled", 1)]
        self.partitions = [TopicPartition(*place) for place in places]
        self.produced: Batches = {
            place: [builders.idempotent_batch(base_sequence=0)] for place in places
        }
        self.before: Batches = {
            ("copied", 0): [batch()],
            ("copied", 1): [batch()],
            ("rolled", 0): [batch(7900), batch(7900)],
            ("rolled", 1): [batch()],
        }
        self.tasks: list[Batches] = [
            {
                ("copied", 0): [batch(), batch()],
                # The first is in the shared file; the other two are in a separate file, which is renamed.
                ("copied", 1): [batch(1100), batch(640), batch(640)],
                # The second starts a segment.
                ("rolled", 0): [batch(20), batch(200)],
                # The second is in a separate file that is too small to be renamed.
                ("rolled", 1): [batch(1100), batch(160)],
            },
            {("rolled", 1): [batch()], ("copied", 1): [batch()]},
        ]
        self.next_job: Batches = {place: [batch()] for place in places}
        self.appended: Batches = {place: [batch()] for place in places}
        self.old = self.records(self.produced, self.before)
        self.new = self.records(self.produced, self.before, *self.tasks)
        self._before_the_producer = Disk()
        self.disk = self._make_disk()

    def records(self, *jobs: Batches) -> Contents:
        """Return what the topics hold after these jobs."""
        return {
            tp: builders.records_of([data for job in jobs for data in job.get(tp, [])])
            for tp in self.partitions
        }

    def _make_disk(self) -> Disk:
        """Return the disk as it is before the job, all of it flushed."""
        files = DiskFiles(self._before_the_producer)
        self.create_topics(Cluster(PATH, create=True, files=files))
        files.disk = files.disk.copy()
        self.write_before(Cluster(PATH, files=files))
        return files.disk.settled()

    def create_topics(self, cluster: Cluster) -> None:
        """Create the topics of the scenario."""
        cluster.create_topic("copied", partitions=2)
        config = TopicConfig(segment_bytes=SEGMENT_BYTES)
        cluster.create_topic("rolled", partitions=2, config=config)

    def write_before(self, cluster: Cluster) -> None:
        """Write what the topics hold before the job."""
        _produce(cluster, self.produced)
        builders.commit(cluster, builders.staged(cluster, self.before), flush=True)
        assert builders.contents(cluster) == self.old

    def extents(self, cluster: Cluster) -> list[Extent]:
        """Return what the job's tasks stage."""
        return [
            extent
            for task in self.tasks
            for extent in builders.staged(
                cluster, task, adopt_min_bytes=ADOPT_MIN_BYTES, flush=self.flush
            )
        ]

    def coordinator(self, cluster: Cluster) -> Coordinator:
        """Return the job's coordinator."""
        return Coordinator(
            store_of(cluster).manager,
            lambda: builders.FIRST_TIMESTAMP_MS,
            adopt_min_bytes=ADOPT_MIN_BYTES,
            flush=self.flush,
        )

    def run_job(self, files: Files, path: str = PATH) -> None:
        """Stage, commit and clean up; skipped if the job is committed already."""
        cluster = Cluster(path, files=files)
        extents = self.extents(cluster)
        coordinator = self.coordinator(cluster)
        coordinator.commit(extents, transactional_id=QUERY_ID, sequence=0)
        coordinator.discard(extents, builders.JOB)

    def run_job_that_aborts(self, files: Files) -> None:
        """Stage, and clean up without a commit."""
        cluster = Cluster(PATH, files=files)
        extents = self.extents(cluster)
        self.coordinator(cluster).discard(extents, builders.JOB)

    def roll_forward(self, files: Files) -> None:
        """Roll forward, as a process does that finds the job's commit unfinished."""
        self.coordinator(Cluster(PATH, files=files)).roll_forward()

    # Processes that run after a crash.

    def ensure_survived(self, crash: Crash, *, by: int | None = None) -> Contents:
        """Let every kind of process run after a crash, each on a copy of the disk; return what they all found.

        Args:
            by: run only this many of the writers, others at the next step; 0 for only a read-only reader
                and the next job.
        """
        writers = [
            self.new_producer_appends,
            self.job_is_retried,
            self.roll_forward_dies_and_is_repeated,
            self.committer_waits_for_roll_forward,
            self.committer_overtakes_roll_forward,
            self.garbage_is_collected,
        ]
        if not crash.power_lost:
            writers.append(self.old_producer_goes_on)
        if by is not None:
            first = crash.at * by % len(writers)
            writers = (writers + writers)[first : first + by]
        with crash.met():
            found = contents(_ReadOnlyDisk(crash.disk))
            if by != 0:
                reader = crash.files()
                assert contents(reader) == found
                assert reader.disk.contents() == crash.disk.contents(), "a reader has written"
            for meet in [self.nothing_runs, *writers]:
                self._ensure(meet, crash, found)
        return found

    def _ensure(
        self, meet: Callable[[DiskFiles, Contents], Contents], crash: Crash, found: Contents
    ) -> None:
        """Run one process, and then the next job."""
        files = crash.files()
        message = f"{crash}; then {meet.__name__}"
        try:
            expected = meet(files, found)
            self._commit_next(files)
        except (OSError, KBatchError) as error:
            raise AssertionError(f"{message}: {error!r}") from error
        assert contents(files) == _with(expected, self.next_job), message
        assert not files.open_files(), message
        cluster = Cluster(PATH, files=files)
        for topic_partition in [*self.partitions, TRANSACTION_STATE]:
            ensure_sound(store_of(cluster).manager.log(topic_partition))

    def nothing_runs(self, _files: DiskFiles, found: Contents) -> Contents:
        """Run nothing before the next job."""
        return found

    def job_is_retried(self, files: DiskFiles, _found: Contents) -> Contents:
        """Retry the job, as Spark does if it did not learn that it was committed."""
        self.run_job(files)
        return self.new

    def new_producer_appends(self, files: DiskFiles, found: Contents) -> Contents:
        """Append from a new process."""
        _produce(Cluster(PATH, files=files), self.appended)
        return _with(found, self.appended)

    def old_producer_goes_on(self, files: DiskFiles, found: Contents) -> Contents:
        """Append from the producer that had the logs open before the job."""
        crashed, files.disk = files.disk, self._before_the_producer.copy()
        cluster = Cluster(PATH, files=files)
        _produce(cluster, self.produced)
        files.disk = crashed
        _produce(cluster, self.produced)  # a duplicate, as if the answer to the first was lost
        more = {place: [builders.idempotent_batch(base_sequence=1)] for place in self.produced}
        _produce(cluster, more)
        return _with(found, more)

    def roll_forward_dies_and_is_repeated(self, files: DiskFiles, found: Contents) -> Contents:
        """Let a process die while rolling forward, then append, then roll forward again."""
        killed(self.roll_forward, _DiesBeforeComplete(files.disk))
        _produce(Cluster(PATH, files=files), self.appended)
        self.roll_forward(files)
        return _with(found, self.appended)

    def committer_waits_for_roll_forward(self, files: DiskFiles, found: Contents) -> Contents:
        """Start a commit while another process holds the commit lock to roll forward."""
        errors: list[BaseException] = []

        def commit() -> None:
            try:
                self._commit_next(DiskFiles(files.disk, "/beside"))
            except BaseException as error:  # noqa: BLE001  shown by the test, not by the thread
                errors.append(error)

        committer = threading.Thread(target=commit)
        self.roll_forward(_OnceItHasTheCommitLock(files.disk, committer))
        committer.join()
        assert errors == []
        return _with(found, self.next_job)

    def committer_overtakes_roll_forward(self, files: DiskFiles, found: Contents) -> Contents:
        """Commit just before a producer takes the commit lock to roll forward."""
        process = _BeforeItHasTheCommitLock(
            files.disk, lambda: self._commit_next(DiskFiles(files.disk, "/beside"))
        )
        cluster = Cluster(PATH, files=process)
        # Start with the partition that is flipped last: the producer finds the commit at once or never.
        for place in sorted(self.appended, reverse=True):
            _produce(cluster, {place: self.appended[place]})
        return _with(found, *([self.next_job] if process.came else []), self.appended)

    def garbage_is_collected(self, files: DiskFiles, found: Contents) -> Contents:
        """Collect garbage when the job counts as abandoned."""
        cluster = Cluster(PATH, files=files)
        cluster.collect_garbage(staging_retention_ms=0)
        assert files.list(store_of(cluster).metadata.cluster_file.log_dir(0).staging) == []
        return found

    def _commit_next(self, files: DiskFiles) -> None:
        cluster = Cluster(str(files.mount / "cluster"), files=files)
        extents = builders.staged(cluster, self.next_job, transaction="next")
        builders.commit(cluster, extents, transaction="next")


class _ReadOnlyDisk(ReadOnlyFiles, DiskFiles):
    """A mount on which nothing can be written."""


class _DiesBeforeComplete(SimulatedProcess):
    """A process that is killed when only completing the commit is left to do."""

    def write_at(self, descriptor: int, position: int, data: bytes) -> None:
        if str(self.path_of(descriptor)).endswith("__transaction_state-0/kbatch.state"):
            self.die()
        super().write_at(descriptor, position, data)


class _OnceItHasTheCommitLock(DiskFiles):
    """A process that starts a thread while it holds the commit lock, so that the thread must wait."""

    def __init__(self, disk: Disk, somebody: threading.Thread) -> None:
        super().__init__(disk)
        self._somebody = somebody

    def flock(self, path: Path, *, wait: bool = True) -> LockFile | None:
        lock = super().flock(path, wait=wait)
        if path.name == "commit" and lock is not None:
            self._somebody.start()
            with self.disk.changed:
                assert self.disk.changed.wait_for(lambda: self.disk.waiting, timeout=60)
        return lock


class _BeforeItHasTheCommitLock(DiskFiles):
    """A process that lets another one take the commit lock first."""

    def __init__(self, disk: Disk, first: Callable[[], object]) -> None:
        super().__init__(disk)
        self._first, self.came = first, False

    def flock(self, path: Path, *, wait: bool = True) -> LockFile | None:
        if path.name == "commit" and not self.came:
            self.came = True
            self._first()
        return super().flock(path, wait=wait)


def contents(files: Files) -> Contents:
    """Return all records, as a reader finds them."""
    return builders.contents(Cluster(PATH, files=files))


def _produce(cluster: Cluster, batches: Batches) -> None:
    for number in range(max(map(len, batches.values()))):
        entries = {place: parts[number] for place, parts in batches.items() if number < len(parts)}
        results = builders.append_records(cluster, entries, flush=True)
        assert [result.error for result in results.values()] == [None] * len(entries)


def _with(found: Contents, *jobs: Batches) -> Contents:
    """Return what the topics hold once these jobs have been written too."""
    after = {}
    for topic_partition, records in found.items():
        new = builders.records_of([data for job in jobs for data in job.get(topic_partition, [])])
        first = len(records)
        after[topic_partition] = [
            *records,
            *(record._replace(offset=first + n) for n, record in enumerate(new)),
        ]
    return after
