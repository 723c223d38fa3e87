"""Mirrors into and out of a bucket have each record once and in order, whatever request fails."""

from __future__ import annotations

import contextlib
import itertools
import logging
from pathlib import Path

import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.bucket.objects import CreateAnswer
from spark_kbatch.bucket.store import BucketStore
from spark_kbatch.errors import ConfigError, KBatchError, MirrorFencedError, ObjectStoreError
from spark_kbatch.mirroring.into_bucket import BucketTarget
from tests.support import builders
from tests.support.bucket_objects import CountingObjects, a_url
from tests.support.mirrors import (
    MIRROR,
    as_mirrored,
    ensure_goes_on_after_aborted_records,
    mirrored,
    write,
)


@pytest.fixture
def source(tmp_path: Path) -> Cluster:
    cluster = builders.a_cluster(tmp_path / "source", topics={"events": 2})
    write(cluster)
    return cluster


@pytest.fixture
def url() -> str:
    return a_url()


def into(url: str) -> BucketTarget:
    return BucketTarget(BucketStore(url, create=True), MIRROR)


def rest(url: str, source: Cluster) -> None:
    """Check that the bucket has what the source has."""
    with spark_kbatch.open(url) as cluster:
        assert builders.contents(cluster) == as_mirrored(source.path)


def test_a_bucket_gets_what_comes_once(source: Cluster, url: str) -> None:
    done = mirrored(source.path, into(url))
    assert done.topics_created == ("events",)
    rest(url, source)

    assert mirrored(source.path, into(url)).records_count == 0
    write(source)
    mirrored(source.path, into(url))
    rest(url, source)


def test_the_log_tells_what_each_unit_has_written(
    source: Cluster, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_kbatch")
    done = mirrored(source.path, into(url), unit_bytes=1)

    told = [one for one in caplog.messages if one.startswith("commit ")]
    assert len(told) == done.units == 2
    for one in told:
        assert f", job {MIRROR}: " in one
        assert " bytes, offsets events-" in one


def test_small_units_are_one_entry_each(source: Cluster, url: str) -> None:
    done = mirrored(source.path, into(url), unit_bytes=1)

    assert done.units == 2
    ledger = BucketStore(url).ledger
    with ledger.state() as state:
        assert state.number == 3  # the start, the topic, two units
    rest(url, source)


def test_progress_is_stored_where_a_source_had_only_aborted_records(
    url: str, tmp_path: Path
) -> None:
    broker = tmp_path / "broker"
    ensure_goes_on_after_aborted_records(broker, lambda: mirrored(broker, into(url)))

    with spark_kbatch.open(url) as cluster:
        found = builders.read_records(cluster, "events")
    assert [record.value for record in found] == [b"0", b"1", b"6"]


def test_the_second_of_two_processes_to_commit_ends(source: Cluster, url: str) -> None:
    target = into(url)

    def take_over(*_done: object) -> None:
        if not taken:
            taken.append(True)
            mirrored(source.path, into(url))

    taken: list[bool] = []
    with pytest.raises(MirrorFencedError, match=MIRROR):
        mirrored(source.path, target, unit_bytes=1, on_progress=take_over)
    rest(url, source)


def test_a_topic_that_someone_else_writes_to_is_refused(source: Cluster, url: str) -> None:
    with spark_kbatch.open(url, create=True) as cluster:
        cluster.create_topic("events", 2)
        with cluster.producer() as producer:
            producer.send("events", "mine").result()

    with pytest.raises(ConfigError, match="is not empty"):
        mirrored(source.path, into(url))


def test_of_two_mirrors_that_begin_together_one_is_refused(source: Cluster, url: str) -> None:
    first, second = into(url), BucketTarget(BucketStore(url), "other")
    real = second.commit

    def commit(*given: object) -> None:
        mirrored(source.path, first)
        real(*given)  # type: ignore[arg-type]

    second.commit = commit  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="written to by another process"):
        mirrored(source.path, second, name="other")
    rest(url, source)


class FailingObjects(CountingObjects):
    """Objects of which one request fails, with its effect or without."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.has_effect = -1, False

    def _fails(self) -> bool:
        self.left -= 1
        return self.left == -1

    def get(self, name: str) -> bytes | None:
        if self._fails():
            raise ObjectStoreError("get", name, "told to fail")
        return super().get(name)

    def create(self, name: str, data: bytes) -> CreateAnswer:
        fails = self._fails()
        answer = super().create(name, data) if self.has_effect or not fails else None
        return CreateAnswer.UNKNOWN if fails or answer is None else answer

    def put(self, name: str, data: bytes) -> None:
        fails = self._fails()
        if self.has_effect or not fails:
            super().put(name, data)
        if fails:
            raise ObjectStoreError("put", name, "told to fail")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no one wait between attempts."""
    for module in ("ledger", "store"):
        monkeypatch.setattr(f"spark_kbatch.bucket.{module}.sleep_ms", lambda _ms: None)


@pytest.mark.parametrize("has_effect", [False, True], ids=["without-effect", "with-effect"])
@pytest.mark.usefixtures("soon")
def test_each_request_may_fail(source: Cluster, has_effect: bool) -> None:
    for request in itertools.count():
        objects = FailingObjects()
        url = a_url(objects)
        into(url).close()
        objects.has_effect, objects.left = has_effect, request
        with contextlib.suppress(KBatchError):
            mirrored(source.path, into(url), unit_bytes=1)
        is_over = objects.left >= 0
        objects.left = -1
        mirrored(source.path, into(url))
        rest(url, source)
        if is_over:
            break
    assert request > 15


def test_a_topic_goes_through_buckets_and_a_real_cluster_and_back(
    source: Cluster, url: str, tmp_path: Path
) -> None:
    broker, last = str(tmp_path / "broker"), str(tmp_path / "last")
    for one, two in itertools.pairwise([str(source.path), url, a_url(), broker]):
        spark_kbatch.mirror(one, two, "events")
    with Cluster(broker).serve(port=0) as server:
        again = f"file+bucket://{tmp_path / 'again'}"
        for one, two in itertools.pairwise([server.bootstrap_servers, again, last]):
            spark_kbatch.mirror(one, two, "events")

    assert builders.contents(Cluster(last)) == as_mirrored(source.path)


def test_a_cluster_is_not_mirrored_into_itself(url: str) -> None:
    spark_kbatch.open(url, create=True).create_topic("events")
    with pytest.raises(ConfigError, match="are one cluster"):
        spark_kbatch.mirror(url, url, "events")


def test_a_mirror_goes_on_after_a_merge(source: Cluster, url: str) -> None:
    mirrored(source.path, into(url), unit_bytes=1)
    write(source)
    mirrored(source.path, into(url))
    assert Maintenance(url).run(run_extents=2).merged.segments == 2

    write(source)
    mirrored(source.path, into(url))
    rest(url, source)
