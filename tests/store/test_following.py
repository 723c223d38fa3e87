"""A loop over new records, wherever topics are: where it starts and ends, what comes and goes meanwhile, and groups."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka
import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch import Cluster, Following, TopicPartition
from spark_kbatch.consumer import following
from spark_kbatch.errors import (
    ConfigError,
    DisconnectedError,
    GroupNotEmptyError,
    GroupOffsetsMovedError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.remote.client import close_idle_clients
from tests.store.test_any_place import PLACES, send

FIRST, SECOND = TopicPartition("events", 0), TopicPartition("events", 1)
SOON_S = 1.0  # without a record, after which a loop here ends


@pytest.fixture(params=[name for name in PLACES if "merged" not in name])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with PLACES[request.param](tmp_path) as cluster:
        cluster.create_topic("events")
        yield cluster


@pytest.fixture(params=[name for name in PLACES if "merged" not in name and name != "memory"])
def grouped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A place that keeps groups."""
    with PLACES[request.param](tmp_path) as cluster:
        cluster.create_topic("events")
        yield cluster


def stands(cluster: Cluster) -> int | None:
    return cluster.groups()[0].offsets[FIRST].committed_offset


def follow(cluster: Cluster, topics: Any = "events", **given: Any) -> Following:
    merged: dict[str, Any] = {"timeout": SOON_S, "columns": ["value"], "text": True} | given
    return cluster.follow(topics, **merged)


def values(batches: Any) -> list[str]:
    return [one for batch in batches for one in batch.column("value").to_pylist()]


def take(records: Following, count: int) -> list[str]:
    """Return the next values, which may come in fewer batches."""
    found = list[str]()
    while len(found) < count:
        found += values([next(records)])
    return found


def test_it_hands_out_what_comes_from_now_on(cluster: Cluster) -> None:
    send(cluster, "events", "before")
    with follow(cluster) as records:
        send(cluster, "events", "a", "b")
        assert values(records) == ["a", "b"]
        assert records.positions == {FIRST: 3}
        assert records.schema == pa.schema([("value", pa.string())])
        assert list(records) == []


def test_it_starts_and_ends_where_it_is_asked_to(cluster: Cluster) -> None:
    send(cluster, "events", "a", "b", "c", "d")  # of the times 1, 3, 2, 4
    at = datetime.datetime.fromtimestamp(2.5, datetime.UTC)
    assert values(follow(cluster, start="earliest", stop_at="latest", timeout=None)) == [*"abcd"]
    assert values(follow(cluster, start=2)) == ["c", "d"]
    assert values(follow(cluster, start={0: at}, stop_at={0: 3}, timeout=None)) == ["b", "c"]
    assert values(follow(cluster, start="earliest", stop_at=at, timeout=None)) == ["a"]
    long_ago = datetime.datetime.now(datetime.UTC)
    assert values(follow(cluster, start=3, stop_at=long_ago, timeout=None)) == ["d"]
    with follow(cluster, start="earliest", stop_at=5, timeout=None) as records:
        assert take(records, 4) == [*"abcd"]
        send(cluster, "events", "e", "f")
        assert values(records) == ["e"]
    with pytest.raises(OffsetOutOfRangeError):
        follow(cluster, start=7)


def test_it_stops_when_it_is_told_to(cluster: Cluster) -> None:
    send(cluster, "events", "a", "b")
    event, seen = threading.Event(), list[str]()
    for batch in follow(cluster, start="earliest", stop=event, timeout=None):
        seen += values([batch])
        event.set()
    assert seen in (["a"], ["a", "b"])  # as many as came at once
    assert values(follow(cluster, start="earliest", stop=lambda: True, timeout=None)) == []
    records = follow(cluster, timeout=None)
    closing = threading.Timer(0.3, records.close)
    closing.start()
    assert values(records) == []
    closing.join()


def test_a_condition_is_asked_and_columns_are_typed(cluster: Cluster) -> None:
    send(cluster, "events", '{"id": 1}', '{"id": 2}')
    typed = {"value_format": "json", "value_schema": "id bigint", "text": False}
    records = follow(cluster, start="earliest", where="value.id > 1", columns=["value"], **typed)
    assert [one for batch in records for one in batch.column("value").to_pylist()] == [{"id": 2}]
    assert records.positions == {FIRST: 2}


def test_new_partitions_and_topics_of_a_pattern_are_read_from_their_start(cluster: Cluster) -> None:
    with follow(cluster, re.compile("^e"), timeout=5 * SOON_S) as records:
        cluster.create_partitions("events", 2)
        cluster.create_topic("else")
        cluster.create_topic("other")
        with cluster.producer() as producer:
            producer.send("events", "a", partition=1)
            producer.send("else", "b", partition=0)
            producer.send("other", "c", partition=0)
        assert {*take(records, 2)} == {"a", "b"}
        assert set(records.positions) == {FIRST, SECOND, TopicPartition("else", 0)}


def test_a_topic_that_is_deleted_is_an_error_if_it_was_named(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic("else")
    named, by_pattern = follow(cluster, ["events", "else"]), follow(cluster, re.compile("^e"))
    cluster.delete_topic("else")
    with pytest.raises(
        UnknownTopicOrPartitionError, match=r"deleted while it was followed.*'else'"
    ):
        next(named)
    send(cluster, "events", "a")
    assert values(by_pattern) == ["a"]
    assert "deleted, and followed no more: else" in caplog.messages


def test_a_topic_that_is_recreated_is_an_error_if_it_was_named(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    send(cluster, "events", "a")
    named = follow(cluster, start="earliest")
    by_pattern = follow(cluster, re.compile("^e"), start="earliest", timeout=5 * SOON_S)
    assert values([next(named), next(by_pattern)]) == ["a", "a"]
    cluster.delete_topic("events")
    cluster.create_topic("events")
    send(cluster, "events", "b", "c", "d")
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted and created again"):
        next(named)
    assert values(by_pattern) == ["b", "c", "d"]
    assert "deleted and created again, so followed from the start: events" in caplog.messages


def test_a_topic_with_partitions_that_is_recreated_while_it_is_read_is_read_anew(
    cluster: Cluster,
) -> None:
    cluster.create_topic("else", 3)
    with cluster.producer() as producer:
        for number in range(3):
            producer.send("else", "old", partition=number)
    records = follow(cluster, re.compile("^else"), start="earliest", timeout=5 * SOON_S)
    assert take(records, 1) == ["old"]
    cluster.delete_topic("else")
    cluster.create_topic("else", 2)
    with cluster.producer() as producer:
        producer.send("else", "a", partition=0)
        producer.send("else", "b", partition=1)
    seen = list[str]()
    while not {*seen} >= {"a", "b"}:
        seen += take(records, 1)
    assert sorted(one for one in seen if one != "old") == ["a", "b"]


def test_records_that_are_deleted_before_they_are_read_are_warned_of(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with follow(cluster, re.compile("^e")) as records:
        send(cluster, "events", "a", "b", "c")
        cluster.create_topic("else")
        send(cluster, "else", "d", "e")
        cluster.delete_records({FIRST: 2, TopicPartition("else", 0): 1})
        assert {*values(records)} == {"c", "e"}
    said = [one for one in caplog.messages if "deleted before they were read" in one]
    assert said == [f"offsets 0 to 2 of {FIRST} were deleted before they were read"]


def test_a_log_that_ends_before_what_was_read_is_an_error(cluster: Cluster) -> None:
    send(cluster, "events", "a", "b")
    records = follow(cluster, start="earliest")
    assert values(records) == ["a", "b"]
    again = follow(cluster, start="earliest")
    again._looks.positions[FIRST] = 9  # as a log that was truncated
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 9 .* lost records since"):
        next(again)


def test_a_partition_that_cannot_be_read_waits_for_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_PAUSE_MAX_S", 0.01)
    cluster.create_partitions("events", 2)
    records = follow(cluster, start="earliest", timeout=3 * SOON_S)
    real: Callable[..., Any] = records._read
    away = [True]

    def read(wanted: Any, *given: Any) -> Any:
        if away[0] and wanted.topic_partition == FIRST:
            raise KafkaStorageError("the disk is away")
        return real(wanted, *given)

    records._read = read
    with cluster.producer() as producer:
        producer.send("events", "a", partition=0)
        producer.send("events", "b", partition=1)
    assert take(records, 1) == ["b"]
    with pytest.raises(KafkaStorageError, match="the disk is away"):
        next(records)
    away[0] = False
    assert take(records, 1) == ["a"]


def test_the_error_of_a_function_that_stops_is_the_callers(cluster: Cluster) -> None:
    def stop() -> bool:
        raise FileNotFoundError("flag")

    with pytest.raises(FileNotFoundError, match=r"^flag$"):
        next(follow(cluster, stop=stop, timeout=None))


def test_what_is_away_is_asked_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = [3]
    real: Callable[..., Any] = following.Looks.look

    def look(looks: following.Looks) -> Any:
        away[0] -= 1
        if away[0] >= 0:
            raise KafkaStorageError("the disk is away")
        return real(looks)

    monkeypatch.setattr(following, "_PAUSE_MAX_S", 0.01)
    monkeypatch.setattr(following.Looks, "look", look)
    with follow(cluster, timeout=10) as records:
        send(cluster, "events", "a")
        assert values([next(records)]) == ["a"]
    assert caplog.messages.count("the disk is away; it is asked again") == 1
    away[0] = 1_000_000
    with pytest.raises(KafkaStorageError, match="the disk is away"):
        list(follow(cluster, timeout=0.1))


def test_an_interrupt_loses_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    send(cluster, "events", "a", "b", "c")
    records = follow(cluster, start="earliest", isolation_level="read_uncommitted")
    real: Callable[..., Any] = records._read
    interrupts = iter([True, True])

    def read(*given: Any) -> Iterator[pa.RecordBatch]:
        yield from real(*given)
        if next(interrupts, False):
            raise KeyboardInterrupt

    records._read = read
    seen = list[str]()
    for _ in range(3):
        with contextlib.suppress(KeyboardInterrupt):
            for batch in records:
                seen += values([batch])
    assert seen == ["a", "b", "c"]


def test_it_is_iterated_in_asyncio_and_a_cancelled_wait_loses_nothing(cluster: Cluster) -> None:
    async def run() -> list[str]:
        seen = list[str]()
        async with follow(cluster, timeout=None) as records:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(records), 0.05)
            await asyncio.to_thread(send, cluster, "events", "a", "b")
            async for batch in records:
                seen += values([batch])
                if len(seen) == 2:
                    break
        return [*seen, *values([one async for one in records])]

    assert asyncio.run(asyncio.wait_for(run(), 60)) == ["a", "b"]


def test_a_group_goes_on_where_it_stands(grouped: Cluster) -> None:
    with follow(grouped, group="billing") as records:
        send(grouped, "events", "a", "b")
        assert take(records, 2) == ["a", "b"]
    send(grouped, "events", "c")
    with follow(grouped, group="billing", start="earliest") as records:
        assert values(records)[-1:] == ["c"]
    (group,) = grouped.groups()
    assert (group.group_id, group.state, group.offsets[FIRST].committed_offset) == (
        "billing", "Empty", 3,
    )  # fmt: skip
    grouped.alter_group_offsets("billing", {FIRST: 1})
    assert values(follow(grouped, group="billing")) == ["b", "c"]


def test_a_new_group_stands_where_it_began(grouped: Cluster) -> None:
    send(grouped, "events", "before")
    follow(grouped, group="billing")  # and is killed before its first batch
    send(grouped, "events", "a")
    grouped.create_partitions("events", 2)
    another = contextlib.nullcontext(grouped)
    if grouped.is_remote:  # whose client learns of a new partition minutes later
        another = spark_kbatch.connect(grouped.address, client_id="another")  # type: ignore[assignment]
    with another as cluster, cluster.producer() as producer:
        producer.send("events", "b", partition=1)
    assert {*values(follow(grouped, group="billing"))} == {"a", "b"}
    assert values(follow(grouped, group="another")) == []


def test_of_two_loops_of_a_group_one_ends_with_an_error(
    grouped: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.bucket.groups.BucketGroups.commit_pause_ms", 0)
    first, second = (follow(grouped, group="billing", timeout=None) for _ in range(2))
    send(grouped, "events", "a")
    assert take(first, 1) == take(second, 1) == ["a"]
    send(grouped, "events", "b")
    assert take(first, 1) == ["b"]
    with pytest.raises(
        GroupOffsetsMovedError, match=r"'billing' of .* \(events-0 from 0 to 1\), by another loop"
    ):
        next(second)
    grouped.alter_group_offsets("billing", {FIRST: 0})
    with pytest.raises(GroupOffsetsMovedError, match="from 1 to 0"):
        next(first)
    assert values(follow(grouped, group="billing")) == ["a", "b"]


def test_a_commit_without_an_answer_is_no_other_loops(
    grouped: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.bucket.groups.BucketGroups.commit_pause_ms", 0)
    monkeypatch.setattr(following, "_PAUSE_MAX_S", 0.01)
    records = follow(grouped, group="billing")
    groups = type(records._group[0])  # type: ignore[index]
    real: Callable[..., Any] = groups.alter_offsets
    is_lost = iter([True])

    def alter_offsets(*given: Any) -> None:
        real(*given)
        if next(is_lost, False):
            raise DisconnectedError(grouped.address, "the answer is lost")

    send(grouped, "events", "a")
    assert take(records, 1) == ["a"]
    monkeypatch.setattr(groups, "alter_offsets", alter_offsets)
    assert values(records) == []
    assert stands(grouped) == 1


def test_a_batch_counts_once_the_next_is_asked_for(
    grouped: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.bucket.groups.BucketGroups.commit_pause_ms", 0)
    send(grouped, "events", "a")
    records = follow(grouped, group="billing", start="earliest", timeout=None)
    next(records)
    assert stands(grouped) == 0
    send(grouped, "events", "b")
    next(records)
    assert stands(grouped) == 1
    with pytest.raises(ZeroDivisionError), records:
        raise ZeroDivisionError
    assert stands(grouped) == 1
    with follow(grouped, group="billing") as again:
        next(again)
    assert stands(grouped) == 2


def test_a_loop_that_is_closed_in_work_counts_its_batch_once_it_asks(grouped: Cluster) -> None:
    send(grouped, "events", "a", "b", "c")
    records = follow(grouped, group="billing", start="earliest", stop_at=1, timeout=None)
    assert values([next(records)]) == ["a"]
    closing = threading.Thread(target=records.close)
    closing.start()
    closing.join()
    assert stands(grouped) == 0
    assert list(records) == []
    assert stands(grouped) == 1


def test_what_an_error_follows_is_committed_but_for_the_last_batch(
    grouped: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_COMMIT_MS", 60_000)
    send(grouped, "events", "a", "b")
    records = follow(grouped, group="billing", start="earliest")
    seen = take(records, 1)
    send(grouped, "events", "c")
    with contextlib.suppress(ZeroDivisionError), records:
        while "c" not in seen:
            seen += take(records, 1)
        raise ZeroDivisionError
    assert stands(grouped) == 2


def test_a_loop_that_is_asked_to_stop_ends_though_it_cannot_commit(
    grouped: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(grouped, "events", "a")
    records = follow(grouped, group="billing", start="earliest", timeout=None)
    next(records)

    def refuse(*_: object) -> None:
        raise KafkaStorageError("the disk is away")

    groups = type(records._group[0])  # type: ignore[index]
    monkeypatch.setattr(groups, "alter_offsets", refuse)
    records.close()
    with pytest.raises(KafkaStorageError, match="the disk is away"):
        next(records)
    monkeypatch.undo()
    assert list(records) == []
    assert stands(grouped) == 1


def test_a_commit_is_for_the_topic_that_was_read_whatever_has_its_name_now(
    grouped: Cluster,
) -> None:
    send(grouped, "events", "a", "b")
    before = {"events": grouped.topic("events").topic_id}
    grouped.delete_topic("events")
    grouped.create_topic("events")
    groups = grouped._groups()
    groups.alter_offsets("billing", {FIRST: 0})
    groups.alter_offsets("billing", {FIRST: 2}, before)
    assert groups.committed("billing").get(FIRST, 0) == 0
    groups.alter_offsets("billing", {FIRST: 1}, {"events": grouped.topic("events").topic_id})
    assert groups.committed("billing") == {FIRST: 1}


def test_a_bucket_is_not_asked_to_store_each_batchs_offset(tmp_path: Path) -> None:
    with PLACES["bucket"](tmp_path) as cluster:
        cluster.create_topic("events")
        with follow(cluster, group="billing", timeout=None) as records:
            for value in "abcd":
                send(cluster, "events", value)
                assert take(records, 1) == [value]
            assert stands(cluster) == 0
        assert stands(cluster) == 4


def test_an_old_offset_is_not_one_of_a_topic_that_was_recreated(grouped: Cluster) -> None:
    send(grouped, "events", "a", "b")
    with follow(grouped, group="billing", start="earliest") as records:
        assert values(records) == ["a", "b"]
        grouped.delete_topic("events")
        grouped.create_topic("events")
        send(grouped, "events", "c", "d", "e")
    assert values(follow(grouped, group="billing", start="earliest")) == ["c", "d", "e"]


def test_a_recreated_topic_that_comes_as_far_as_the_old_one_is_committed(grouped: Cluster) -> None:
    given: dict[str, Any] = {"group": "billing", "start": "earliest"}
    send(grouped, "events", "a")
    with follow(grouped, re.compile("^e"), **given) as records:
        assert values(records) == ["a"]
    with follow(grouped, re.compile("^e"), timeout=5 * SOON_S, **given) as records:
        send(grouped, "events", "b")
        assert take(records, 1) == ["b"]
        grouped.delete_topic("events")
        grouped.create_topic("events")
        send(grouped, "events", "c", "d")
        assert take(records, 2) == ["c", "d"]
    assert values(follow(grouped, re.compile("^e"), **given)) == []


def test_records_of_another_topic_of_the_name_are_not_handed_out_before_its_start(
    cluster: Cluster,
) -> None:
    send(cluster, "events", "a")
    records = follow(cluster, re.compile("^e"), timeout=5 * SOON_S)
    real: Callable[..., Any] = records._read
    is_recreated = iter([True])

    def read(*given: Any) -> Iterator[pa.RecordBatch]:
        rows = [*real(*given)]
        if next(is_recreated, False):
            cluster.delete_topic("events")
            cluster.create_topic("events")
            send(cluster, "events", "c", "d", "e")
        yield from rows  # as if they were the new topic's

    records._read = read
    send(cluster, "events", "b")
    assert values(records) == ["c", "d", "e"]


def test_offsets_are_committed_again_though_nothing_comes(
    grouped: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with follow(grouped, group="billing") as records:
        grouped.delete_group("billing")
        assert values(records) == []
        assert grouped.groups() == []
    with follow(grouped, group="billing") as records:
        grouped.delete_group("billing")
        monkeypatch.setattr(following, "AGAIN_MS", 1)
        assert values(records) == []
    assert [one.group_id for one in grouped.groups()] == ["billing"]


def test_a_group_with_members_is_refused(tmp_path: Path) -> None:
    with PLACES["folder"](tmp_path) as folder, folder.serve() as server:
        folder.create_topic("events")
        send(folder, "events", "a")
        consumer = kafka.KafkaConsumer(
            "events", bootstrap_servers=server.bootstrap_servers, group_id="billing",
            auto_offset_reset="earliest", consumer_timeout_ms=60_000,
        )  # fmt: skip
        with contextlib.closing(consumer), spark_kbatch.open(server.bootstrap_servers) as remote:
            assert next(consumer).offset == 0
            for cluster in (folder, remote):
                with pytest.raises(GroupNotEmptyError, match="has members: stop them first"):
                    follow(cluster, group="billing")
        close_idle_clients()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stop": 5}, "stop is 5; accepted: a threading.Event, or a function"),
        ({"timeout": "1"}, "timeout"),
        ({"start": "now"}, "start is 'now'; accepted: 'earliest' or 'latest', an offset"),
        ({"stop_at": "earliest"}, "stop_at"),
        ({"stop_at": {3: 5}}, "stop_at names the partitions events-3"),
        ({"columns": ["valu"]}, "columns names 'valu'"),
        ({"where": "key = 5"}, "where"),
        ({"group": 5}, "group"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_at_once(cluster: Cluster, given: Any, said: str) -> None:
    if "group" in given and not cluster.has("groups"):
        said = "no consumer groups are kept in"
    with pytest.raises(ConfigError, match=said):
        follow(cluster, **given)
