"""A job that hits a kill, a power loss or a disk error at any step is visible as a whole or not at all.

Each step of a run without faults is a case. The table in the docstring of `spark_kbatch.commit` says what
follows from a crash in which step; the tests read it. `tests.support.jobs` says which processes run next.
"""

from __future__ import annotations

import errno
import functools
import itertools
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import spark_kbatch.commit
from spark_kbatch import Cluster
from spark_kbatch.commit import coordinator
from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.errors import CommitError
from spark_kbatch.files import Files
from tests.support import builders
from tests.support.crashes import EVERY_STEP, Crash, Recording, sample
from tests.support.faults import DISK_FAULTS, Fault, FaultyFiles, SimulatedProcess, died
from tests.support.jobs import PATH, Contents, Scenario
from tests.support.store import store_of

SLOT = "__transaction_state-0/kbatch.state"


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return Scenario()


@pytest.fixture(scope="module")
def unflushed() -> Scenario:
    return Scenario(flush=False)


@pytest.fixture(scope="module")
def job(scenario: Scenario) -> Recording:
    return Recording(scenario.disk, scenario.run_job)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silence the warnings: each case logs some, thousands in all."""
    caplog.set_level(logging.ERROR)


# What follows from a crash, and the step of the protocol in which it happened.


@functools.cache
def table() -> dict[str, str]:
    """Return what the package's table says of a crash in each step."""
    lines = iter((spark_kbatch.commit.__doc__ or "").splitlines())
    heading = next(line for line in lines if "crash in  " in line)
    first, second, third = (heading.index(w) for w in ("crash in", "visible", "what is left"))
    rows = [
        (line[first:second].strip(), line[second:third].strip()) for line in _until_blank(lines)
    ]
    return {step: what for step, what in rows if step}


def _until_blank(lines: Iterator[str]) -> Iterable[str]:
    return itertools.takewhile(str.strip, lines)


def step_of(crash: Crash, recording: Recording) -> str:
    """Return the step of the commit protocol that the crash left unfinished."""
    decided = recording.first("write", SLOT)
    completed = recording.first("write", SLOT, after=decided)
    is_flushed = recording.steps[decided + 1].startswith("flush")
    ends = {
        "stage": recording.first("lock", "locks/commit"),
        "place": recording.first("__transaction_state-0"),
        "prepare": decided + 1,
        "commit point": decided + 1 + is_flushed,
        "flip": completed + 1,
        "complete": completed + 1 + is_flushed,
        "cleanup": len(recording.steps),
    }
    return next(step for step, end in ends.items() if crash.at < end)


def ensure_as_the_table_says(found: Contents, step: str, crash: Crash, scenario: Scenario) -> None:
    allowed = {
        "nothing": [scenario.old],
        "all": [scenario.new],
        # A kill loses nothing that was written.
        "nothing or all": [scenario.old, scenario.new][not crash.power_lost :],
    }[table()[step]]
    assert found in allowed, f"{crash}, in step {step}: {found}"


# The job.


def test_the_job_does_everything_that_a_commit_can_do(job: Recording) -> None:
    names = [step.split()[0] for step in job.steps]
    # The staged file, the stream's saved sequence, and the mark that all saved sequences are there.
    assert names.count("rename") == 3
    made = [step for step in job.steps if step.startswith("create") and step.endswith(".log")]
    assert len(made) == 2
    assert {"make_dir", "create", "write", "flush", "rename", "remove_dir", "lock"} <= set(names)


def test_every_step_of_the_table_has_its_cases(job: Recording) -> None:
    steps = {step_of(crash, job) for crash in job.power_losses(stride=1)}
    assert steps | {"abort", "roll forward", "gc", "rewrite"} == set(table())


@pytest.mark.more_in_soak
@pytest.mark.parametrize("torn", [False, True], ids=["between steps", "within a step"])
def test_a_job_killed_at_any_step_is_visible_as_a_whole_or_not_at_all(
    scenario: Scenario, job: Recording, torn: bool
) -> None:
    for crash in job.torn_kills() if torn else job.kills():
        found = scenario.ensure_survived(crash, by=1 if torn else 3)
        ensure_as_the_table_says(found, step_of(crash, job), crash, scenario)


@pytest.mark.more_in_soak
def test_a_job_that_loses_power_at_any_step_is_visible_as_a_whole_or_not_at_all(
    scenario: Scenario, job: Recording
) -> None:
    for crash in job.power_losses():
        found = scenario.ensure_survived(crash, by=1)
        ensure_as_the_table_says(found, step_of(crash, job), crash, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("seed", EVERY_STEP)
def test_a_job_that_crashes_in_random_ways_is_visible_as_a_whole_or_not_at_all(
    scenario: Scenario, job: Recording, seed: int
) -> None:
    for crash in itertools.chain(job.power_losses(seed), job.torn_kills(seed), job.kills(seed)):
        found = scenario.ensure_survived(crash)
        ensure_as_the_table_says(found, step_of(crash, job), crash, scenario)


@pytest.mark.more_in_soak
def test_a_job_that_aborts_is_never_visible(scenario: Scenario) -> None:
    aborted = Recording(scenario.disk, scenario.run_job_that_aborts)
    lock = aborted.first(
        "flush", f"staging-0/{builders.JOB}", after=aborted.first("remove_dir") - 2
    )
    for crash in itertools.chain(aborted.kills(), aborted.torn_kills(), aborted.power_losses()):
        if crash.at >= lock:
            found = scenario.ensure_survived(crash, by=0)
            ensure_as_the_table_says(found, "abort", crash, scenario)


# Jobs that leave flushing to the operating system.


@pytest.mark.more_in_soak
def test_a_killed_job_that_was_not_flushed_is_visible_as_a_whole_or_not_at_all(
    unflushed: Scenario,
) -> None:
    job = Recording(unflushed.disk, unflushed.run_job)
    for crash in itertools.chain(job.kills(), job.torn_kills()):
        found = unflushed.ensure_survived(crash, by=0)
        ensure_as_the_table_says(found, step_of(crash, job), crash, unflushed)


def ensure_whole_batches(found: Contents, crash: Crash, scenario: Scenario) -> None:
    """Ensure that everything flushed before the job is there, then a part of the job from its start."""
    for topic_partition, records in found.items():
        jobs = [scenario.produced, scenario.before, *scenario.tasks]
        batches = [data for one in jobs for data in one.get(topic_partition, [])]
        kept = len(scenario.produced[topic_partition]) + len(scenario.before[topic_partition])
        allowed = [builders.records_of(batches[:n]) for n in range(kept, len(batches) + 1)]
        assert records in allowed, f"{crash}: {topic_partition} has {records}"


@pytest.mark.more_in_soak
def test_an_unflushed_job_that_loses_power_loses_only_whole_batches(unflushed: Scenario) -> None:
    job = Recording(unflushed.disk, unflushed.run_job)
    for crash in job.power_losses():
        found = unflushed.ensure_survived(crash, by=0)
        ensure_whole_batches(found, crash, unflushed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", EVERY_STEP)
def test_an_unflushed_job_that_loses_power_in_random_ways_loses_only_whole_batches(
    unflushed: Scenario, seed: int
) -> None:
    job = Recording(unflushed.disk, unflushed.run_job)
    for crash in job.power_losses(seed):
        found = unflushed.ensure_survived(crash, by=0)
        ensure_whole_batches(found, crash, unflushed)


# Rolling forward.


def ensure_rolling_forward_may_crash(
    scenario: Scenario, job: Recording, first: Crash, *, power_losses: bool, by: int, seed: int = 0
) -> None:
    """Crash a roll forward at each step; the processes that run next must find all of the job."""
    rolled = Recording(first.disk, scenario.roll_forward)
    flushed = rolled.first("flush", SLOT)
    kills = itertools.chain(rolled.kills(seed), rolled.torn_kills(seed))
    for second in rolled.power_losses(seed) if power_losses else kills:
        crash = Crash(f"{first}; then {second}", second.at, second.disk, second.power_lost)
        found = scenario.ensure_survived(crash, by=by)
        step = "roll forward"
        if second.at <= flushed and step_of(first, job) == "commit point":
            step = "commit point"  # still
        ensure_as_the_table_says(found, step, crash, scenario)


def undone(crashes: Iterable[Crash]) -> list[Crash]:
    """Return the crashes that leave a commit decided and not complete."""
    return [
        crash
        for crash in crashes
        if store_of(Cluster(PATH, files=crash.files()))
        .manager.log(TRANSACTION_STATE)
        .state()
        .has_pending_commit
    ]


@pytest.mark.more_in_soak
@pytest.mark.parametrize("power_losses", [False, True], ids=["killed", "power lost"])
def test_rolling_forward_may_crash_at_any_step_as_well(
    scenario: Scenario, job: Recording, power_losses: bool
) -> None:
    decided = undone(job.kills(stride=1))[0]
    ensure_rolling_forward_may_crash(scenario, job, decided, power_losses=power_losses, by=2)


@pytest.mark.more_in_soak
def test_rolling_forward_may_crash_after_any_crash_of_the_committer(
    scenario: Scenario, job: Recording
) -> None:
    crashes = undone(job.kills(stride=1))
    assert len(crashes) > len(scenario.partitions)  # a state each
    for crash in crashes[1:]:
        ensure_rolling_forward_may_crash(scenario, job, crash, power_losses=False, by=0)


def test_a_commit_point_is_on_disk_before_a_partition_is_rolled_forward(
    scenario: Scenario, job: Recording
) -> None:
    """A power loss would leave the commit in that partition alone."""
    decided = undone(job.kills(stride=1))[0]
    rolled = Recording(decided.disk, scenario.roll_forward)
    assert rolled.first("flush", SLOT) < rolled.first("write", "kbatch.state")


@pytest.mark.slow
@pytest.mark.parametrize("seed", EVERY_STEP)
def test_rolling_forward_may_crash_after_any_loss_of_power(
    scenario: Scenario, job: Recording, seed: int
) -> None:
    for crash in undone(job.power_losses(seed)):
        for power_losses in (True, False):
            ensure_rolling_forward_may_crash(
                scenario, job, crash, power_losses=power_losses, by=2, seed=seed
            )


# A disk that fails.


@pytest.mark.more_in_soak
@pytest.mark.parametrize(
    "fault",
    [
        *DISK_FAULTS,
        pytest.param(Fault(at=0, error=errno.EACCES, lasting=True), id="permission lost"),
    ],
)
def test_the_error_for_a_disk_fault_at_any_step_tells_correctly_what_became_of_the_data(
    scenario: Scenario, job: Recording, fault: Fault
) -> None:
    outcomes = set()
    decided = job.first("write", SLOT)
    steps = list(enumerate(job.steps[:-1]))
    for at, step in sorted({*sample(steps), *steps[decided - 1 : decided + 3]}):
        message = f"{fault} at step {at}: {step}"
        files = SimulatedProcess(
            scenario.disk.copy(), Fault(at, fault.error, fault.torn, fault.lasting)
        )
        try:
            scenario.run_job(files)
            outcome = None
        except CommitError as error:
            outcome = error.outcome
        except OSError as error:
            outcome = (
                "the task failed" if f"/staging-0/{builders.JOB}" in str(error) else str(error)
            )
        outcomes.add(outcome)
        assert not files.open_files(), f"{message}: a file is left open"

        found = scenario.ensure_survived(Crash(message, at, files.disk), by=0)
        if outcome in ("the task failed", coordinator.NOTHING_VISIBLE):
            assert found == scenario.old, message
        elif outcome in (None, coordinator.COMMITTED):
            assert found == scenario.new, message
        else:
            assert outcome == coordinator.UNKNOWN, message
            assert found in (scenario.old, scenario.new), message
            assert at in (decided, decided + 1), message
    assert len(outcomes) == 5


# Real processes, on a real disk.


@pytest.mark.parametrize(
    ("step", "torn"),
    [
        pytest.param(("write", f"staging-0/{builders.JOB}"), True, id="while it stages"),
        pytest.param(("rename", ".log"), False, id="while it places"),
        pytest.param(("write", SLOT), False, id="before it decides"),
        pytest.param(("flush", SLOT), False, id="once it has decided"),
        pytest.param(("write", "rolled-0/kbatch.state"), False, id="while it flips"),
        pytest.param(("rename", ".json"), False, id="before it completes"),
        pytest.param(("remove_dir", f"staging-0/{builders.JOB}"), True, id="while it tidies up"),
    ],
)
def test_a_real_process_that_is_killed_leaves_what_the_table_says(
    scenario: Scenario, job: Recording, tmp_path: Path, step: tuple[str, str], torn: bool
) -> None:
    cluster = Cluster(str(tmp_path), create=True)
    scenario.create_topics(cluster)
    scenario.write_before(cluster)
    at = job.first(*step)
    assert died(lambda: scenario.run_job(FaultyFiles(Fault(at, torn=torn)), str(tmp_path)))

    crash = Crash(f"killed at {job.steps[at]}", at, scenario.disk)
    found = builders.contents(Cluster(str(tmp_path)))
    ensure_as_the_table_says(found, step_of(crash, job), crash, scenario)
    for expected in (scenario.new, scenario.new):
        scenario.run_job(Files(), str(tmp_path))
        assert builders.contents(Cluster(str(tmp_path))) == expected
