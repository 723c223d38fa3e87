"""Objects of a bucket that are lost, cut short or damaged on their way: errors, and second answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_kbatch
from spark_kbatch.bucket import names, place
from spark_kbatch.bucket.objects import MemoryObjects, range_of
from spark_kbatch.bucket.place import cluster_folders, create_cluster
from spark_kbatch.bucket.real_objects import RealObjects
from spark_kbatch.bucket.store import BucketStore
from spark_kbatch.errors import ConfigError, CorruptLedgerError, CorruptRecordError
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
    result = kbatch("maintain", url)
    assert result.exit_code == 0
    assert "merged into 1 segment" in result.stdout


def test_what_maintenance_cannot_merge_is_told_and_the_exit_code_is_1(tmp_path: Path) -> None:
    objects = MemoryObjects()
    cluster = a_bucket(objects, "events", "others")
    for topic in ("events", "others"):
        send(cluster, *numbered(100), topic=topic)
    lost = [one.name for one in objects.list(f"{cluster.cluster_id}/data/")][7]
    objects.delete([lost])

    result = kbatch("maintain", url_of(cluster))

    assert result.exit_code == 1
    assert "merged into 1 segment" in result.stdout
    assert lost.rpartition("/")[2] in result.stderr
    assert "the object is missing" in result.stderr
