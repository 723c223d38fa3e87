"""Consumer groups in a bucket: what commits cost, how long they are kept, how many there may be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import spark_kbatch
from spark_kbatch import Cluster, TopicPartition
from spark_kbatch.bucket import groups, shared_ledger
from spark_kbatch.bucket.history import AuditLog
from spark_kbatch.bucket.ledger import Ledger, real_timing
from spark_kbatch.bucket.maintenance import Maintenance
from spark_kbatch.errors import (
    ConfigError,
    GroupIdNotFoundError,
    RefusedEntryError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.ledger.entries import ENTRY_BYTES_MAX
from spark_kbatch.ledger.image import DEFAULT_LIMITS
from tests.support.bucket_objects import AgingObjects, AllCounted, a_bucket, opened_again

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
TP = TopicPartition("events", 0)


def committed(cluster: Cluster) -> dict[str, dict[TopicPartition, int | None]]:
    return {
        one.group_id: {tp: at.committed_offset for tp, at in one.offsets.items()}
        for one in cluster.groups()
    }


def url_of(cluster: Cluster) -> str:
    return cluster.address


def test_a_commit_is_one_entry_after_one_look() -> None:
    objects = AllCounted()
    cluster = a_bucket(objects, "events", partitions=50)
    offsets = {("events", number): number for number in range(50)}
    cluster.groups()
    objects.taken()

    cluster.alter_group_offsets("billing", offsets)  # just after a look
    assert objects.taken() == {"create ledger": 1}
    cluster.groups()
    assert objects.taken() == {"get ledger": 1}
    assert cluster._store.groups.committed("billing") == offsets
    assert cluster._store.groups.committed("audit") == {}
    assert objects.taken() == {"get ledger": 2}


def test_the_ledger_shows_which_group_was_committed_and_deleted() -> None:
    cluster = a_bucket(AllCounted(), "events", partitions=2)
    cluster.alter_group_offsets("billing", {("events", 0): 3, ("events", 1): 4})
    cluster.alter_group_offsets("audit", {("events", 0): 3})
    cluster.delete_group("audit")
    cluster.delete_group("billing")

    told = [one for one in AuditLog(url_of(cluster)).newest_first() if "group" in one.what]

    assert [(one.entry.by.partition(" ")[0], one.what) for one in reversed(told)] == [
        ("group", "2 offsets of group billing"),
        ("group", "1 offset of group audit"),
        ("group", "1 offset of group audit is deleted"),
        ("group", "2 offsets of group billing are deleted"),
    ]
    assert [*cluster.history()] == []


def test_a_commit_of_10000_partitions_is_split_and_a_long_name_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "OFFSETS_MAX", 10_000)
    objects = AllCounted()
    cluster = a_bucket(objects, "events", partitions=10_000)
    name = "\N{GRINNING FACE}" * groups.GROUP_ID_CHARACTERS_MAX  # of which each takes 12 bytes
    last = 2**63 - 1
    wanted = {TopicPartition("events", number): last - number for number in range(10_000)}

    cluster.alter_group_offsets(name, wanted)

    assert committed(opened_again(cluster)) == {name: wanted}
    sizes = [len(objects.get(one) or b"") for one in objects.names_of("ledger")]
    assert ENTRY_BYTES_MAX * 0.4 < max(sizes) <= ENTRY_BYTES_MAX
    cluster.alter_group_offsets(name, wanted)  # no more than there are
    with pytest.raises(RefusedEntryError, match="would have 10001 offsets, and may have 10000"):
        cluster.alter_group_offsets("another", {("events", 0): 1})
    cluster.delete_group(name)
    assert cluster.groups() == []


def test_the_longest_ids_of_topics_fit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_kbatch.bucket.topics.random_id", lambda: "x" * 64)
    cluster = a_bucket(AllCounted(), "events", partitions=groups._OFFSETS_OF_ENTRY)
    name = "\N{GRINNING FACE}" * groups.GROUP_ID_CHARACTERS_MAX

    offsets = {("events", number): 2**63 - 1 for number in range(groups._OFFSETS_OF_ENTRY)}
    cluster.alter_group_offsets(name, offsets)

    assert len(committed(cluster)[name]) == groups._OFFSETS_OF_ENTRY


def test_what_cannot_be_committed_is_refused_as_a_whole() -> None:
    cluster = a_bucket(AllCounted(), "events", partitions=3000)
    offsets = {("events", number): 1 for number in range(3001)}

    with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 2999, not 3000"):
        cluster.alter_group_offsets("billing", offsets)
    with pytest.raises(ConfigError, match="has 256 characters; in a bucket it has at most 255"):
        cluster.alter_group_offsets("b" * 256, {("events", 0): 1})
    with pytest.raises(UnknownTopicOrPartitionError, match="'others' does not exist"):
        cluster.alter_group_offsets("billing", {("others", 0): 1})
    with pytest.raises(GroupIdNotFoundError):
        cluster.delete_group("billing")
    assert cluster.groups() == []


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> AgingObjects:
    """Objects whose clock is that of all processes too."""
    found = AgingObjects()
    timing = real_timing()._replace(now_ms=lambda: found.clock_ms)
    monkeypatch.setattr(shared_ledger, "real_timing", lambda _: timing)
    return found


def test_offsets_are_kept_for_a_week_after_their_commit(objects: AgingObjects) -> None:
    cluster = a_bucket(objects, "events", partitions=2)
    cluster.alter_group_offsets("billing", {("events", 0): 1, ("events", 1): 1})
    objects.clock_ms += DAY_MS
    cluster.alter_group_offsets("billing", {("events", 1): 2})

    objects.clock_ms += WEEK_MS - DAY_MS - 1
    cluster.create_topic("a")
    assert set(committed(cluster)["billing"]) == {("events", 0), ("events", 1)}
    objects.clock_ms += 600_000
    cluster.create_topic("b")
    assert committed(cluster) == committed(opened_again(cluster)) == {"billing": {("events", 1): 2}}
    objects.clock_ms += DAY_MS
    cluster.create_topic("c")
    assert committed(cluster) == committed(opened_again(cluster)) == {}


def test_a_cluster_without_the_limit_keeps_offsets(
    objects: AgingObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that an earlier version has made, which does not drop them either."""
    limits = {key: one for key, one in DEFAULT_LIMITS.items() if key != "offsets.retention.ms"}
    monkeypatch.setattr(shared_ledger, "DEFAULT_LIMITS", limits)
    cluster = a_bucket(objects, "events")
    cluster.alter_group_offsets("billing", {("events", 0): 1})
    objects.clock_ms += 100 * WEEK_MS
    cluster.create_topic("a")

    assert committed(cluster) == {"billing": {TP: 1}}


def test_checkpoints_and_maintenance_keep_groups(objects: AgingObjects) -> None:
    cluster = a_bucket(objects, "events")
    cluster.alter_group_offsets("billing", {("events", 0): 1})
    timing = real_timing()._replace(now_ms=lambda: objects.clock_ms)
    for _ in range(3):
        objects.clock_ms += 2 * DAY_MS
        with cluster.producer() as producer:
            for _ in range(20):
                producer.send("events", "v")
                producer.flush()
        Maintenance(url_of(cluster), timing=timing).run()

    assert committed(opened_again(cluster)) == {"billing": {TP: 1}}
    assert not any(report.found or report.damaged for report in cluster.verify())


def test_groups_that_commit_at_the_same_time_all_do(tmp_path: Path) -> None:
    url = f"file+bucket://{tmp_path}/bucket"
    with spark_kbatch.open(url, create=True) as cluster:
        cluster.create_topic("events", 4)

    def commit(name: str) -> None:
        with spark_kbatch.open(url) as own:
            for offset in range(5):
                own.alter_group_offsets(name, {("events", n): offset for n in range(4)})

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(commit, "abcd")] == [None] * 4
    with spark_kbatch.open(url) as cluster:
        four = {TopicPartition("events", number): 4 for number in range(4)}
        assert committed(cluster) == dict.fromkeys("abcd", four)


def test_two_that_delete_a_group_both_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_bucket(AllCounted(), "events")
    other = opened_again(cluster)
    cluster.alter_group_offsets("billing", {("events", 0): 1})
    real = Ledger.commit

    def commit(ledger: Ledger, *given: object, **named: object) -> object:
        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "commit", real)
            other.delete_group("billing")
        return real(ledger, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "commit", commit)
    cluster.delete_group("billing")

    assert cluster.groups() == []
