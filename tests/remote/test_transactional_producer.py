"""A transactional producer over the network: all records of a transaction are visible, or none, through faults."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch.errors import (
    CommitError,
    ConfigError,
    KBatchError,
    ProducerClosedError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortedError,
)
from spark_kbatch.producer.transactional import TransactionalProducer
from spark_kbatch.server.server import Server
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey, Request
from tests.support.transactional_cluster import HANG_UP, Faults, TransactionalCluster
from tests.support.waiting import until

EVENTS = ("events", 0)
QUICK = {
    "retry_backoff_ms": 1, "reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 5,
    "default_api_timeout_ms": 30_000,
}  # fmt: skip


@pytest.fixture
def brokers() -> Iterator[TransactionalCluster]:
    with TransactionalCluster() as cluster:
        cluster.create_topic("events", 2)
        yield cluster


@pytest.fixture
def place(brokers: TransactionalCluster) -> Iterator[spark_kbatch.Cluster]:
    with spark_kbatch.connect(brokers.address, **QUICK) as place:
        yield place


@pytest.fixture
def producer(place: spark_kbatch.Cluster) -> Iterator[TransactionalProducer]:
    with place.producer(transactional_id="orders") as producer:
        yield producer


def visible(brokers: TransactionalCluster, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in brokers.committed("events")[partition]]


def send(producer: TransactionalProducer, *values: str, partition: int = 0) -> None:
    for value in values:
        producer.send("events", value, partition=partition)


def at_request(
    brokers: TransactionalCluster, api_key: ApiKey, do: Callable[[], object], *, times: int = 1
) -> None:
    """Do something before the next requests of a kind are executed."""
    left = [do] * times

    def on_request(request: Request) -> None:
        if request.api_key == api_key and left:
            left.pop()()

    brokers.on_request = on_request


def test_records_are_visible_once_their_transaction_is_committed(
    brokers: TransactionalCluster, producer: TransactionalProducer
) -> None:
    producer.begin_transaction()
    future = producer.send("events", "a", partition=0)
    rows = producer.send_arrow("events", pa.table({"value": ["b", "c"], "partition": [1, 1]}))
    producer.flush()
    assert future.result(0).offset == 0
    assert rows.result(0).column("offset").to_pylist() == [0, 1]
    assert (visible(brokers), visible(brokers, 1)) == ([], [])

    producer.commit_transaction()

    assert (visible(brokers), visible(brokers, 1)) == ([b"a"], [b"b", b"c"])


def test_transactions_follow_each_other(
    brokers: TransactionalCluster, producer: TransactionalProducer
) -> None:
    for number in range(4):
        with producer.transaction():
            send(producer, f"{number}", f"{number}b")

    assert visible(brokers) == [b"0", b"0b", b"1", b"1b", b"2", b"2b", b"3", b"3b"]
    assert producer.metrics()["record-send-total"] == 8


def test_an_aborted_transaction_is_never_visible_and_the_next_one_goes_on(
    brokers: TransactionalCluster, producer: TransactionalProducer
) -> None:
    with producer.transaction():
        send(producer, "a")
    producer.begin_transaction()
    send(producer, "b")
    producer.flush()
    send(producer, "c")
    producer.abort_transaction()
    with contextlib.suppress(ZeroDivisionError), producer.transaction():
        send(producer, f"{1 / 0}")
    with producer.transaction():
        send(producer, "e")

    assert visible(brokers) == [b"a", b"e"]
    assert not brokers.has_open_transaction


def test_what_was_not_sent_fails_with_the_abort(place: spark_kbatch.Cluster) -> None:
    with place.producer(transactional_id="orders", linger_ms=60_000) as producer:
        producer.begin_transaction()
        future = producer.send("events", "a", partition=0)
        producer.abort_transaction()

    with pytest.raises(TransactionAbortedError, match="the transaction was aborted"):
        future.result(0)


def test_a_transaction_without_records_asks_nothing_of_the_cluster(
    brokers: TransactionalCluster, producer: TransactionalProducer
) -> None:
    producer.init_transactions()
    asked: list[int] = []
    brokers.on_request = lambda request: asked.append(request.api_key)
    with producer.transaction():
        pass
    producer.begin_transaction()
    producer.abort_transaction()

    assert asked == []


def test_offsets_of_groups_are_committed_with_the_records_or_not_at_all(
    brokers: TransactionalCluster, producer: TransactionalProducer
) -> None:
    with producer.transaction():
        send(producer, "a")
        producer.send_offsets_to_transaction({EVENTS: 7, ("events", 1): 8}, "readers")
        producer.send_offsets_to_transaction({EVENTS: 9}, "readers")
        producer.send_offsets_to_transaction({EVENTS: 1}, "others")
    producer.begin_transaction()
    producer.send_offsets_to_transaction({EVENTS: 20}, "readers")
    producer.abort_transaction()

    assert brokers.offsets == {
        "readers": {EVENTS: (9, ""), ("events", 1): (8, "")},
        "others": {EVENTS: (1, "")},
    }


def test_a_program_goes_on_where_the_offsets_of_its_group_say(
    brokers: TransactionalCluster, place: spark_kbatch.Cluster, producer: TransactionalProducer
) -> None:
    assert producer.committed_offsets("readers") == {}
    producer.begin_transaction()
    with pytest.raises(KBatchError, match=r"a transaction is open: commit_transaction\(\)"):
        producer.committed_offsets("readers")
    producer.send_offsets_to_transaction({EVENTS: 7, ("events", 1): 8}, "readers")
    producer.commit_transaction()

    assert producer.committed_offsets("readers") == {EVENTS: 7, ("events", 1): 8}
    assert producer.committed_offsets("others") == {}


def test_the_offsets_of_a_group_are_told_once_the_transaction_with_new_ones_has_ended(
    brokers: TransactionalCluster, place: spark_kbatch.Cluster, producer: TransactionalProducer
) -> None:
    with place.producer(transactional_id="another") as another:
        another.committed_offsets("readers")
        asked = list[int]()

        def on_request(request: Request) -> None:
            if request.api_key == ApiKey.END_TXN and not asked:
                thread = threading.Thread(
                    target=lambda: asked.extend(another.committed_offsets("readers").values())
                )
                thread.start()
                thread.join(0.3)
                threads.append(thread)
                assert not asked

        threads = list[threading.Thread]()
        brokers.on_request = on_request
        with producer.transaction():
            producer.send_offsets_to_transaction({EVENTS: 7}, "readers")
        (thread,) = threads
        thread.join()
        assert asked == [7]


@pytest.mark.parametrize("seed", range(4))
def test_lost_requests_and_answers_double_and_lose_nothing(
    brokers: TransactionalCluster, place: spark_kbatch.Cluster, seed: int
) -> None:
    brokers.faults = Faults(seed=seed, share=0.15)
    wanted = []
    with place.producer(transactional_id="orders", retry_backoff_ms=1) as producer:
        for number in range(12):
            producer.begin_transaction()
            for each in range(5):
                send(producer, f"{number}-{each}", partition=each % 2)
            producer.send_offsets_to_transaction({EVENTS: number}, "readers")
            if number % 3 == 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                wanted += [f"{number}-{each}".encode() for each in range(5)]
    brokers.faults = Faults()

    found = [*visible(brokers), *visible(brokers, 1)]
    assert sorted(found, key=str) == sorted(wanted, key=str)
    assert brokers.offsets["readers"] == {EVENTS: (10, "")}


# Another producer, and time.


def test_another_producer_of_the_name_fences_this_one(
    brokers: TransactionalCluster, place: spark_kbatch.Cluster, producer: TransactionalProducer
) -> None:
    producer.begin_transaction()
    send(producer, "old")
    producer.flush()
    with place.producer(transactional_id="orders") as other:
        with other.transaction():
            send(other, "new")
        send_error = producer.send("events", "late", partition=0).exception(10)
        with pytest.raises(ProducerFencedError, match="another one of its name") as caught:
            producer.commit_transaction()
        assert "nothing is visible of its transaction" in str(caught.value)
        for call in (producer.begin_transaction, lambda: send(producer, "more")):
            with pytest.raises(ProducerFencedError):
                call()
        producer.abort_transaction()
        with other.transaction():
            send(other, "newer")

    assert send_error is not None
    assert visible(brokers) == [b"new", b"newer"]


def test_an_abort_does_not_fence_the_producer_that_has_taken_over(
    brokers: TransactionalCluster, place: spark_kbatch.Cluster, producer: TransactionalProducer
) -> None:
    producer.begin_transaction()
    send(producer, "old")
    producer.flush()
    other = place.producer(transactional_id="orders")
    # Between the end of the transaction and the next epoch.
    at_request(brokers, ApiKey.INIT_PRODUCER_ID, other.init_transactions)
    producer.abort_transaction()
    with pytest.raises(ProducerFencedError):
        producer.begin_transaction()
    with other.transaction():
        send(other, "new")
    other.close()

    assert visible(brokers) == [b"new"]


def test_a_transaction_that_took_too_long_says_so(
    place: spark_kbatch.Cluster, producer: TransactionalProducer
) -> None:
    with place.producer(transactional_id="slow", transaction_timeout_ms=1) as slow:
        slow.begin_transaction()
        send(slow, "a")
        slow.flush()
        with place.producer(transactional_id="slow") as coordinator:  # which does as this one
            coordinator.init_transactions()
        with pytest.raises(ProducerFencedError, match=r"longer than transaction.timeout.ms=1, or"):
            slow.commit_transaction()


# What cannot be committed.


def test_a_record_that_was_not_written_can_only_be_aborted(
    brokers: TransactionalCluster, producer: TransactionalProducer
) -> None:
    producer.begin_transaction()
    send(producer, "a")
    producer.flush()
    brokers.refusals[ApiKey.PRODUCE] = ErrorCode.INVALID_RECORD
    send(producer, "b")
    for _ in range(2):
        with pytest.raises(CommitError, match=r"nothing is visible, and abort_transaction\(\)"):
            producer.commit_transaction()
    brokers.refusals.clear()
    producer.abort_transaction()
    with producer.transaction():
        send(producer, "c")

    assert visible(brokers) == [b"c"]


def test_a_record_that_was_never_accepted_can_only_be_aborted_too(
    brokers: TransactionalCluster, place: spark_kbatch.Cluster
) -> None:
    producer = place.producer(transactional_id="orders", buffer_memory=2 << 20)
    producer.begin_transaction()
    send(producer, "a", "b" * 2_000_000)
    with pytest.raises(CommitError, match=r"max\.request\.size") as caught:
        producer.commit_transaction()
    assert isinstance(caught.value.__cause__, RecordTooLargeError)
    producer.abort_transaction()
    producer.begin_transaction()
    with pytest.raises(RecordTooLargeError):
        producer.send_arrow("events", pa.table({"value": ["d", "e" * 3_000_000]}))
    with pytest.raises(CommitError):
        producer.commit_transaction()

    assert (visible(brokers), visible(brokers, 1)) == ([], [])


def test_offsets_that_are_refused_can_only_be_aborted(
    brokers: TransactionalCluster, producer: TransactionalProducer
) -> None:
    brokers.refusals[ApiKey.TXN_OFFSET_COMMIT] = ErrorCode.GROUP_AUTHORIZATION_FAILED
    producer.begin_transaction()
    send(producer, "a")
    producer.send_offsets_to_transaction({EVENTS: 7}, "readers")
    with pytest.raises(CommitError, match="GROUP_AUTHORIZATION_FAILED"):
        producer.commit_transaction()
    producer.abort_transaction()

    assert visible(brokers) == []
    assert not brokers.has_open_transaction


def test_a_commit_without_an_answer_is_repeated_and_never_aborted(
    brokers: TransactionalCluster,
) -> None:
    options = QUICK | {"default_api_timeout_ms": 3000, "request_timeout_ms": 3000}
    with (
        spark_kbatch.connect(brokers.address, **options) as place,
        place.producer(transactional_id="orders", delivery_timeout_ms=5000) as producer,
    ):
        producer.begin_transaction()
        send(producer, "a")
        brokers.refusals[ApiKey.END_TXN] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(CommitError, match="whether the transaction is committed is not"):
                call()
        with pytest.raises(KBatchError, match="in a transaction that is being ended"):
            send(producer, "b")
        brokers.refusals.clear()
        producer.commit_transaction()
        with producer.transaction():
            send(producer, "c")

    assert visible(brokers) == [b"a", b"c"]


# Calls at the wrong time.


def test_a_transaction_that_the_cluster_did_not_begin_can_be_aborted(
    brokers: TransactionalCluster, producer: TransactionalProducer
) -> None:
    brokers.refusals[ApiKey.ADD_PARTITIONS_TO_TXN] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(CommitError, match="nothing is visible"), producer.transaction():
        send(producer, "a")
    brokers.refusals.clear()
    with producer.transaction():
        send(producer, "b")

    assert visible(brokers) == [b"b"]


def test_a_producer_that_is_fenced_after_its_commit_was_asked_for_aborts_nothing(
    brokers: TransactionalCluster, place: spark_kbatch.Cluster, producer: TransactionalProducer
) -> None:
    whole, ends = brokers._server._answer, []

    def answer(request: Request) -> Any:
        found = whole(request)
        if request.api_key != ApiKey.END_TXN or ends:
            return found
        ends.append(request)
        other.init_transactions()
        return HANG_UP

    producer.begin_transaction()
    send(producer, "a")
    with place.producer(transactional_id="orders") as other:
        brokers._server._answer = answer
        with pytest.raises(ProducerFencedError, match="if the cluster's answer was lost"):
            producer.commit_transaction()
        with pytest.raises(ProducerFencedError, match="if the cluster's answer was lost"):
            producer.abort_transaction()

    assert visible(brokers) == [b"a"]


def test_a_producer_that_the_cluster_has_forgotten_says_so(
    brokers: TransactionalCluster, producer: TransactionalProducer
) -> None:
    with producer.transaction():
        send(producer, "a")
    brokers.refusals[ApiKey.ADD_PARTITIONS_TO_TXN] = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    with pytest.raises(ProducerFencedError, match=r"transactional\.id\.expiration\.ms"):
        with producer.transaction():
            send(producer, "b")


def test_calls_outside_of_a_transaction_say_what_to_call_first(
    producer: TransactionalProducer,
) -> None:
    calls: list[Callable[[], Any]] = [
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send("events", "a"),
        lambda: producer.send_arrow("events", {"value": ["a"]}),
        lambda: producer.send_offsets_to_transaction({EVENTS: 7}, "readers"),
    ]
    for call in calls:
        with pytest.raises(KBatchError, match=r"outside of a transaction: call begin_transaction"):
            call()
    producer.begin_transaction()
    with pytest.raises(KBatchError, match=r"a transaction is open: commit_transaction\(\)"):
        producer.begin_transaction()
    with pytest.raises(ConfigError, match="group_id"):
        producer.send_offsets_to_transaction({EVENTS: 7}, "")
    producer.abort_transaction()
    with pytest.raises(ConfigError, match="group_id"):
        producer.committed_offsets("")


def test_a_callback_can_neither_commit_nor_abort(
    brokers: TransactionalCluster, producer: TransactionalProducer
) -> None:
    errors: list[BaseException] = []
    ended = threading.Event()

    def callback(*_: object) -> None:
        for call in (producer.commit_transaction, producer.abort_transaction, producer.close):
            try:
                call()
            except KBatchError as error:
                errors.append(error)
        ended.set()

    with producer.transaction():
        producer.send("events", "a", partition=0, callback=callback)
    assert ended.wait(10)

    assert [str(error).split(" in ")[0] for error in errors] == [
        "commit_transaction()", "abort_transaction()", "close()",
    ]  # fmt: skip
    assert visible(brokers) == [b"a"]


def test_closing_the_cluster_aborts_what_is_open(
    brokers: TransactionalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with spark_kbatch.connect(brokers.address, **QUICK) as place:
        producer = place.producer({"transactional.id": "orders"})
        assert isinstance(producer, TransactionalProducer)
        producer.begin_transaction()
        send(producer, "a")
        producer.flush()

    assert "producer 'orders' is closed: its transaction is aborted" in caplog.text
    assert not brokers.has_open_transaction
    assert visible(brokers) == []
    with pytest.raises(ProducerClosedError):
        producer.begin_transaction()


def test_a_cluster_that_lets_no_transactions_be_written_is_named(
    brokers: TransactionalCluster, producer: TransactionalProducer
) -> None:
    brokers.refusals[ApiKey.INIT_PRODUCER_ID] = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    with pytest.raises(ConfigError, match=f"{brokers.address} does not let this client"):
        producer.begin_transaction()
    brokers.refusals[ApiKey.INIT_PRODUCER_ID] = ErrorCode.INVALID_TRANSACTION_TIMEOUT
    with pytest.raises(ConfigError, match=r"'transaction.timeout.ms' is 60000; accepted by"):
        producer.begin_transaction()


def test_transactions_are_written_to_our_own_server(server: Server) -> None:
    with (
        spark_kbatch.connect(server.bootstrap_servers, **QUICK) as place,
        place.producer(transactional_id="orders") as producer,
    ):
        assert isinstance(producer, TransactionalProducer)
        place.create_topic("orders")
        for value, keeps in (("yes", True), ("no", False), ("also", True)):
            producer.begin_transaction()
            producer.send("orders", value.encode())
            if keeps:
                producer.commit_transaction()
            else:
                producer.abort_transaction()

        def seen() -> list[bytes]:
            return place.read("orders").read_all().column("value").to_pylist()

        until(lambda: seen() == [b"yes", b"also"])
