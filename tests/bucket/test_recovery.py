"""Recovery from a replica of a bucket: what is whole is kept, what is lost is told, and readers do not mix the two."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_kbatch import Cluster
from spark_kbatch.bucket import recovery
from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.bucket.objects import MemoryObjects
from spark_kbatch.bucket.recovery import Chain, Recovery
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import (
    ConfigError,
    CorruptLedgerError,
    DataLossError,
    KBatchError,
    ObjectStoreError,
    RefusedEntryError,
)
from spark_kbatch.ledger import names
from tests.support.bucket_jobs import commit_micro_batch
from tests.support.bucket_objects import a_bucket, kind_of, opened_again, values
from tests.support.stream_queries import Query


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def cluster(objects: MemoryObjects) -> Cluster:
    return a_bucket(objects, "events", partitions=2)


def send(cluster: Cluster, *sent: str, partition: int = 0, topic: str = "events") -> None:
    """Send records, each by an entry and an object of its own; the first one is entry 2."""
    with cluster.producer(linger_ms=0, maintain_ms=0) as producer:
        for value in sent:
            producer.send(topic, value, partition=partition).result()


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"{at}" for at in range(first, first + count)]


def lose(objects: MemoryObjects, cluster: Cluster, *wanted: str) -> None:
    """Let objects of the cluster, by their names in it, never have come to the replica."""
    objects.delete(f"{cluster.cluster_id}/{name}" for name in wanted)


def data_of(objects: MemoryObjects, number: int) -> str:
    """Return the name, in the cluster, of the data that began after an entry."""
    found = [one.name.partition("/")[2] for one in objects.list("") if "/data/" in one.name]
    return next(name for name in found if names.start_entry(name) == number)


def url_of(cluster: Cluster) -> str:
    return str(cluster._store.address)


def kbatch(*words: str) -> Result:
    return CliRunner().invoke(cli, words, prog_name="kbatch")


def done(*words: str) -> str:
    result = kbatch(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def chain_of(cluster: Cluster) -> Chain:
    return Recovery(url_of(cluster)).chain


# The longest chain.


def test_a_chain_ends_before_an_entry_that_is_missing(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(8))
    lose(objects, cluster, names.entry_name(6))

    found = chain_of(cluster)

    assert (found.entry, found.later, found.newest) == (5, 3, 9)
    assert found.why == f"{names.entry_name(6)}: it is missing"
    (lost,) = found.lost
    assert lost[1:] == (4, 8, 3)
    assert not lost.is_known


def test_a_chain_ends_before_the_entry_whose_object_is_missing(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(8))
    lost = data_of(objects, 4)
    lose(objects, cluster, lost)

    found = chain_of(cluster)

    assert (found.entry, found.why) == (4, f"{lost} is missing")
    assert found.lost[0][1:] == (3, 8, 5)
    assert found.lost[0].is_known


def test_an_object_that_no_one_reads_any_more_may_be_missing(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(6))
    cluster.delete_records({("events", 0): 4})
    lose(objects, cluster, data_of(objects, 3))

    assert chain_of(cluster).why == ""


def test_a_hole_below_a_whole_checkpoint_takes_nothing_away(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(20))  # with a checkpoint of entry 16
    lose(objects, cluster, names.entry_name(0), names.entry_name(7), names.entry_name(16))

    assert (chain_of(cluster).entry, chain_of(cluster).why) == (21, "")
    done("recover", url_of(cluster), "--yes", "--whole")
    assert [*values(opened_again(cluster))] == numbered(20)


def test_a_checkpoint_without_a_part_is_not_used(cluster: Cluster, objects: MemoryObjects) -> None:
    send(cluster, *numbered(20))
    parts = [one.name.partition("/")[2] for one in objects.list("") if kind_of(one.name) == "parts"]
    lose(objects, cluster, parts[0], names.entry_name(7))

    assert chain_of(cluster).entry == 6


def test_merged_data_is_read_from_where_it_was_if_the_segment_is_missing(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(6))
    Maintenance(url_of(cluster)).run(run_extents=3)
    send(cluster, "6")
    (segment,) = [
        one.name.partition("/")[2] for one in objects.list("") if "/segments/" in one.name
    ]
    lose(objects, cluster, segment)

    found = chain_of(cluster)

    assert (found.entry, found.why) == (7, f"{segment} is missing")
    assert found.lost[0][1:] == (6, 7, 1)


def test_the_first_entry_is_made_again(cluster: Cluster, objects: MemoryObjects) -> None:
    send(cluster, "a")
    lose(objects, cluster, names.entry_name(0))

    assert (chain_of(cluster).entry, chain_of(cluster).why) == (2, "")
    with pytest.raises(CorruptLedgerError, match="kbatch repair"):
        opened_again(cluster)
    assert f"{names.entry_name(0)}: it is missing; it is made again" in done(
        "repair", url_of(cluster)
    )
    assert [*values(opened_again(cluster))] == ["a"]


def test_nothing_can_be_recovered_where_only_tombstones_are(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(20))
    lose(objects, cluster, names.entry_name(20))
    done("recover", url_of(cluster), "--yes")
    other = opened_again(cluster)
    lost = [one.name for one in objects.list(f"{other.cluster_id}/checkpoints/")]
    objects.delete(lost)

    assert len(lost) == 2
    with pytest.raises(ConfigError, match=r"nothing .* can be recovered: ledger/0+: it is a tomb"):
        Recovery(url_of(other))


def test_a_replica_without_the_object_that_names_the_cluster_is_found(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(3))
    objects.delete([names.CLUSTER])

    done("recover", url_of(cluster), "--yes", "--whole")

    assert [*values(opened_again(cluster))] == numbered(3)


# A new cluster.


def test_whatever_object_is_missing_what_is_recovered_is_whole(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(7))
    Maintenance(url_of(cluster)).run(run_extents=4)
    send(cluster, *numbered(10, 7))
    stored = {one.name: objects.get(one.name) or b"" for one in objects.list("")}

    for missing in stored:
        objects.delete([one.name for one in objects.list("")])
        for name, data in stored.items():
            if name != missing:
                objects.put(name, data)
        done("recover", url_of(cluster), "--yes", "--whole")

        other = opened_again(cluster)
        found = [*values(other)]
        assert found == numbered(len(found)), missing
        assert not any(report.damaged for report in other.verify())
        kept = 17 if kind_of(missing) in ("cluster", "hint", "checkpoints", "parts") else 0
        assert len(found) >= kept
        send(other, "new")
        assert [*values(opened_again(cluster))] == [*found, "new"]


def test_maintenance_goes_on_in_a_recovered_cluster(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(20))
    lose(objects, cluster, names.entry_name(19))
    done("recover", url_of(cluster), "--yes", "--whole")
    other = opened_again(cluster)
    send(other, *numbered(20, 17))

    assert Maintenance(url_of(cluster)).run(run_extents=5).merged[:2] == (1, 37)
    assert [*values(opened_again(cluster))] == numbered(37)
    assert (
        done("history", url_of(cluster), "--all").count("only checkpoints know what it was") == 19
    )


def test_offsets_times_settings_and_producers_stay(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(5))
    cluster.alter_topic("events", {"retention.ms": 12345})
    cluster.delete_records({("events", 0): 2})
    before = cluster.read("events").read_all()

    done("recover", url_of(cluster), "--yes", "--whole")

    other = opened_again(cluster)
    assert other.read("events").read_all() == before
    assert other.topic("events").config.retention_ms == 12345
    (edges,) = [row.offsets for row in other.describe(["events"]) if row.topic_partition[1] == 0]
    assert (edges.log_start_offset, edges.log_end_offset) == (2, 5)


def test_groups_go_on_where_they_were_in_what_is_left(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(3))
    cluster.alter_group_offsets("billing", {("events", 0): 2})
    send(cluster, *numbered(2, 3))
    cluster.alter_group_offsets("billing", {("events", 0): 5})
    lose(objects, cluster, names.entry_name(7))

    done("recover", url_of(cluster), "--yes")

    (billing,) = opened_again(cluster).groups()
    assert {tp: one[:3] for tp, one in billing.offsets.items()} == {("events", 0): (2, 4, 2)}


def test_the_ledger_says_when_a_cluster_was_recovered_and_knows_old_entries(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(3))
    rows = [
        json.loads(line)
        for line in done("history", url_of(cluster), "--all", "--json").splitlines()
    ]

    done("recover", url_of(cluster), "--yes", "--whole")

    after = [
        json.loads(line)
        for line in done("history", url_of(cluster), "--all", "--json").splitlines()
    ]
    assert (after[0]["entry"], after[0]["by"].split()[0]) == (5, "recover")
    assert [row["id"] for row in after[1:]] == [row["id"] for row in rows]


# Old readers and writers.


def test_a_process_of_the_lost_cluster_and_its_streams_stop(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(4))
    query = Query(cluster._store, subscribe="events")
    assert query.batch() == {"events-0": (0, 4)}
    lose(objects, cluster, names.entry_name(4))
    done("recover", url_of(cluster), "--yes", "--whole")
    send(opened_again(cluster), "x", "y", "z")  # at offsets that had other records

    query.topics = opened_again(cluster)._store
    with pytest.raises(DataLossError, match="events-0"):
        query.restart().batch()


def test_topics_have_new_ids_and_the_cluster_too(cluster: Cluster, objects: MemoryObjects) -> None:
    send(cluster, "a")
    ids = cluster.cluster_id, cluster.topic("events").topic_id

    new = json.loads(done("recover", url_of(cluster), "--yes", "--whole", "--json"))

    other = opened_again(cluster)
    assert (new["cluster_id"], new["new_cluster_id"]) == (ids[0], other.cluster_id)
    assert other.cluster_id != ids[0]
    assert other.topic("events").topic_id != ids[1]


def test_a_mirror_into_a_recovered_cluster_copies_again_what_is_lost(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    source = a_bucket(None, "events", partitions=2)
    target = a_bucket(objects)
    url = url_of(target)
    for first in range(0, 9, 3):
        send(source, *numbered(3, first))
        done("mirror", url_of(source), url, "events")
    last = max(one.name for one in objects.list("") if "/ledger/" in one.name)
    objects.delete([last])

    done("recover", url, "--yes", "--whole")

    assert [*values(opened_again(target))] == numbered(6)
    assert "Copied 3 records" in done("mirror", url_of(source), url, "events")
    assert [*values(opened_again(target))] == numbered(9)


# The command.


def test_what_is_lost_is_listed_before_anything_is_done(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    url = url_of(cluster)
    send(cluster, *numbered(3))
    send(cluster, "x", partition=1)
    commit_micro_batch(url, 7, ["m"])
    cluster.create_topic("later")
    cluster.delete_records({("events", 0): 1})
    lose(objects, cluster, names.entry_name(4))
    before = [*objects.list("")]

    shown = done("recover", url, "--dry-run").splitlines()

    assert [*objects.list("")] == before
    assert shown[0].startswith(f"Cluster {cluster.cluster_id} is whole up to entry 3, of 20")
    assert shown[1:] == [
        f"There it ends: {names.entry_name(4)}: it is missing.",
        "Later entries up to 8 are lost, 4 that can be read and 1 that cannot.",
        "events-0: offsets 2 to 3 are lost; what is left of entries tells of 1 record.",
        "events-1: offsets 0 to 0 are lost: 1 record.",
        "Lost is also entry 7: topic later is created with 1 partition.",
        "Lost is also entry 8: starts: events-0 at 1.",
        "Query a-query has written micro-batches up to 7, and is known as if it had written nothing: it does not "
        "write the lost ones again unless it begins with a new checkpoint.",
    ]
    asked = kbatch("recover", url)
    assert asked.exit_code == 1
    assert "give --yes to recover, or --dry-run to look only" in str(asked.exception) + asked.output
    assert "events-0: offsets 2 to 3 are lost" in asked.stderr
    assert [*objects.list("")] == before

    told = done("recover", url, "--yes").splitlines()
    assert told[:-1] == shown
    assert f"What was there stays below {url}/{cluster.cluster_id}/" in told[-1]
    found = json.loads(done("recover", url, "--dry-run", "--json"))
    assert (found["why"], found["lost"], found["new_cluster_id"]) == (None, [], None)


@pytest.mark.parametrize("at", ["copy", "put", "create"])
def test_a_recovery_that_is_interrupted_changes_nothing(
    cluster: Cluster, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    send(cluster, *numbered(3))

    def fail(*_given: object) -> bool:
        raise CorruptLedgerError("x", "as the test says")

    with monkeypatch.context() as failing:
        failing.setattr(MemoryObjects, at, fail)
        assert kbatch("recover", url_of(cluster), "--yes", "--whole").exit_code == 1
    assert opened_again(cluster).cluster_id == cluster.cluster_id
    assert [*values(opened_again(cluster))] == numbered(3)
    done("recover", url_of(cluster), "--yes", "--whole")
    assert [*values(opened_again(cluster))] == numbered(3)


class CountedCopies:
    """Copies of objects, of which the first `most` are let through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int = 1_000) -> None:
        self.names: list[str] = []  # that were copied to
        copy = MemoryObjects.copy

        def counted(objects: MemoryObjects, name: str, to: str) -> bool:
            if len(self.names) >= most:
                raise CorruptLedgerError(name, "as the test says")
            self.names.append(to)
            return copy(objects, name, to)

        monkeypatch.setattr(MemoryObjects, "copy", counted)
        monkeypatch.setattr(recovery, "_AT_ONCE", 1)


def test_a_recovery_that_was_stopped_goes_on_with_what_it_has_copied(
    cluster: Cluster, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(cluster, *numbered(8))

    with monkeypatch.context() as context:
        first = CountedCopies(context, most=5)
        assert kbatch("recover", url_of(cluster), "--yes", "--whole").exit_code == 1
    second = CountedCopies(monkeypatch)
    done("recover", url_of(cluster), "--yes", "--whole")

    assert len(first.names) == 5
    assert len(second.names) == 3
    assert not {*first.names} & {*second.names}
    assert [*values(opened_again(cluster))] == numbered(8)
    send(opened_again(cluster), "new")
    assert [*values(opened_again(cluster))] == [*numbered(8), "new"]


@pytest.mark.parametrize("stopped_at", range(1, 17))
def test_wherever_a_recovery_is_stopped_a_second_one_ends_it(
    cluster: Cluster, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch, stopped_at: int
) -> None:
    send(cluster, *numbered(3))
    monkeypatch.setattr(recovery, "_AT_ONCE", 1)
    requests = itertools.count(1)

    def stopping(method: Callable[..., Any]) -> Callable[..., Any]:
        def request(*given: Any) -> Any:
            if next(requests) >= stopped_at:
                raise ObjectStoreError("put", "x", "as the test says")
            return method(*given)

        return request

    with monkeypatch.context() as failing:
        for name in ("copy", "put", "create"):
            failing.setattr(MemoryObjects, name, stopping(getattr(MemoryObjects, name)))
        stopped = kbatch("recover", url_of(cluster), "--yes", "--whole").exit_code == 1
    assert stopped == (next(requests) > stopped_at)
    if stopped:
        assert opened_again(cluster).cluster_id == cluster.cluster_id
    done("recover", url_of(cluster), "--yes", "--whole")

    other = opened_again(cluster)
    assert other.cluster_id != cluster.cluster_id
    assert [*values(other)] == numbered(3)
    assert not any(report.damaged for report in other.verify())
    send(other, "new")
    assert [*values(opened_again(cluster))] == [*numbered(3), "new"]


def test_a_cluster_that_was_recovered_once_is_not_written_to_by_another_recovery(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(3))
    named = objects.get(names.CLUSTER)
    assert named is not None
    done("recover", url_of(cluster), "--yes", "--whole")
    first = opened_again(cluster)
    send(first, "new")
    held = {one.name: objects.get(one.name) for one in objects.list(f"{first.cluster_id}/")}

    objects.put(names.CLUSTER, named)  # as the store's replication may do
    done("recover", url_of(cluster), "--yes", "--whole")

    assert opened_again(cluster).cluster_id not in (cluster.cluster_id, first.cluster_id)
    assert [*values(opened_again(cluster))] == numbered(3)
    assert {one.name: objects.get(one.name) for one in objects.list(f"{first.cluster_id}/")} == held


def test_a_stopped_recovery_of_a_cluster_without_a_name_can_go_on(
    cluster: Cluster, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(cluster, *numbered(3))
    objects.delete([names.CLUSTER])
    with monkeypatch.context() as context:
        CountedCopies(context, most=1)
        assert kbatch("recover", url_of(cluster), "--yes", "--whole").exit_code == 1

    done("recover", url_of(cluster), "--yes")

    assert [*values(opened_again(cluster))] == numbered(3)


# Beside writers.


def test_a_cluster_of_which_nothing_is_lost_is_recovered_only_by_a_word_of_its_own(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(3))
    before = [*objects.list("")]

    refused = kbatch("recover", url_of(cluster), "--yes")

    assert isinstance(refused.exception, ConfigError)
    assert "is whole up to entry 4" in str(refused.exception)
    assert "--whole" in str(refused.exception)
    assert [*objects.list("")] == before
    done("recover", url_of(cluster), "--dry-run")
    done("recover", url_of(cluster), "--yes", "--whole")
    assert opened_again(cluster).cluster_id != cluster.cluster_id


@pytest.mark.parametrize("damage", ["none", "last", "missing"])
def test_writers_of_a_recovered_cluster_are_acknowledged_for_nothing_that_is_lost(
    cluster: Cluster, objects: MemoryObjects, damage: str
) -> None:
    with cluster.producer(linger_ms=0, maintain_ms=0) as producer:
        producer.send("events", "before", partition=0).result()
        producer.send("events", "lost", partition=0).result()
        if damage == "last":
            objects.put(f"{cluster.cluster_id}/{names.entry_name(3)}", b"damaged")
        if damage == "missing":
            producer.send("events", "after the lost", partition=0).result()
            lose(objects, cluster, names.entry_name(3))
        done("recover", url_of(cluster), "--yes", "--whole")
        with pytest.raises(KBatchError) as told:
            producer.send("events", "after", partition=0).result()

    if damage != "last":
        assert "is closed: `kbatch recover` puts another one in its place" in str(told.value)
    found = [*values(opened_again(cluster))]
    assert found == (["before", "lost"] if damage == "none" else ["before"])
    send(opened_again(cluster), "new")
    assert [*values(opened_again(cluster))] == [*found, "new"]


def test_what_is_committed_before_the_ledger_is_closed_is_recovered(
    cluster: Cluster, objects: MemoryObjects
) -> None:
    send(cluster, *numbered(2))
    looked = Recovery(url_of(cluster))
    send(cluster, "meanwhile")

    looked.recover()

    assert [*values(opened_again(cluster))] == [*numbered(2), "meanwhile"]


def test_a_recovery_that_was_stopped_is_told_to_writers_and_by_repair(
    cluster: Cluster, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(cluster, *numbered(3))
    with monkeypatch.context() as context:
        CountedCopies(context, most=1)
        assert kbatch("recover", url_of(cluster), "--yes", "--whole").exit_code == 1

    assert [*values(opened_again(cluster))] == numbered(3)
    with pytest.raises(RefusedEntryError, match="run it again"):
        send(opened_again(cluster), "x")
    repaired = kbatch("repair", url_of(cluster))
    assert repaired.exit_code == 1
    assert "it is closed by a `kbatch recover` that was stopped" in repaired.output
    done("recover", url_of(cluster), "--yes")
    send(opened_again(cluster), "x")


def test_recover_refuses_what_is_no_bucket(tmp_path: object) -> None:
    assert kbatch("recover", str(tmp_path)).exit_code == 2
