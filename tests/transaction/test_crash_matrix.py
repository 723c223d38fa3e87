"""A job that is killed, or that the disk fails, at every step: all of its data is there, or none.

The job has two tasks and writes two topics of two partitions, in every way there is: copied from
the file that partitions share, copied and rolled in the middle, renamed, copied from a file of its
own. The steps are those of a run without a fault; each is a case.
"""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from spark_kbatch.cluster import Cluster
from spark_kbatch.config import TopicConfig, parse_write_options
from spark_kbatch.errors import CommitError
from spark_kbatch.log.files import Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.transaction import coordinator
from spark_kbatch.transaction.snapshot import TRANSACTION_STATE
from tests import builders
from tests.faults import CAN_BE_TORN, Fault, FaultyFiles, died, open_files
from tests.log.soundness import ensure_sound
from tests.reference import Record

KiB, MiB = 1 << 10, 1 << 20
ADOPT_MIN_BYTES = 64 * KiB

Batches = Mapping[tuple[str, int], list[bytes]]
Contents = dict[TopicPartition, list[Record]]
Copies = Callable[[Path], Iterator[Path]]


class Scenario:
    """What lies in the topics before the job, the job, a job after it, and what there is then."""

    def __init__(self) -> None:
        seeds = itertools.count()

        def batch(size: int = 200) -> bytes:
            return builders.batch(n=2, value_bytes=size // 2, seed=next(seeds))

        self.before: Batches = {
            ("copied", 0): [batch()],
            ("copied", 1): [batch()],
            ("rolled", 0): [batch(500 * KiB), batch(500 * KiB)],
            ("rolled", 1): [batch()],
        }
        self.tasks: list[Batches] = [
            {
                ("copied", 0): [batch(), batch()],
                # The first is shared; two make a file of its own, which is renamed.
                ("copied", 1): [batch(70 * KiB), batch(40 * KiB), batch(40 * KiB)],
                # The second begins a segment.
                ("rolled", 0): [batch(20 * KiB), batch(20 * KiB)],
                # The second is a file of its own that is too small to be renamed.
                ("rolled", 1): [batch(70 * KiB), batch(10 * KiB)],
            },
            {("rolled", 1): [batch()], ("copied", 1): [batch()]},
        ]
        self.next_job: Batches = {place: [batch()] for place in self.before}
        self.old = _records(self.before)
        self.new = _records(self.before, *self.tasks)
        self.old_and_next = _records(self.before, self.next_job)
        self.new_and_next = _records(self.before, *self.tasks, self.next_job)

    def run_job(self, path: Path, files: Files) -> None:
        cluster = Cluster(str(path), files=files)
        extents = [
            extent
            for task in self.tasks
            for extent in builders.staged(
                cluster, task, adopt_min_bytes=ADOPT_MIN_BYTES, flush=True
            )
        ]
        builders.commit(cluster, extents, adopt_min_bytes=ADOPT_MIN_BYTES, flush=True)

    def ensure_next_job_works(self, path: Path, *, on_new: bool) -> None:
        cluster = Cluster(str(path), files=FaultyFiles())  # which does not wait for the disk
        extents = builders.staged(cluster, self.next_job, transaction="next")
        builders.commit(cluster, extents, transaction="next", flush=True)
        assert contents(path) == (self.new_and_next if on_new else self.old_and_next)
        for topic_partition in [*self.partitions(), TRANSACTION_STATE]:
            ensure_sound(cluster.manager.log(topic_partition))

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(*place) for place in self.before]


def _records(*jobs: Batches) -> Contents:
    return {
        TopicPartition(*place): builders.records_of(
            [data for job in jobs for data in job.get(place, [])]
        )
        for place in jobs[0]
    }


def roll_forward(path: Path, files: Files) -> None:
    options = parse_write_options({"path": str(path)})
    Cluster(str(path), files=files).coordinator(options).roll_forward()


def contents(path: Path) -> Contents:
    return builders.contents(Cluster(str(path)))


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return Scenario()


@pytest.fixture(scope="module")
def before(scenario: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster as it is before the job."""
    cluster = builders.a_cluster(tmp_path_factory.mktemp("before"), topics={"copied": 2})
    cluster.create_topic("rolled", partitions=2, config=TopicConfig(segment_bytes=MiB))
    builders.write(cluster, scenario.before)
    assert contents(cluster.path) == scenario.old
    return cluster.path


@pytest.fixture(scope="module")
def steps(scenario: Scenario, before: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the job does to the disk, step by step."""
    path = tmp_path_factory.mktemp("steps") / "cluster"
    shutil.copytree(before, path)
    files = FaultyFiles()
    scenario.run_job(path, files)
    assert contents(path) == scenario.new
    return files.steps


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    """Fresh copies of a cluster, one after the other; each is removed when the next is taken."""
    numbers = itertools.count()

    def take(original: Path) -> Iterator[Path]:
        for number in numbers:
            path = tmp_path / str(number)
            shutil.copytree(original, path)
            yield path
            shutil.rmtree(path)

    return take


def commit_point(steps: list[str]) -> int:
    """The first write of the state of __transaction_state."""
    return next(
        number
        for number, step in enumerate(steps)
        if step.startswith("write ") and step.endswith("__transaction_state-0/kbatch.state")
    )


def kills(steps: list[str], *, torn: bool) -> list[Fault]:
    """A kill before each step, or within each that can be done in part."""
    return [
        Fault(at, torn=torn)
        for at, step in enumerate(steps)
        if not torn or step.split()[0] in CAN_BE_TORN
    ]


def test_the_job_does_everything_that_a_commit_can_do(steps: list[str]) -> None:
    names = [step.split()[0] for step in steps]
    assert names.count("rename") == 1
    assert sum(step.startswith("create") and step.endswith(".log") for step in steps) == 2
    assert {"make_dir", "create", "write", "flush", "rename", "remove_dir", "lock"} <= set(names)
    assert 0 < commit_point(steps) < len(steps) - 10


@pytest.mark.parametrize("torn", [False, True], ids=["between steps", "within a step"])
def test_a_job_killed_at_any_step_is_there_as_a_whole_or_not_at_all(
    scenario: Scenario, before: Path, steps: list[str], copies: Copies, torn: bool
) -> None:
    decided_at = commit_point(steps)
    for fault, path in zip(kills(steps, torn=torn), copies(before), strict=False):
        assert died(lambda path=path, fault=fault: scenario.run_job(path, FaultyFiles(fault)))

        decided = fault.at > decided_at
        expected = scenario.new if decided else scenario.old
        assert contents(path) == expected, f"killed at {steps[fault.at]}"
        scenario.ensure_next_job_works(path, on_new=decided)


@pytest.mark.parametrize("torn", [False, True], ids=["between steps", "within a step"])
def test_rolling_forward_may_be_killed_at_any_step_as_well(
    scenario: Scenario, before: Path, steps: list[str], copies: Copies, torn: bool
) -> None:
    crashes = 0
    for crashed in copies(before):
        at = commit_point(steps) + 1 + crashes
        assert died(lambda at=at, path=crashed: scenario.run_job(path, FaultyFiles(Fault(at))))
        if not Cluster(str(crashed)).manager.log(TRANSACTION_STATE).state().has_pending_commit:
            break
        crashes += 1
        dry_run = FaultyFiles()
        roll_forward(next(copies(crashed)), dry_run)
        for fault, path in zip(kills(dry_run.steps, torn=torn), copies(crashed), strict=False):
            assert died(lambda path=path, fault=fault: roll_forward(path, FaultyFiles(fault)))
            message = f"killed at {steps[at]}, then at {dry_run.steps[fault.at]}"
            assert contents(path) == scenario.new, message
            scenario.ensure_next_job_works(path, on_new=True)
    assert crashes >= 2 * len(scenario.partitions())  # a write and a flush of each state


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(at=0, error=errno.ENOSPC, torn=True, lasting=True), id="full disk"),
        pytest.param(Fault(at=0, error=errno.EIO, torn=True), id="one bad write"),
        pytest.param(Fault(at=0, error=errno.EROFS, lasting=True), id="remounted read-only"),
        pytest.param(Fault(at=0, error=errno.EACCES), id="one refusal"),
    ],
)
def test_an_error_of_the_disk_at_any_step_says_truly_what_became_of_the_data(
    scenario: Scenario, before: Path, steps: list[str], copies: Copies, fault: Fault
) -> None:
    outcomes = set()
    for (at, step), path in zip(enumerate(steps), copies(before), strict=False):
        message = f"{fault} at step {at}: {step}"
        files = FaultyFiles(Fault(at, fault.error, fault.torn, fault.lasting))
        try:
            scenario.run_job(path, files)
            outcome = None
        except CommitError as error:
            outcome = error.outcome
        except OSError as error:
            outcome = "the task failed" if "/staging-0/job" in str(error) else str(error)
        outcomes.add(outcome)
        assert not open_files(path), f"{message}: a file is left open"

        found = contents(path)
        if outcome in ("the task failed", coordinator.NOTHING_VISIBLE):
            assert found == scenario.old, message
        elif outcome in (None, coordinator.COMMITTED):
            assert found == scenario.new, message
        else:
            assert outcome == coordinator.UNKNOWN, message
            assert found in (scenario.old, scenario.new), message
            assert at in (commit_point(steps), commit_point(steps) + 1), message
        scenario.ensure_next_job_works(path, on_new=found == scenario.new)
    assert len(outcomes) == 5
