"""A mirror of a real cluster: what its brokers answer is not believed beyond what it proves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.errors import DataLossError, OffsetOutOfRangeError, RequestTimedOutError
from spark_kbatch.mirroring import copying
from spark_kbatch.mirroring.copying import Mirror, MirrorProgress
from spark_kbatch.mirroring.into_path import PathTarget
from spark_kbatch.options.read import Patience
from spark_kbatch.remote.source import RemoteSource
from spark_kbatch.wire.protocol import FetchResponse
from tests.support import builders
from tests.support.log_histories import data_batch
from tests.support.mirrors import MIRROR, mirror_settings
from tests.support.scripted_cluster import EVENTS_0, Fetch, ScriptedCluster, answer_of


@pytest.fixture
def brokers() -> Iterator[ScriptedCluster]:
    """Five batches of two records, offsets 0 to 9; the value of each is its offset."""
    with ScriptedCluster([data_batch(base_offset=2 * n, n=2) for n in range(5)]) as cluster:
        yield cluster


@pytest.fixture
def target(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "target", create=True)


def mirrored(
    brokers: ScriptedCluster,
    target: Cluster,
    on_progress: Callable[[MirrorProgress], object] = lambda _progress: None,
) -> MirrorProgress:
    source = RemoteSource(brokers.options(retry_backoff_ms="1"), Patience(poll_timeout_ms=200))
    to = PathTarget(target._store, MIRROR)
    settings = mirror_settings(MIRROR, "brokers", unit_bytes=1)
    return Mirror(source, to, settings, on_progress).run(["events"])


def values(target: Cluster) -> list[int]:
    return [int(record.value or b"") for record in builders.contents(target).get(EVENTS_0, [])]


def empty(end: int = 10) -> FetchResponse:
    return answer_of(high_watermark=end, last_stable_offset=end)


@pytest.mark.parametrize("nth", range(1, 6))
def test_one_answer_without_records_skips_nothing(
    brokers: ScriptedCluster, target: Cluster, nth: int
) -> None:
    calls = itertools.count(1)
    brokers.on_fetch = lambda fetch: empty() if next(calls) == nth else None

    mirrored(brokers, target)

    assert values(target) == list(range(10))


def test_a_mirror_fails_rather_than_skip_and_the_next_run_copies_the_rest(
    brokers: ScriptedCluster, target: Cluster
) -> None:
    brokers.on_fetch = lambda fetch: empty() if fetch.offset >= 4 else None
    with pytest.raises(RequestTimedOutError, match="batches from 4 to 10 were expected"):
        mirrored(brokers, target)
    assert values(target) == list(range(4))

    brokers.on_fetch = lambda fetch: None
    mirrored(brokers, target)

    assert values(target) == list(range(10))


def test_a_source_that_ends_before_what_was_there_to_be_copied_is_an_error(
    brokers: ScriptedCluster, target: Cluster
) -> None:
    def lose_the_end(fetch: Fetch) -> FetchResponse | None:
        if fetch.offset < 4:
            return None
        brokers.log_end = 4
        return empty(4)

    brokers.on_fetch = lose_the_end

    with pytest.raises(DataLossError, match=r"offset 10 of events-0 of brokers.*offsets up to 4"):
        mirrored(brokers, target)

    assert values(target) == list(range(4))


def test_a_log_that_a_new_leader_truncated_before_the_next_run_is_an_error(
    brokers: ScriptedCluster, target: Cluster
) -> None:
    mirrored(brokers, target)
    brokers.epoch_ends[0] = 8
    brokers.lead(2, epoch=5)
    # What took the place of 8 and 9 is not to be told from them, but for its epoch.
    brokers.batches.append(data_batch(base_offset=10, n=2, leader_epoch=5))
    brokers.log_end = 12

    with pytest.raises(OffsetOutOfRangeError, match="truncated at offset 8"):
        mirrored(brokers, target)

    assert values(target) == list(range(10))


def test_a_log_that_a_new_leader_truncated_between_two_turns_is_an_error(
    brokers: ScriptedCluster, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_TURN_BYTES", 1)
    brokers.epoch_ends[0] = 4

    def move(done: MirrorProgress) -> None:
        if done.records_count == 6:
            brokers.lead(2, epoch=5)

    with pytest.raises(OffsetOutOfRangeError, match="truncated at offset 4"):
        mirrored(brokers, target, on_progress=move)

    assert values(target) == list(range(6))


def test_a_leader_that_has_all_that_was_copied_goes_on(
    brokers: ScriptedCluster, target: Cluster
) -> None:
    mirrored(brokers, target)
    brokers.lead(2, epoch=5)
    brokers.batches.append(data_batch(base_offset=10, n=2, leader_epoch=5))
    brokers.log_end = 12

    mirrored(brokers, target)

    assert values(target) == list(range(12))
