"""Objects of a bucket that are lost, cut short or damaged on their way: errors, and second answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.bucket import place
from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.bucket.objects import MemoryObjects, ObjectInfo, range_of
from spark_kbatch.bucket.place import cluster_folders, create_cluster
from spark_kbatch.bucket.real_objects import RealObjects
from spark_kbatch.bucket.store import BucketStore
from spark_kbatch.errors import (
    ConfigError,
    CorruptLedgerError,
    CorruptRecordError,
    ObjectStoreError,
)
from spark_kbatch.ledger import names
from tests.bucket.test_recovery import done, kbatch, numbered, send, url_of
from tests.support.bucket_jobs import begun, commit_batch, staged
from tests.support.bucket_objects import AllCounted, a_bucket, a_url, opened_again, values

# The object that names the cluster.


def test_nothing_is_created_over_a_cluster_whose_name_is_lost() -> None:
    objects = MemoryObjects()
    cluster = a_bucket(objects, "events")
    url = url_of(cluster)
    send(cluster, *numbered(3))
    job = begun(url)
    messages = staged(job, ["later"])
    objects.delete([names.CLUSTER])

    for ask in (
        lambda: spark_kbatch.open(url),
        lambda: spark_kbatch.open(url, create=True),
        lambda: begun(url),
        lambda: job.commit_batch(messages),
    ):
        with pytest.raises(
            CorruptLedgerError, match=f"the ledger of {cluster.cluster_id} .*kbatch repair"
        ):
            ask()
    assert "kbatch repair" in str(kbatch("produce", url, "events").exception)
    assert objects.get(names.CLUSTER) is None

    done("repair", url)
    assert [*values(opened_again(cluster))] == numbered(3)
    commit_batch(url, [["later"]])


def test_a_writer_whose_cluster_lost_its_name_is_told_to_repair_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = MemoryObjects()
    cluster = a_bucket(objects, "events")
    objects.delete([names.CLUSTER])

    with pytest.raises(CorruptLedgerError, match="kbatch repair"):
        place.ensure_cluster(objects, cluster.cluster_id)


def test_a_place_without_a_cluster_is_told_as_such_whatever_else_is_there() -> None:
    objects = AllCounted()
    for name in ("1", "a/b/c", f"{'1f' * 16}/data/x", f"{'2e' * 16}x/ledger/0", "zz/ledger/0"):
        objects.put(name, b"")
    for number in range(50):
        objects.put(f"a/{number}", b"")
    url = a_url(objects)
    objects.taken()

    with pytest.raises(ConfigError, match="no cluster is at"):
        spark_kbatch.open(url)
    assert objects.taken()["list "] <= 8  # one for each folder, and its ledger
    with spark_kbatch.open(url, create=True) as cluster:
        assert cluster_folders(objects) == []
        cluster.create_topic("events")
        assert cluster_folders(objects) == [cluster.cluster_id]


def test_one_who_is_about_to_create_takes_the_cluster_that_another_has_just_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Overtaken(MemoryObjects):
        """Objects at which another process creates a cluster after this one has found none."""

        is_overtaken = False

        def list(self, prefix: str, start_after: str = "") -> Iterator:  # type: ignore[type-arg]
            if not prefix and not self.is_overtaken:
                self.is_overtaken = True
                create_cluster(self, "c1" * 16, "", lambda _: None)
                self.put(f"{'c1' * 16}/{names.entry_name(0)}", b"?")
            return super().list(prefix, start_after)

    objects = Overtaken()

    with pytest.raises(
        CorruptLedgerError, match=r"ledger/0+"
    ):  # of that other cluster, here damaged
        BucketStore(a_url(objects), create=True)
    assert cluster_folders(objects) == ["c1" * 16]


# One answer is damaged on its way.


class OneDamagedAnswer(MemoryObjects):
    """Objects of which the next answer for one with some text in its name is damaged, once or always."""

    damaged, position, is_once = "", 0, True

    def get(self, name: str) -> bytes | None:
        data = super().get(name)
        if data and self.damaged and self.damaged in name:
            self.damaged = "" if self.is_once else self.damaged
            return (
                data[: self.position] + bytes([data[self.position] ^ 1]) + data[self.position + 1 :]
            )
        return data


@pytest.fixture
def damaging() -> OneDamagedAnswer:
    return OneDamagedAnswer()


@pytest.mark.parametrize(
    ("damaged", "position"),
    [
        pytest.param("cluster", 0, id="cluster"),
        pytest.param("ledger/", 0, id="entry"),
        pytest.param("checkpoints/", 0, id="root"),
        pytest.param("heads", 0, id="heads"),
        pytest.param("extents", 0, id="extents"),
        pytest.param("/index-", 0, id="index"),
        pytest.param("data/", 7, id="offset of a batch"),
        pytest.param("data/", 65, id="records of a batch"),
    ],
)
def test_an_answer_that_is_damaged_once_is_asked_for_again(
    damaging: OneDamagedAnswer, damaged: str, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = a_bucket(damaging, "events")
    send(cluster, *numbered(20))
    monkeypatch.setattr("spark_kbatch.bucket.staging.INDEX_BYTES_MIN", 1)
    commit_batch(url_of(cluster), [["20"]])
    damaging.damaged, damaging.position = damaged, position

    assert [*values(opened_again(cluster))] == numbered(21)
    assert damaging.damaged == ""

    damaging.damaged, damaging.is_once = damaged, False
    if damaged not in ("checkpoints/", "heads", "extents"):  # for which entries stand in
        with pytest.raises((CorruptLedgerError, CorruptRecordError)):
            [*values(opened_again(cluster))]


def test_a_producer_goes_on_after_one_damaged_answer(damaging: OneDamagedAnswer) -> None:
    cluster = a_bucket(damaging, "events")
    other = opened_again(cluster)
    with cluster.producer(linger_ms=0) as producer:
        producer.send("events", "a").result()
        send(other, "b")
        damaging.damaged = "ledger/"
        assert producer.send("events", "c").result().offset == 2


# An index is lost.


def test_a_lost_index_keeps_no_other_records_of_its_partition_from_a_merge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = MemoryObjects()
    cluster = a_bucket(objects, "events")
    url = url_of(cluster)
    send(cluster, *numbered(5))
    with monkeypatch.context() as patch:
        patch.setattr("spark_kbatch.bucket.staging.INDEX_BYTES_MIN", 1)
        commit_batch(url, [["lost"]])
    send(cluster, *numbered(5))
    (index,) = (one.name for one in objects.list("") if "/index-" in one.name)
    objects.delete([index])

    ran = Maintenance(url).run(run_extents=5)
    assert (ran.merged.segments, ran.merged.extents) == (2, 10)
    (told,) = ran.damaged
    assert index.endswith(told.partition(":")[0])
    cluster = opened_again(cluster)
    assert [*values(cluster, end={0: 5})] == [*values(cluster, start={0: 6})] == numbered(5)


# An object is shorter than it was.


@pytest.mark.parametrize("size", [0, 10, 19])
def test_a_range_of_an_object_that_was_cut_short_is_what_is_left_of_it(
    tmp_path: Path, size: int
) -> None:
    pytest.importorskip("obstore")
    objects = RealObjects(tmp_path.as_uri())
    objects.put("folder/object", b"0123456789" * 2)
    (tmp_path / "folder" / "object").write_bytes((b"0123456789" * 2)[:size])

    assert range_of(objects, "folder/object", 5, 15) == (b"0123456789" * 2)[5:size]
    assert range_of(objects, "folder/gone", 5, 15) is None


class Troubled(AllCounted):
    """Objects whose data is away for some requests, and may change after the first of them."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0  # of requests for data or lists of it that are left
        self.then: Callable[[], object] = lambda: None  # after the next failure

    def _fail_maybe(self, name: str) -> None:
        if "data/" in name and self.failures:
            self.failures -= 1
            then, self.then = self.then, lambda: None
            then()
            raise ObjectStoreError("get", name, "503")

    def get_range(self, name: str, position: int, size_in_bytes: int) -> bytes | None:
        data = super().get_range(name, position, size_in_bytes)
        self._fail_maybe(name)
        return data

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        found = super().list(prefix, start_after)
        self._fail_maybe(prefix)
        return found


@pytest.fixture
def troubled(monkeypatch: pytest.MonkeyPatch) -> Troubled:
    monkeypatch.setattr("spark_kbatch.bucket.objects._PAUSE_MS", 0)
    objects = Troubled()
    objects.put("data/object", b"0123456789")
    objects.taken()
    return objects


def test_a_store_in_trouble_gets_one_request_for_each_attempt(troubled: Troubled) -> None:
    troubled.failures = 4
    with pytest.raises(ObjectStoreError, match="503"):
        range_of(troubled, "data/object", 2, 5)
    assert sum(troubled.taken().values()) == 4

    troubled.failures = 3
    assert range_of(troubled, "data/object", 2, 5) == b"23456"
    assert sum(troubled.taken().values()) == 5  # and the list answered


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_an_object_that_is_deleted_while_the_store_fails_is_missing_and_not_cut_short(
    troubled: Troubled, failures: int
) -> None:
    troubled.failures, troubled.then = failures, lambda: troubled.delete(["data/object"])

    assert range_of(troubled, "data/object", 2, 5) is None


def merged(cluster: Cluster, objects: Troubled) -> Callable[[], None]:
    """Return what merges a cluster's small objects, and deletes these."""

    def merge() -> None:
        small = [one.name for one in objects.list(f"{cluster.cluster_id}/data/")]
        assert Maintenance(url_of(cluster)).run(run_extents=2).merged.segments == 1
        objects.delete(small)

    return merge


def test_a_record_whose_object_is_merged_away_while_the_store_fails_is_read(
    troubled: Troubled,
) -> None:
    cluster = a_bucket(troubled, "events")
    send(cluster, *numbered(3))
    reader = opened_again(cluster)
    troubled.failures, troubled.then = 1, merged(cluster, troubled)

    assert [*values(reader)] == numbered(3)


def test_a_record_whose_object_is_merged_away_before_a_second_look_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OneCut(Troubled):
        """Objects of which the first range comes with a wrong byte, and `then` follows."""

        def get_range(self, name: str, position: int, size_in_bytes: int) -> bytes | None:
            data = super().get_range(name, position, size_in_bytes)
            if self.cut and data and "data/" in name:
                self.cut = False
                self.then()
                return b"\1" + data[1:]
            return data

        cut = False

    objects = OneCut()
    cluster = a_bucket(objects, "events")
    send(cluster, *numbered(3))
    reader = opened_again(cluster)
    objects.cut, objects.then = True, merged(cluster, objects)

    assert [*values(reader)] == numbered(3)
    assert not objects.cut


def test_a_cut_object_takes_its_records_and_everything_else_is_done(tmp_path: Path) -> None:
    """In a folder, whose store answers as a real one does: with an error."""
    pytest.importorskip("obstore")
    url = f"file+bucket://{tmp_path}"
    topics = ("a-cut", "b-flipped", "c-many")
    with spark_kbatch.open(url, create=True) as cluster:
        for topic in topics:
            cluster.create_topic(topic)
            with cluster.producer(linger_ms=0, maintain_ms=0) as producer:
                rows = {"value": [f"{topic} {number}" for number in range(5)]}
                producer.send_arrow(topic, rows).result()
        with cluster.producer(linger_ms=0, maintain_ms=0) as producer:
            for number in range(100):
                producer.send("c-many", f"{number}").result()
    for path in (path for path in tmp_path.rglob("data/*/*/*") if path.is_file()):
        data = path.read_bytes()
        if b"a-cut" in data:
            path.write_bytes(data[:-20])
        if b"b-flipped" in data:
            path.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])

    for command in ("verify", "repair"):
        result = kbatch(command, url)
        assert result.exit_code == 1
        assert "the object was cut short" in result.stdout
        assert "b-flipped-0: damaged" in result.stdout
    result = kbatch("gc", url)
    assert result.exit_code == 0
    assert "merged into 1 segment" in result.stdout


def test_what_maintenance_cannot_merge_is_told_and_the_exit_code_is_1(tmp_path: Path) -> None:
    objects = MemoryObjects()
    cluster = a_bucket(objects, "events", "others")
    for topic in ("events", "others"):
        send(cluster, *numbered(100), topic=topic)
    lost = [one.name for one in objects.list(f"{cluster.cluster_id}/data/")][7]
    objects.delete([lost])

    result = kbatch("gc", url_of(cluster))

    assert result.exit_code == 1
    assert "merged into 1 segment" in result.stdout
    assert lost.rpartition("/")[2] in result.stderr
    assert "the object is missing" in result.stderr
