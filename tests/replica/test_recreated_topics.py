"""Topics that another process deletes, creates again or alters while a cluster is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.errors import (
    CommitError,
    KBatchError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Files
from spark_kbatch.model import AppendResult, TopicPartition
from spark_kbatch.options.topic import LOG_APPEND_TIME, TopicConfig, topic_key
from tests.support import builders
from tests.support.builders import append_records, batch, contents, idempotent_batch, records_of
from tests.support.store import store_of

EVENTS = TopicPartition("events", 0)
ABC = {TopicPartition(name, 0) for name in "abc"}
AC = {TopicPartition(name, 0) for name in "ac"}
SMALL_LIMIT = TopicConfig(max_message_bytes=1024)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """An open cluster that remembers what an append and a read leave there."""
    cluster = builders.a_cluster(tmp_path)
    append(cluster, batch(seed=7))
    assert len(contents(cluster)[EVENTS]) == 3
    return cluster


def append(cluster: Cluster, data: bytes) -> AppendResult:
    return append_records(cluster, {EVENTS: data})[EVENTS]


def another(cluster: Cluster) -> Cluster:
    """Open the same cluster as another process would."""
    return Cluster(str(cluster.path))


def recreate(cluster: Cluster, config: TopicConfig | None = None, partitions: int = 1) -> None:
    other = another(cluster)
    other.delete_topic("events")
    other.create_topic("events", partitions=partitions, config=config)


def alter(cluster: Cluster, **config: Any) -> None:
    changes = {topic_key(field): value for field, value in config.items()}
    another(cluster).alter_topic("events", changes)


def test_append_obeys_the_settings_of_the_recreated_topic(cluster: Cluster) -> None:
    recreate(cluster, SMALL_LIMIT)
    large, small = batch(n=20), batch(n=1)

    assert isinstance(append(cluster, large).error, RecordTooLargeError)
    assert append(cluster, small).base_offset == 0
    assert contents(another(cluster)) == {EVENTS: records_of([small])}


def test_settings_count_that_changed_while_an_append_waited_for_the_lock(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = store_of(cluster).manager.locks.partitions

    def change_first(*arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        recreate(cluster, SMALL_LIMIT)
        return take(*arguments, **named)

    monkeypatch.setattr(store_of(cluster).manager.locks, "partitions", change_first)

    assert isinstance(append(cluster, batch(n=20)).error, RecordTooLargeError)
    assert contents(another(cluster)) == {EVENTS: []}


def test_a_batch_of_the_topic_before_is_no_duplicate_in_the_recreated_one(cluster: Cluster) -> None:
    first = idempotent_batch(producer_id=1, base_sequence=0)
    append(cluster, first)
    recreate(cluster)

    assert append(cluster, first).base_offset == 0
    assert len(contents(another(cluster))[EVENTS]) == len(records_of([first]))


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda cluster, data: append(cluster, data), id="append"),
        pytest.param(
            lambda cluster, data: builders.write(cluster, {("events", 0): [data]}), id="commit"
        ),
    ],
)
def test_writers_use_a_setting_that_was_altered(
    cluster: Cluster, write: Callable[[Cluster, bytes], object]
) -> None:
    write(cluster, batch())
    alter(cluster, message_timestamp_type=LOG_APPEND_TIME)
    write(cluster, batch())

    times = [record.timestamp for record in contents(cluster)[EVENTS]]
    assert len(set(times[-6:-3])) > 1, "their own"
    assert len(set(times[-3:])) == 1, "the append's"


def test_a_read_finds_what_the_recreated_topic_holds(cluster: Cluster) -> None:
    data = batch(n=5, seed=3)
    recreate(cluster)
    append(another(cluster), data)

    assert contents(cluster) == {EVENTS: records_of([data])}


def test_partitions_that_were_added_are_found(cluster: Cluster) -> None:
    recreate(cluster, partitions=3)

    assert [tp.partition for tp in cluster.partitions("events")] == [0, 1, 2]
    assert append_records(cluster, {("events", 2): batch()})["events", 2].base_offset == 0


def test_partitions_that_are_gone_are_refused(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 3})
    append_records(cluster, {("events", 2): batch()})
    recreate(cluster, partitions=2)

    (answer,) = append_records(cluster, {("events", 2): batch()}).values()

    assert str(answer.error) == (
        "partition events-2 does not exist: topic 'events' has partitions 0 to 1"
    )


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda cluster: cluster.describe(["events"]), id="describe"),
        pytest.param(lambda cluster: list(cluster.read("events")), id="read"),
        pytest.param(lambda cluster: cluster.delete_records({EVENTS: 1}), id="delete records"),
        pytest.param(lambda cluster: cluster.replicate(["events"]), id="replicate"),
    ],
)
def test_a_topic_that_was_deleted_is_unknown(
    cluster: Cluster, use: Callable[[Cluster], object]
) -> None:
    another(cluster).delete_topic("events")
    with pytest.raises(UnknownTopicOrPartitionError):
        use(cluster)


@pytest.fixture
def three_topics(tmp_path: Path) -> Cluster:
    """Each with one segment too many."""
    size = len(batch())
    config = TopicConfig(segment_bytes=size, retention_bytes=size, file_delete_delay_ms=0)
    cluster = builders.a_cluster(tmp_path, topics=dict.fromkeys("abc", 1), config=config)
    for name in "abc":
        append_records(cluster, {(name, 0): batch()})
        append_records(cluster, {(name, 0): batch(seed=1)})
    cluster.alter_topic("c", {"retention.bytes": 0})
    return cluster


def deleting(name: str, cluster: Cluster, answer: Callable[..., Any]) -> Callable[..., Any]:
    """Have a topic deleted by another process after the first answer that tells of it."""

    def answer_first(*arguments: Any, **named: Any) -> Any:
        found = answer(*arguments, **named)
        if name in str(found) and name in another(cluster).topic_names():
            another(cluster).delete_topic(name)
        return found

    return answer_first


def test_a_topic_that_is_deleted_while_it_is_described_is_unknown(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = another(cluster)  # has not listed the segments yet
    files, is_deleted = store_of(reader).files, []
    found = files.list

    def listed(directory: Path) -> list[str]:
        if directory.name == "events-0" and not is_deleted:
            is_deleted.append(another(cluster).delete_topic("events"))
        return found(directory)

    monkeypatch.setattr(files, "list", listed)
    with pytest.raises(UnknownTopicOrPartitionError):
        reader.describe(["events"])
    assert is_deleted


@pytest.mark.parametrize("when", ["after its name", "after its partitions"])
@pytest.mark.parametrize(
    ("use", "expected"),
    [
        pytest.param(lambda cluster: cluster.collect_garbage().partitions, AC, id="gc"),
        pytest.param(
            lambda cluster: cluster.collect_garbage(dry_run=True).partitions, AC, id="gc dry run"
        ),
        pytest.param(
            lambda cluster: {
                report.topic_partition: report.damaged
                for report in cluster.repair(dry_run=True)
                if report.topic_partition in ABC
            },
            dict.fromkeys(AC, ()),
            id="repair",
        ),
        pytest.param(lambda cluster: cluster.replicate(), [], id="replicate"),
        pytest.param(lambda cluster: cluster.log_dirs()[0].replicas, 2 + len(AC), id="log dirs"),
    ],
)
def test_work_over_all_topics_skips_those_deleted_meanwhile(
    three_topics: Cluster,
    use: Callable[[Cluster], Any],
    expected: object,
    when: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = store_of(three_topics)
    answering, method = (
        (parts.metadata.topics, "names")
        if when == "after its name"
        else (parts.manager, "partitions")
    )
    monkeypatch.setattr(answering, method, deleting("b", three_topics, getattr(answering, method)))

    found = use(three_topics)
    assert (found.keys() if expected is AC else found) == expected
    assert three_topics.topic_names() == ["a", "c"]


def test_the_list_of_topics_has_none_that_was_deleted_meanwhile(
    three_topics: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = store_of(three_topics).metadata.topics
    monkeypatch.setattr(files, "names", deleting("b", three_topics, files.names))

    assert [topic.name for topic in three_topics.topics()] == ["a", "c"]


def test_topics_that_are_named_have_to_exist(three_topics: Cluster) -> None:
    for use in (
        lambda: three_topics.collect_garbage(["a", "lost"]),
        lambda: three_topics.collect_garbage(["a", "lost"], dry_run=True),
        lambda: three_topics.replicate(["a", "lost"]),
    ):
        with pytest.raises(UnknownTopicOrPartitionError, match="'lost' does not exist"):
            use()


def test_a_commit_is_followed_by_retention_though_one_of_its_topics_was_deleted(
    three_topics: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = store_of(three_topics).manager
    delete = manager.delete_old_segments

    def delete_late(*arguments: Any, **named: Any) -> Any:
        another(three_topics).delete_topic("b")
        return delete(*arguments, **named)

    monkeypatch.setattr(manager, "delete_old_segments", delete_late)
    builders.write(three_topics, {("b", 0): [batch()], ("c", 0): [batch()] * 3})

    assert three_topics.describe("c")[0].offsets.log_start_offset == 15


def test_an_append_to_a_topic_that_was_deleted_is_refused(cluster: Cluster) -> None:
    another(cluster).delete_topic("events")

    assert isinstance(append(cluster, batch()).error, UnknownTopicOrPartitionError)
    assert not (cluster.path / "broker-0" / "events-0").exists()


def test_a_job_that_began_before_the_topic_was_recreated_is_refused(cluster: Cluster) -> None:
    staged = builders.staged(cluster, {("events", 0): [batch()]})
    recreate(cluster)
    with pytest.raises(CommitError, match="topic 'events' was recreated while the job ran"):
        builders.commit(cluster, staged)

    assert contents(cluster) == {EVENTS: []}


def test_a_job_that_wrote_to_more_partitions_than_the_recreated_topic_has_is_to_run_again(
    tmp_path: Path,
) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 3})
    staged = builders.staged(cluster, {("events", 2): [batch()]})
    recreate(cluster, partitions=1)
    with pytest.raises(
        CommitError, match=r"topic 'events' was recreated while the job ran.*run the job again"
    ):
        builders.commit(cluster, staged)


def test_an_append_goes_on_while_the_topic_is_recreated_again_and_again(cluster: Cluster) -> None:
    other = another(cluster)
    for number in range(20):
        other.delete_topic("events")
        other.create_topic("events")
        data = batch(seed=number)

        assert append(cluster, data).base_offset == 0
        assert contents(cluster) == {EVENTS: records_of([data])}


def test_a_change_that_looks_like_the_topic_before_the_last_is_seen(tmp_path: Path) -> None:
    """The file may get the inode of the one before the last, within one tick of the clock."""

    class NeverFlushing(Files):
        def flush_descriptor(self, descriptor: int) -> None:
            del descriptor

    cluster = builders.a_cluster(tmp_path, files=NeverFlushing())
    reader, topic = another(cluster), cluster.topic("events")
    for number in range(100, 300):
        for changed in (number + 1000, number):
            config = replace(topic.config, retention_ms=changed)
            store_of(cluster).metadata.topics.write(replace(topic, config=config))

        assert reader.topic("events").config.retention_ms == number


def test_errors_of_a_deleted_topic_are_of_the_package(cluster: Cluster) -> None:
    partition = store_of(cluster).manager.partition(EVENTS)
    another(cluster).delete_topic("events")
    with pytest.raises(KBatchError):
        partition.ready_locked(flush=False)
