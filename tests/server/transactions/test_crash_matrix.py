"""A server that is killed, or loses power, at any step of transactions: each is visible once and as a whole, or never.

Each step of a run without faults is a case (`tests.support.recorded_server`): producers that commit, abort, hang and take
too long, a job and retention beside them. After each crash something else comes; with no server, too, nothing stays
open for longer than the time-outs. What a log's last record means after a crash is the table in the docstring of
`spark_kbatch.cluster.transactions`.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster import transactions
from spark_kbatch.cluster.transactions.administration import FolderTransactions
from spark_kbatch.cluster.transactions.log import read_transactions
from spark_kbatch.cluster.transactions.state import Status
from spark_kbatch.files import Files
from tests.support.crashes import EVERY_STEP, Crash, Recording
from tests.support.raw_clients import RawClient
from tests.support.raw_transactions import (
    EVENTS,
    OTHER,
    RawProducer,
    state_of,
    until_status,
    values,
)
from tests.support.recorded_server import (
    AFTERWARDS,
    OLD,
    PATH,
    Afterwards,
    Script,
    a_job_commits_first,
    ensure_survived,
    made_disk,
    no_server_is_started,
    nothing_but_a_server_comes,
    producers_start_again,
)
from tests.support.store import store_of


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def recording(script: Script) -> Recording:
    return Recording(made_disk(), script.run)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silence the warnings: each case logs some."""
    caplog.set_level(logging.CRITICAL)


def statuses(crash: Crash) -> set[Status]:
    found = read_transactions(store_of(Cluster(PATH, files=crash.files()))).transactions
    return {one.status for one in found.values()}


def in_turn(crashes: Iterable[Crash]) -> Iterable[tuple[Crash, Afterwards]]:
    """Yield each crash with one of the things that may come after it."""
    return zip(crashes, itertools.cycle(AFTERWARDS), strict=False)


def test_the_recording_has_each_state_of_the_table_and_all_else_that_the_server_writes(
    recording: Recording,
) -> None:
    found = set[Status]().union(*map(statuses, recording.kills(stride=1)))
    assert found == {*Status}
    table = transactions.__doc__ or ""
    for status in Status:
        assert status.shown.replace("Commit", "").replace("Abort", "") in table
    written = "\n".join(recording.steps)
    for name in (
        "__client_transactions-0", "__consumer_offsets-0", "events-0", "events-1",
        "__transaction_state-0",
    ):  # fmt: skip
        assert f"{name}/kbatch.state" in written


@pytest.mark.more_in_soak
def test_after_a_kill_at_any_step_each_transaction_is_visible_once_or_never(
    script: Script, recording: Recording
) -> None:
    visible = [{*ensure_survived(script, *one)} for one in in_turn(recording.kills())]
    assert visible[0] == set()
    assert visible[-1] == {"first", "second", "job"}


@pytest.mark.slow
@pytest.mark.parametrize("afterwards", AFTERWARDS)
def test_after_a_kill_at_any_step_anything_may_come(
    script: Script, recording: Recording, afterwards: Afterwards
) -> None:
    for crash in recording.kills(stride=1):
        ensure_survived(script, crash, afterwards)


@pytest.mark.more_in_soak
def test_after_a_loss_of_power_at_any_step_each_transaction_is_visible_once_or_never(
    script: Script, recording: Recording
) -> None:
    for one in in_turn(recording.power_losses()):
        ensure_survived(script, *one)


@pytest.mark.slow
@pytest.mark.parametrize("seed", EVERY_STEP)
def test_after_random_losses_of_power_each_transaction_is_visible_once_or_never(
    script: Script, recording: Recording, seed: int
) -> None:
    for number, one in enumerate(recording.power_losses(seed)):
        ensure_survived(script, one, AFTERWARDS[(number + seed) % len(AFTERWARDS)])


@pytest.mark.more_in_soak
def test_an_abort_that_lost_its_marker_without_flush_is_ended_by_a_server() -> None:
    """It can be told from a commit, as its producer has committed nothing."""

    def start(files: Files) -> None:
        cluster = Cluster(PATH, files=files)
        with cluster.serve(flush=True) as server, RawClient(server, timeout_s=60) as client:
            RawProducer(client, "dropped").start()

    def abort(files: Files) -> None:
        cluster = Cluster(PATH, files=files)
        with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
            producer = RawProducer(client, "dropped")
            producer.producer_id, producer.epoch = state_of(cluster, "dropped").producer
            producer.write(EVENTS, OTHER, value=b"no").end(commit=False)
            until_status(cluster, Status.COMPLETE_ABORT, "dropped")

    before = Recording(made_disk(), start).after.settled()
    lost_markers = 0
    for crash in Recording(before, abort).power_losses(stride=2):
        with crash.met():
            files = crash.files()
            cluster = Cluster(PATH, files=files)
            unknown = [one for one, _ in FolderTransactions(store_of(cluster)).shown()]
            lost_markers += not all(one.transactional_id for one in unknown)
            nothing_but_a_server_comes(files)
            cluster = Cluster(PATH, files=files)
            assert values(cluster) == [OLD, OLD], crash
            for tp in (EVENTS, OTHER):
                state = store_of(cluster).manager.replica(tp).state
                assert state.last_stable_offset == state.log_end_offset, crash
    assert lost_markers


def decided(recording: Recording) -> list[Crash]:
    """Return the crashes after which something is decided and not done."""
    both = {Status.PREPARE_COMMIT, Status.PREPARE_ABORT}
    return [one for one in recording.kills(stride=1) if statuses(one) & both]


@pytest.mark.parametrize("ended_by", [no_server_is_started, nothing_but_a_server_comes])
def test_a_decision_that_was_not_flushed_is_on_disk_before_what_follows_it(
    recording: Recording, ended_by: Afterwards
) -> None:
    """Its server was killed just before the flush; if power is lost next, what it has led to must not be alone."""
    ended = Recording(decided(recording)[0].disk, ended_by)
    flushed = ended.first("flush", "__client_transactions-0", ".log")
    assert flushed < ended.first("write", "__consumer_offsets-0", ".log")
    assert flushed < ended.first("write", "events-0", ".log")


@pytest.mark.more_in_soak
def test_whoever_ends_transactions_after_a_crash_may_crash_as_well(
    script: Script, recording: Recording
) -> None:
    first = decided(recording)[0]
    ended = Recording(first.disk, no_server_is_started)
    for kind, crashes in (
        ("kill", ended.kills()),
        ("torn", ended.torn_kills()),
        ("power", ended.power_losses()),
    ):
        for number, second in enumerate(crashes):
            both = Crash(
                f"{first}; then {kind}: {second}", first.at, second.disk, second.power_lost
            )
            ensure_survived(script, both, AFTERWARDS[number % len(AFTERWARDS)])


@pytest.mark.slow
def test_whoever_ends_transactions_after_any_crash_may_crash_as_well(
    script: Script, recording: Recording
) -> None:
    for first in decided(recording)[::5]:
        ended = Recording(first.disk, no_server_is_started)
        for second in itertools.chain(ended.kills(), ended.torn_kills()):
            both = Crash(f"{first}; then {second}", first.at, second.disk)
            for afterwards in (no_server_is_started, producers_start_again, a_job_commits_first):
                ensure_survived(script, both, afterwards)
