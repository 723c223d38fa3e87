"""Transactions of clients: what each request is answered, and what readers of committed records see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.group_records import CommittedOffset, OffsetKey
from spark_kbatch.cluster.groups import read_groups
from spark_kbatch.cluster.offsets_store import OffsetsStore
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.cluster.transactions.state import Status
from spark_kbatch.commit.internal_topics import CONSUMER_OFFSETS
from spark_kbatch.model import TopicPartition
from spark_kbatch.server.server import Server
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from spark_kbatch.wire.records import produce_request
from tests.support import builders
from tests.support.raw_clients import RawClient, fetch, fetched, produce, produced, request
from tests.support.raw_transactions import (
    EVENTS,
    OTHER,
    RawProducer,
    committed,
    state_of,
    until_stable,
    until_status,
    values,
)
from tests.support.store import store_of
from tests.support.waiting import until

OK = ErrorCode.NONE


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with builders.a_cluster(tmp_path, topics={"events": 2, "in": 2}) as cluster:
        yield cluster


# What readers see.


def test_a_committed_transaction_is_seen_after_its_end_and_by_all_readers(
    cluster: Cluster, client: RawClient
) -> None:
    producer = RawProducer(client).start().write(EVENTS, OTHER, n=2)
    found = committed(client)
    assert (found.last_stable_offset, found.high_watermark, len(found.records)) == (0, 2, 0)
    assert values(cluster) == []
    assert values(cluster, committed=False) == [b"v"] * 4

    producer.end(commit=True)
    until_stable(cluster)
    until_stable(cluster, OTHER)

    found = committed(client)
    assert (found.last_stable_offset, found.high_watermark) == (3, 3)
    assert found.aborted_transactions == []
    assert values(cluster) == [b"v"] * 4


def test_an_aborted_transaction_is_named_in_a_fetch_and_not_read(
    cluster: Cluster, client: RawClient
) -> None:
    producer = RawProducer(client).start()
    producer.write(EVENTS, n=2, value=b"no").end(commit=False)
    producer.write(EVENTS, value=b"yes").end(commit=True)
    until_status(cluster, Status.COMPLETE_COMMIT)

    (aborted,) = committed(client).aborted_transactions
    assert (aborted.producer_id, aborted.first_offset) == (producer.producer_id, 0)
    assert committed(client, level=0).aborted_transactions is None
    assert values(cluster) == [b"yes"]
    assert values(cluster, committed=False) == [b"no", b"no", b"yes"]


def test_an_open_transaction_holds_back_what_others_write_after_it(
    cluster: Cluster, client: RawClient
) -> None:
    client.ask(ApiKey.PRODUCE, 9, produce(builders.batch(n=1)))
    slow = RawProducer(client, "slow").start().write(EVENTS, value=b"slow")
    RawProducer(client, "fast").start().write(EVENTS, value=b"fast").end(commit=True)
    until_status(cluster, Status.COMPLETE_COMMIT, "fast")
    assert committed(client).last_stable_offset == 1
    assert len(values(cluster)) == 1
    asked = protocol.ListOffsetsRequest(isolation_level=1)
    topic_of = protocol.ListOffsetsRequest.ListOffsetsTopic
    asked.topics = [
        topic_of(
            name="events",
            partitions=[topic_of.ListOffsetsPartition(partition_index=0, timestamp=-1)],
        )
    ]
    answer = client.ask(ApiKey.LIST_OFFSETS, 7, asked)
    assert answer.topics[0].partitions[0].offset == 1

    slow.end(commit=False)
    until_stable(cluster)
    assert [one for one in values(cluster) if one in (b"slow", b"fast")] == [b"fast"]


def test_a_fetch_that_waits_for_committed_records_is_answered_at_the_marker(
    cluster: Cluster, server: Server, client: RawClient
) -> None:
    producer = RawProducer(client).start().write(EVENTS)
    asked = fetch(0, max_wait_ms=30_000)
    asked.isolation_level = 1
    with RawClient(server, timeout_s=30) as reader:
        started_s = time.monotonic()
        reader.send(request(ApiKey.FETCH, 12, asked))
        time.sleep(0.3)
        producer.end(commit=True)
        found = fetched(reader.receive(ApiKey.FETCH, 12))
    assert found.records
    assert time.monotonic() - started_s < 20


def test_a_transaction_without_records_leaves_a_marker_alone(
    cluster: Cluster, client: RawClient
) -> None:
    RawProducer(client).start().add(EVENTS).end(commit=True)
    until_status(cluster, Status.COMPLETE_COMMIT)

    assert committed(client).last_stable_offset == 1
    assert values(cluster) == []


# Who may write.


def test_of_twins_the_first_is_fenced_and_its_records_are_not_read(
    cluster: Cluster, client: RawClient
) -> None:
    first = RawProducer(client).start().write(EVENTS, value=b"first")
    second = RawProducer(client)
    assert second.ask_to_start() is ErrorCode.CONCURRENT_TRANSACTIONS
    second.start().write(EVENTS, value=b"second")

    assert first.produce(EVENTS) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert first.ask_to_add(EVENTS) == [ErrorCode.PRODUCER_FENCED]
    assert first.ask_to_add(EVENTS, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert first.add_group("g") is ErrorCode.PRODUCER_FENCED
    assert first.add_group("g", version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert first.ask_to_end(commit=True) is ErrorCode.PRODUCER_FENCED
    assert first.ask_to_end(commit=True, version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert first.ask_to_start(goes_on=True) is ErrorCode.PRODUCER_FENCED
    assert first.ask_to_start(goes_on=True, version=3) is ErrorCode.INVALID_PRODUCER_EPOCH
    second.end(commit=True)
    until_stable(cluster)
    assert values(cluster) == [b"second"]


def test_a_batch_is_taken_only_in_an_open_transaction_with_its_partition(
    cluster: Cluster, client: RawClient
) -> None:
    producer = RawProducer(client).start()
    assert producer.produce(EVENTS) is ErrorCode.INVALID_TXN_STATE
    producer.start().write(OTHER)
    assert producer.produce(EVENTS) is ErrorCode.INVALID_TXN_STATE
    producer.end(commit=True)
    until_status(cluster, Status.COMPLETE_COMMIT)
    assert producer.produce(OTHER) is ErrorCode.INVALID_TXN_STATE
    stranger = RawProducer(client, "unknown")
    stranger.producer_id, stranger.epoch = 999, 0
    assert stranger.produce(EVENTS) is ErrorCode.INVALID_TXN_STATE

    assert values(cluster, committed=False) == [b"v"]


@pytest.mark.parametrize("transactional_id", [None, "t"])
def test_a_transactional_batch_comes_with_a_transactional_id(
    cluster: Cluster, client: RawClient, transactional_id: str | None
) -> None:
    """Without one the request is refused as a whole."""
    producer = RawProducer(client).start().add(EVENTS)
    asked = produce_request(
        -1, 10_000, {EVENTS: producer.batch(EVENTS), OTHER: builders.batch(n=1)}, transactional_id
    )
    answer = client.ask(ApiKey.PRODUCE, 11, asked)
    producer.end(commit=True)
    until_status(cluster, Status.COMPLETE_COMMIT)

    error = OK if transactional_id else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    codes = [one.error_code for topic in answer.responses for one in topic.partition_responses]
    assert codes == [error, error]
    assert len(values(cluster)) == (2 if transactional_id else 0)


def test_a_producer_that_goes_on_after_an_error_keeps_its_id(
    cluster: Cluster, client: RawClient
) -> None:
    producer = RawProducer(client).start().write(EVENTS, value=b"no")
    producer_id = producer.producer_id
    producer.end(commit=False).start(goes_on=True).write(EVENTS, value=b"yes").end(commit=True)
    until_status(cluster, Status.COMPLETE_COMMIT)

    assert (producer.producer_id, producer.epoch) == (producer_id, 1)
    assert values(cluster) == [b"yes"]


def test_a_producer_that_goes_on_during_its_transaction_is_fenced(
    cluster: Cluster, client: RawClient
) -> None:
    """As by a broker, for whom the abort takes the epoch that it would have had."""
    producer = RawProducer(client).start().write(EVENTS)
    assert producer.ask_to_start(goes_on=True) is ErrorCode.CONCURRENT_TRANSACTIONS
    until_status(cluster, Status.COMPLETE_ABORT)

    assert producer.ask_to_start(goes_on=True) is ErrorCode.PRODUCER_FENCED
    assert producer.start().epoch == 2


@pytest.mark.parametrize(
    ("timeout_ms", "error"),
    [
        (1, OK),
        (60_000, OK),
        (60_001, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (-1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_a_time_out_is_one_that_the_server_allows(
    client: RawClient, timeout_ms: int, error: ErrorCode
) -> None:
    producer = RawProducer(client, timeout_ms=timeout_ms)
    until(lambda: producer.ask_to_start() is error)


def test_longer_transactions_can_be_allowed(cluster: Cluster) -> None:
    with (
        cluster.serve(transaction_max_timeout_ms=900_000) as server,
        RawClient(server, timeout_s=60) as client,
    ):
        RawProducer(client, timeout_ms=900_000).start()


def test_what_is_not_a_topic_of_users_is_not_added_nor_anything_beside_it(
    client: RawClient,
) -> None:
    producer = RawProducer(client).start()
    missing = TopicPartition("missing", 0), TopicPartition("events", 9)

    assert producer.ask_to_add(EVENTS, *missing) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2,
    ]  # fmt: skip
    internal = TopicPartition("__consumer_offsets", 0)
    assert producer.ask_to_add(internal) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert producer.ask_to_end(commit=True) is ErrorCode.INVALID_TXN_STATE


def test_an_unknown_id_has_no_transaction(client: RawClient) -> None:
    producer = RawProducer(client, "unknown")
    producer.producer_id, producer.epoch = 5, 0
    until(lambda: producer.ask_to_end(commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert producer.ask_to_add(EVENTS) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert producer.add_group("g") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert producer.commit_offsets("g", {EVENTS: 1}) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


# Ends.


def test_a_second_end_is_answered_like_the_first_and_the_opposite_is_refused(
    cluster: Cluster, client: RawClient
) -> None:
    producer = RawProducer(client).start()
    for commit in (True, False):
        producer.write(EVENTS).end(commit=commit)
        until(lambda commit=commit: producer.ask_to_end(commit=commit) is OK)  # type: ignore[misc]
        assert producer.ask_to_end(commit=not commit) is ErrorCode.INVALID_TXN_STATE
    assert store_of(cluster).manager.replica(EVENTS).state.log_end_offset == 4


def test_while_a_partition_is_locked_its_transactions_end_later_and_others_go_on(
    cluster: Cluster, client: RawClient
) -> None:
    """As beside the commit of a job, which holds the locks of the partitions that it writes to."""
    held = RawProducer(client, "held").start().write(EVENTS)
    free = RawProducer(client, "free").start()
    with FolderParts(cluster.path).manager.locks.partitions([EVENTS]):
        held.end(commit=True)
        for _ in range(20):
            free.write(OTHER).end(commit=True)
        until_status(cluster, Status.COMPLETE_COMMIT, "free")
        assert state_of(cluster, "held").status is Status.PREPARE_COMMIT
        assert held.ask_to_end(commit=True) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert held.ask_to_end(commit=False) is ErrorCode.INVALID_TXN_STATE
        assert held.ask_to_add(EVENTS) == [ErrorCode.CONCURRENT_TRANSACTIONS]
        assert held.ask_to_start() is ErrorCode.CONCURRENT_TRANSACTIONS
        assert values(cluster, EVENTS) == []
    until_status(cluster, Status.COMPLETE_COMMIT, "held")
    assert values(cluster, EVENTS) == [b"v"]


def test_a_transaction_of_a_deleted_topic_ends_all_the_same(
    cluster: Cluster, client: RawClient
) -> None:
    in_deleted = TopicPartition("in", 0)
    producer = RawProducer(client).start().write(in_deleted, EVENTS)
    cluster.delete_topic("in")
    cluster.create_topic("in", partitions=2)
    assert producer.produce(in_deleted) is ErrorCode.INVALID_TXN_STATE
    producer.end(commit=True)
    until_status(cluster, Status.COMPLETE_COMMIT)

    assert values(cluster) == [b"v"]
    assert store_of(cluster).manager.replica(in_deleted).state.log_end_offset == 0


# Time-outs.


def test_a_transaction_whose_time_is_up_is_aborted_and_its_producer_fenced(
    cluster: Cluster, client: RawClient
) -> None:
    producer = RawProducer(client, timeout_ms=300).start().write(EVENTS)
    until_status(cluster, Status.COMPLETE_ABORT)

    assert producer.ask_to_end(commit=True) is ErrorCode.PRODUCER_FENCED
    assert producer.produce(EVENTS) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert values(cluster) == []
    assert committed(client).last_stable_offset == 2
    producer.start().write(EVENTS).end(commit=True)
    until_stable(cluster)
    assert values(cluster) == [b"v"]


def test_a_produce_that_waited_while_its_transaction_timed_out_is_refused(
    cluster: Cluster, server: Server, client: RawClient
) -> None:
    """1. It is queued. 2. The time is up, which is decided. 3. The partition is free: it comes before the marker."""
    producer = RawProducer(client, timeout_ms=500).start().write(EVENTS)
    late = produce(producer.batch(EVENTS), transactional_id="t")
    with RawClient(server, timeout_s=30) as waiting:
        with FolderParts(cluster.path).manager.locks.partitions([EVENTS]):
            waiting.send(request(ApiKey.PRODUCE, 11, late))
            until_status(cluster, Status.PREPARE_ABORT)
        answer = produced(waiting.receive(ApiKey.PRODUCE, 11))
    until_status(cluster, Status.COMPLETE_ABORT)

    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert values(cluster, committed=False) == [b"v"]
    assert store_of(cluster).manager.replica(EVENTS).state.last_stable_offset == 2


# Offsets of groups.


def offsets_of(
    client: RawClient, *, stable: bool, group: str = "g", version: int = 9, number: int = 0
) -> tuple[ErrorCode, int]:
    """Return the error and the offset of a partition of `in`, as a consumer gets them."""
    request_of_group = protocol.OffsetFetchRequest.OffsetFetchRequestGroup
    topic_of = protocol.OffsetFetchRequest.OffsetFetchRequestTopic
    asked = protocol.OffsetFetchRequest(require_stable=stable)
    if version < 8:
        asked.group_id, asked.topics = group, [topic_of(name="in", partition_indexes=[number])]
        one = client.ask(ApiKey.OFFSET_FETCH, version, asked).topics[0].partitions[0]
    else:
        topics = [request_of_group.OffsetFetchRequestTopics(name="in", partition_indexes=[number])]
        asked.groups = [request_of_group(group_id=group, topics=topics)]
        answer = client.ask(ApiKey.OFFSET_FETCH, version, asked)
        one = answer.groups[0].topics[0].partitions[0]
    return ErrorCode(one.error_code), one.committed_offset


IN = TopicPartition("in", 0)


@pytest.mark.parametrize("version", [7, 9])
def test_offsets_of_a_transaction_are_pending_until_it_is_committed(
    cluster: Cluster, client: RawClient, version: int
) -> None:
    def seen(stable: bool) -> tuple[ErrorCode, int]:
        return offsets_of(client, stable=stable, version=version)

    producer = RawProducer(client).start()
    assert producer.add_group("g") is OK
    assert producer.commit_offsets("g", {IN: 5}) == [OK]
    assert seen(stable=False) == (OK, -1)
    assert seen(stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert offsets_of(client, stable=True, version=version, number=1) == (OK, -1)
    producer.end(commit=True)
    assert seen(stable=True) == (OK, 5)

    until(lambda: producer.add_group("g") is OK)
    assert producer.commit_offsets("g", {IN: 9}) == [OK]
    producer.end(commit=False)
    assert seen(stable=True) == (OK, 5)
    (group,) = read_groups(store_of(cluster))
    assert (group.offsets[IN].committed_offset, group.offsets[IN].metadata) == (5, "m")


@pytest.mark.parametrize("since", [20, 3], ids=["beyond", "back"])
def test_an_offset_that_a_group_commits_beside_an_open_transaction_stays(
    cluster: Cluster, client: RawClient, since: int
) -> None:
    """The most recent one counts, as with a broker."""
    producer = RawProducer(client).start()
    assert producer.add_group("g") is OK
    assert producer.commit_offsets("g", {IN: 9}) == [OK]
    cluster.alter_group_offsets("g", {IN: since})
    producer.end(commit=True)
    until_status(cluster, Status.COMPLETE_COMMIT)

    assert offsets_of(client, stable=True) == (OK, since)


@pytest.mark.parametrize("offset", [9, 3], ids=["beyond", "back"])
def test_offsets_of_a_transaction_are_stored_after_the_clock_was_set_back(
    cluster: Cluster, offset: int
) -> None:
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        RawProducer(client).start()
    store = OffsetsStore(store_of(cluster))
    store.load()
    tomorrow_ms = store_of(cluster).manager.now_ms() + 86_400_000
    store.append([(OffsetKey("g", *IN), CommittedOffset(5, commit_timestamp=tomorrow_ms))])
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        producer = RawProducer(client).start()
        assert producer.add_group("g") is OK
        assert producer.commit_offsets("g", {IN: offset}) == [OK]
        producer.end(commit=True)
        until_status(cluster, Status.COMPLETE_COMMIT)
        assert offsets_of(client, stable=True) == (OK, offset)


def deleted_group(client: RawClient) -> ErrorCode:
    asked = protocol.DeleteGroupsRequest(groups_names=["g"])
    return ErrorCode(client.ask(ApiKey.DELETE_GROUPS, 2, asked).results[0].error_code)


def deleted_offset(client: RawClient) -> ErrorCode:
    topic_of = protocol.OffsetDeleteRequest.OffsetDeleteRequestTopic
    partitions = [topic_of.OffsetDeleteRequestPartition(partition_index=0)]
    asked = protocol.OffsetDeleteRequest(
        group_id="g", topics=[topic_of(name="in", partitions=partitions)]
    )
    answer = client.ask(ApiKey.OFFSET_DELETE, 0, asked)
    return ErrorCode(answer.error_code or answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("has_stored", [True, False], ids=["with others", "alone"])
@pytest.mark.parametrize(
    ("delete", "again"),
    [(deleted_group, ErrorCode.GROUP_ID_NOT_FOUND), (deleted_offset, OK)],
)
def test_pending_offsets_that_are_deleted_do_not_come_back_when_their_transaction_is_committed(
    cluster: Cluster,
    client: RawClient,
    has_stored: bool,
    delete: Callable[[RawClient], ErrorCode],
    again: ErrorCode,
) -> None:
    other = TopicPartition("in", 1)
    producer = RawProducer(client).start()
    assert producer.add_group("g") is OK
    if has_stored:
        cluster.alter_group_offsets("g", {IN: 5, other: 5})
    assert producer.commit_offsets("g", {IN: 9}) == [OK]

    assert delete(client) is OK
    assert offsets_of(client, stable=True) == (OK, -1)
    if has_stored:
        assert delete(client) is again
    assert producer.commit_offsets("g", {other: 7}) == [OK]  # the group is in the transaction still
    producer.end(commit=True)
    until_status(cluster, Status.COMPLETE_COMMIT)
    assert offsets_of(client, stable=True) == (OK, -1)
    assert offsets_of(client, stable=True, number=1) == (OK, 7)


def test_no_group_is_deleted_before_the_offsets_of_a_decision_are_stored(
    cluster: Cluster, client: RawClient
) -> None:
    """Else they would bring it back. It takes a moment, unless a disk fails."""
    producer = RawProducer(client).start()
    assert producer.add_group("g") is OK
    assert producer.commit_offsets("g", {IN: 9}) == [OK]
    with FolderParts(cluster.path).manager.locks.partitions([CONSUMER_OFFSETS]):
        producer.end(commit=True)
        assert deleted_group(client) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    until_status(cluster, Status.COMPLETE_COMMIT)
    assert offsets_of(client, stable=True) == (OK, 9)
    assert deleted_group(client) is OK
    assert offsets_of(client, stable=True) == (OK, -1)


def test_offsets_of_a_group_that_was_not_added_are_refused(client: RawClient) -> None:
    """The later error lets a client abort, and go on."""
    producer = RawProducer(client).start().add(EVENTS)

    assert producer.commit_offsets("g", {IN: 5}) == [ErrorCode.TRANSACTION_ABORTABLE]
    assert producer.commit_offsets("g", {IN: 5}, version=3) == [ErrorCode.INVALID_TXN_STATE]


def test_a_transactional_id_without_a_name_is_refused(client: RawClient) -> None:
    producer = RawProducer(client, "")

    assert producer.ask_to_start() is ErrorCode.INVALID_REQUEST
    assert producer.ask_to_add(EVENTS) == [ErrorCode.INVALID_REQUEST]
    assert producer.add_group("g") is ErrorCode.INVALID_REQUEST
    assert producer.ask_to_end(commit=True) is ErrorCode.INVALID_REQUEST


def test_the_group_with_an_empty_name_has_no_offsets_of_transactions(client: RawClient) -> None:
    """As in Kafka, though it may commit others."""
    producer = RawProducer(client).start()
    assert producer.add_group("") is OK

    assert producer.commit_offsets("", {IN: 5}) == [ErrorCode.INVALID_GROUP_ID]


def test_offsets_of_a_member_of_another_generation_are_refused(
    server: Server, client: RawClient
) -> None:
    generation, member_id = joined(server)
    producer = RawProducer(client).start()
    assert producer.add_group("g") is OK

    def committing(generation: int, member_id: str, version: int = 4) -> list[ErrorCode]:
        return producer.commit_offsets(
            "g", {IN: 5}, generation=generation, member_id=member_id, version=version
        )

    assert committing(generation + 1, member_id) == [ErrorCode.ILLEGAL_GENERATION]
    assert committing(generation - 1, member_id) == [ErrorCode.ILLEGAL_GENERATION]
    assert committing(generation, "stranger") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert committing(-1, "") == [OK]  # a client from before KIP-447 names no member
    assert committing(-1, "", version=2) == [OK]
    assert committing(generation, member_id) == [OK]
    assert producer.commit_offsets("unknown", {IN: 5}, generation=3) == [
        ErrorCode.ILLEGAL_GENERATION
    ]
    producer.end(commit=True)
    assert offsets_of(client, stable=True) == (OK, 5)


def joined(server: Server) -> tuple[int, str]:
    """Return generation and member id of the only member of the group `g`, which stays."""
    protocol_of = protocol.JoinGroupRequest.JoinGroupRequestProtocol
    asked = protocol.JoinGroupRequest(
        group_id="g", session_timeout_ms=30_000, rebalance_timeout_ms=30_000,
        protocol_type="consumer", protocols=[protocol_of(name="range", metadata=b"")],
    )  # fmt: skip
    with RawClient(server) as member:
        joined = member.ask(ApiKey.JOIN_GROUP, 3, asked)
        sync = protocol.SyncGroupRequest(
            group_id="g", generation_id=joined.generation_id, member_id=joined.member_id
        )
        member.ask(ApiKey.SYNC_GROUP, 2, sync)
    return joined.generation_id, joined.member_id


# What is shown.


def test_transactions_are_listed_and_described(cluster: Cluster, client: RawClient) -> None:
    open_one = RawProducer(client, "open").start().write(EVENTS, OTHER)
    RawProducer(client, "done").start().write(EVENTS).end(commit=True)
    RawProducer(client, "new").start()
    until_status(cluster, Status.COMPLETE_COMMIT, "done")

    def listed(**filters: Any) -> list[tuple[str, str]]:
        answer = client.ask(
            ApiKey.LIST_TRANSACTIONS, 1, protocol.ListTransactionsRequest(**filters)
        )
        assert answer.error_code == 0
        assert answer.unknown_state_filters == [
            one for one in filters.get("state_filters", ()) if one == "Nonsense"
        ]
        return [(one.transactional_id, one.transaction_state) for one in answer.transaction_states]

    every = [("done", "CompleteCommit"), ("new", "Empty"), ("open", "Ongoing")]
    assert listed() == every
    assert listed(state_filters=["Ongoing", "Nonsense"]) == every[2:]
    assert listed(producer_id_filters=[open_one.producer_id]) == every[2:]
    # What never began has begun before any time.
    assert listed(duration_filter=3_600_000) == every[1:2]
    until(lambda: listed(duration_filter=10) == every)

    asked = protocol.DescribeTransactionsRequest(transactional_ids=["open", "none", "open", ""])
    found, missing, unnamed = client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, asked).transaction_states
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 30_000)
    assert (found.producer_id, found.producer_epoch) == (open_one.producer_id, 0)
    assert [(one.topic, one.partitions) for one in found.topics] == [("events", [0, 1])]
    assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert (missing.producer_id, missing.producer_epoch) == (0, 0)
    assert unnamed.error_code == ErrorCode.INVALID_REQUEST


def test_the_producers_of_a_partition_are_described(cluster: Cluster, client: RawClient) -> None:
    done = RawProducer(client, "done").start().write(OTHER, n=3)
    done.end(commit=True)
    until_status(cluster, Status.COMPLETE_COMMIT, "done")
    open_one = RawProducer(client, "open").start().write(OTHER)
    topic_of = protocol.DescribeProducersRequest.TopicRequest
    asked = protocol.DescribeProducersRequest(
        topics=[
            topic_of(name="events", partition_indexes=[0, 1, 9]),
            topic_of(name="no topic", partition_indexes=[0]),
        ]
    )
    of_topic, of_none = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, asked).topics
    nothing, found, missing = of_topic.partitions

    assert (nothing.error_code, nothing.active_producers) == (0, [])
    assert [
        (one.producer_id, one.last_sequence, one.coordinator_epoch, one.current_txn_start_offset)
        for one in found.active_producers
    ] == [(done.producer_id, 2, 0, -1), (open_one.producer_id, 0, -1, 4)]
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert of_none.partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


# Replicas.


def test_with_several_replicas_transactions_end_in_all_of_them(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in "ab"]
    with Cluster(str(tmp_path / "path"), create=True, log_dirs=folders) as cluster:
        cluster.create_topic("events", partitions=2, replication_factor=2)
        with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
            producer = RawProducer(client).start()
            for commit in (True, False, True):
                producer.write(EVENTS, OTHER, value=str(commit).encode()).end(commit=commit)
            until_status(cluster, Status.COMPLETE_COMMIT)
            assert committed(client).last_stable_offset == 6
            replicas = cluster.replicas("events")
        assert values(cluster) == [b"True"] * 4
        found = {(one.in_sync, one.log_end_offset) for some in replicas.values() for one in some}
        assert found == {(True, 6)}


def test_epochs_run_out_and_the_producer_goes_on_under_another_id(
    cluster: Cluster, client: RawClient, server: Server
) -> None:
    producer = RawProducer(client).start()
    known = server._transactions._log.contents.transactions["t"]
    owner = known.producer._replace(epoch=2**15 - 2)
    server._transactions.step("t", lambda *_: known._replace(producer=owner))
    fenced = producer.producer_id
    producer.start().write(EVENTS).end(commit=True)
    until_status(cluster, Status.COMPLETE_COMMIT)

    assert producer.producer_id != fenced
    assert producer.epoch == 0
    assert values(cluster) == [b"v"]


def test_ids_that_were_not_used_for_long_are_forgotten(
    cluster: Cluster, client: RawClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    RawProducer(client, "kept").start().write(EVENTS)
    RawProducer(client, "old").start()
    monkeypatch.setattr("spark_kbatch.server.transactions.coordinator.EXPIRATION_MS", 0)
    server._transactions._expire_after_ms = 0

    def names() -> list[str]:
        answer = client.ask(ApiKey.LIST_TRANSACTIONS, 0, protocol.ListTransactionsRequest())
        return [one.transactional_id for one in answer.transaction_states]

    until(lambda: names() == ["kept"])
