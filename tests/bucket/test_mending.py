"""Repair of a bucket: what is mended without a loss, and what is left and said."""

from __future__ import annotations

import json

import pytest

from spark_kbatch import Cluster
from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.bucket.objects import MemoryObjects
from spark_kbatch.errors import CorruptLedgerError, CorruptRecordError, UnknownTopicOrPartitionError
from spark_kbatch.ledger import names
from spark_kbatch.ledger.entries import Tombstone, decode
from tests.bucket.test_recovery import done, kbatch, lose, numbered, send, url_of
from tests.support.bucket_objects import a_bucket, kind_of, opened_again, values


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def cluster(objects: MemoryObjects) -> Cluster:
    return a_bucket(objects, "events", partitions=2)


def of_kind(objects: MemoryObjects, kind: str) -> list[str]:
    """Return the names of all objects of a kind, in the cluster."""
    found = [one.name for one in objects.list("") if kind_of(one.name) == kind]
    return [name.partition("/")[2] for name in found]


def damage(objects: MemoryObjects, cluster: Cluster, name: str) -> None:
    """Change the last but tenth byte of an object, which no checksum leaves out."""
    whole = f"{cluster.cluster_id}/{name}"
    data = bytearray(objects.get(whole) or b"")
    data[-10] ^= 1
    objects.put(whole, bytes(data))


def repaired(cluster: Cluster, *words: str, exit_code: int = 0) -> list[str]:
    """Check that a dry run says the same and changes nothing; repair, and return what was printed."""
    objects = cluster._store.ledger.objects
    before = [(one.name, objects.get(one.name)) for one in objects.list("")]
    looked = kbatch("repair", url_of(cluster), *words, "--dry-run")
    assert [(one.name, objects.get(one.name)) for one in objects.list("")] == before

    result = kbatch("repair", url_of(cluster), *words)

    assert (looked.exit_code, result.exit_code) == (exit_code, exit_code), result.exception
    assert looked.stdout.replace("can be repaired", "repaired") == result.stdout
    return result.stdout.splitlines()


def is_well(cluster: Cluster) -> bool:
    found = done("repair", url_of(cluster), "--dry-run").splitlines()
    return all(line.partition(": ")[2].startswith("ok, ") for line in found)


def test_a_bucket_that_is_well_is_left_as_it_is(cluster: Cluster) -> None:
    send(cluster, *numbered(20))

    assert repaired(cluster) == [
        "ledger: ok, entries 0 to 21",
        "events-0: ok, offsets 0 to 20",
        "events-1: ok, offsets 0 to 0",
    ]


# The ledger.


@pytest.mark.parametrize(
    ("kind", "how"),
    [("parts", lose), ("parts", damage), ("checkpoints", damage)],
    ids=["lost-part", "damaged-part", "damaged-root"],
)
def test_a_checkpoint_is_made_again_from_entries(
    cluster: Cluster, objects: MemoryObjects, kind: str, how: object
) -> None:
    send(cluster, *numbered(36))  # with checkpoints of entries 16 and 32
    wanted = of_kind(objects, kind)[-1]
    how(objects, cluster, wanted)  # type: ignore[operator]

    shown = repaired(cluster)

    assert shown[0] == "ledger: repaired, entries 0 to 37"
    assert shown[1].startswith(f"  {names.root_name(32)} cannot be used: {wanted}: ")
    assert shown[1].endswith("; it is deleted, and a checkpoint of entry 37 is made")
    assert of_kind(objects, "checkpoints") == [names.root_name(16), names.root_name(37)]
    assert [*values(opened_again(cluster))] == numbered(36)
    assert is_well(cluster)


@pytest.mark.parametrize("how", [lose, damage], ids=["lost", "damaged"])
def test_an_entry_that_a_checkpoint_has_becomes_a_tombstone(
    cluster: Cluster, objects: MemoryObjects, how: object
) -> None:
    send(cluster, *numbered(20))
    rows = [
        json.loads(line)
        for line in done("history", url_of(cluster), "--all", "--json").splitlines()
    ]
    for number in (0, 7, 16):
        how(objects, cluster, names.entry_name(number))  # type: ignore[operator]
    with pytest.raises(CorruptLedgerError, match="kbatch repair"):
        opened_again(cluster)

    shown = repaired(cluster)

    assert shown[0] == "ledger: repaired, entries 0 to 21"
    assert (
        sum("a tombstone is put in its place, as checkpoint 16 has" in line for line in shown) == 3
    )
    for number in (0, 7, 16):
        name = names.entry_name(number)
        data = objects.get(f"{cluster.cluster_id}/{name}")
        assert data is not None
        assert isinstance(decode(data, name).content, Tombstone)
    after = [
        json.loads(line)
        for line in done("history", url_of(cluster), "--all", "--json").splitlines()
    ]
    assert [row["id"] for row in after] == [row["id"] for row in rows]
    assert [*values(opened_again(cluster))] == numbered(20)
    assert is_well(cluster)


def test_an_entry_that_nothing_tells_of_is_left_and_recover_is_named(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(20))
    lose(objects, cluster, names.entry_name(18))

    shown = repaired(cluster, exit_code=1)

    assert shown == [
        "ledger: damaged, entries 0 to 17",
        f"  {names.entry_name(18)}: it is missing; it is left as it is, and what came after it cannot be told: "
        "`kbatch recover` begins a cluster with what was before it",
        "events-0: ok, offsets 0 to 16",
        "events-1: ok, offsets 0 to 0",
    ]
    assert kbatch("verify", url_of(cluster)).exit_code == 1


def test_verify_goes_up_to_an_entry_that_nothing_tells_of(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    """From the command line and in Python, where the cluster was open before."""
    send(cluster, *numbered(20))
    cluster.create_topic("late")
    lose(objects, cluster, names.entry_name(18))
    damage(objects, cluster, min(of_kind(objects, "data"), key=names.start_entry))

    shown = kbatch("verify", url_of(cluster))
    first, *others = cluster.verify()

    assert shown.exit_code == 1
    assert f"{names.entry_name(18)}: it is missing" in shown.stdout
    assert "2 partitions checked: 1 partition with faults" in shown.stdout
    assert "it is missing" in first.damaged[0]
    assert [len(one.damaged) for one in others] == [1, 0]
    assert kbatch("verify", url_of(cluster), "events-1").stdout.endswith(
        "1 partition checked: none with faults.\n"
    )
    for command in ("verify", "repair"):  # it may be there
        error = kbatch(command, url_of(cluster), "late").exception
        assert isinstance(error, CorruptLedgerError)
        assert error.name == names.entry_name(18)


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_the_object_that_names_the_cluster_is_put_again(
    cluster: Cluster, objects: MemoryObjects, how: str
) -> None:
    send(cluster, "a")
    if how == "missing":
        objects.delete([names.CLUSTER])
    else:
        objects.put(names.CLUSTER, b"?")

    shown = repaired(cluster)

    assert shown[1] == f"  cluster is {how}" + shown[1].partition(how)[2]
    assert f"it is put again, and names {cluster.cluster_id}" in shown[1]
    assert [*values(opened_again(cluster))] == ["a"]


# Batches.


@pytest.mark.parametrize("how", [lose, damage], ids=["lost", "damaged"])
def test_a_segment_is_written_again_from_what_was_merged(
    cluster: Cluster, objects: MemoryObjects, how: object
) -> None:
    send(cluster, *numbered(6))
    Maintenance(url_of(cluster)).run(run_extents=3)
    send(cluster, "6")
    (segment,) = of_kind(objects, "segments")
    how(objects, cluster, segment)  # type: ignore[operator]
    with pytest.raises(CorruptRecordError):
        [*values(opened_again(cluster))]

    shown = repaired(cluster)

    assert shown[1] == "events-0: repaired, offsets 0 to 7"
    assert shown[2].startswith("  offsets 0 to 5: ")
    assert segment in shown[2]
    assert shown[2].endswith(
        "offsets 0 to 5 are written again from where they were before: 6 objects"
    )
    assert [*values(opened_again(cluster))] == numbered(7)
    assert is_well(cluster)


@pytest.mark.parametrize("how", [lose, damage], ids=["lost", "damaged"])
def test_batches_that_are_nowhere_else_are_left_and_said(
    cluster: Cluster, objects: MemoryObjects, how: object
) -> None:
    send(cluster, *numbered(5))
    wanted = of_kind(objects, "data")
    wanted.sort(key=names.start_entry)
    how(objects, cluster, wanted[2])  # type: ignore[operator]

    shown = repaired(cluster, exit_code=1)

    assert shown[:2] == ["ledger: ok, entries 0 to 6", "events-0: damaged, offsets 0 to 5"]
    assert shown[2].startswith("  offsets 2 to 2: ")
    assert shown[2].endswith("; it is left as it is, and reading it is an error")
    assert [*values(opened_again(cluster), partitions=[0], start=3)] == ["3", "4"]


def test_only_what_was_named_is_repaired(cluster: Cluster, objects: MemoryObjects) -> None:
    send(cluster, "a")
    send(cluster, "b", partition=1)

    assert repaired(cluster, "events-1")[1:] == ["events-1: ok, offsets 0 to 1"]
    assert len(repaired(cluster, "events")) == 3
    assert kbatch("repair", url_of(cluster), "others").exit_code == 1
    (ledger, one) = map(
        json.loads, done("repair", url_of(cluster), "events-0", "--json").splitlines()
    )
    assert ledger == {"ledger": "ok", "found": [], "damaged": []}
    assert (one["topic"], one["partition"], one["found"]) == ("events", 0, [])


# From Python.


def test_a_cluster_that_is_open_is_repaired_and_reads_go_on(
    cluster: Cluster, objects: MemoryObjects, caplog: pytest.LogCaptureFixture
) -> None:
    send(cluster, *numbered(20))
    Maintenance(url_of(cluster)).run(run_extents=3)
    damage(objects, cluster, of_kind(objects, "segments")[0])
    lose(objects, cluster, names.entry_name(7))

    (planned, other) = cluster.repair(dry_run=True)
    assert (planned.topic_partition, other.found) == (("events", 0), ())
    assert not is_well(cluster)

    assert [*cluster.repair([("events", 1)])] == [other]
    assert "a tombstone is put in its place" in caplog.text
    assert [*cluster.repair()] == [planned, other]
    assert "written again from where they were before: 20 objects" in planned.found[0]
    assert [*values(cluster)] == numbered(20)
    assert is_well(cluster)
    with pytest.raises(UnknownTopicOrPartitionError, match="not 2"):
        [*cluster.repair([("events", 2)])]


def test_a_ledger_that_cannot_be_repaired_is_an_error_in_python(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(3))
    lose(objects, cluster, names.entry_name(3))

    with pytest.raises(CorruptLedgerError, match="`kbatch recover` begins a cluster"):
        [*cluster.repair()]
