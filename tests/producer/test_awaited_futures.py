"""What `send` returns is a future to asyncio and to `concurrent.futures`, and costs as little as before."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_kbatch import Cluster
from spark_kbatch.errors import KafkaStorageError, ProducerForkedError, RecordTooLargeError
from spark_kbatch.model import TopicPartition
from spark_kbatch.producer.batch import ProduceResult
from spark_kbatch.producer.futures import ArrowFuture, RecordFuture
from spark_kbatch.producer.producer import Producer
from tests.support import builders

SOON_S = 20
EVENTS = TopicPartition("events", 0)
LOST = KafkaStorageError("lost")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with builders.a_cluster(tmp_path, topics={"events": 1}) as made:
        yield made


@pytest.fixture
def lingering(cluster: Cluster) -> Iterator[Producer]:
    """A producer that sends nothing until it is flushed."""
    with cluster.producer(linger_ms=60_000, flush=False) as producer:
        yield producer


def test_futures_are_awaited(lingering: Producer) -> None:
    async def main() -> list[int]:
        single, table = (
            lingering.send("events", "a"),
            lingering.send_arrow("events", {"value": ["b", "c"]}),
        )
        several = asyncio.gather(single, asyncio.wrap_future(lingering.send("events", "d")), table)
        await asyncio.to_thread(lingering.flush)
        first, last, rows = await asyncio.wait_for(several, SOON_S)
        assert (await single, await table) == (first, rows), "again, when they are done"
        assert single.result(0) == first
        return [first.offset, *rows["offset"].to_pylist(), last.offset]

    assert asyncio.run(main()) == [0, 1, 2, 3]


def test_an_await_raises_the_error_of_the_record(cluster: Cluster) -> None:
    async def main() -> None:
        with cluster.producer(max_request_size=1000) as producer:
            await producer.send("events", b"v" * 2000)

    with pytest.raises(RecordTooLargeError):
        asyncio.run(main())


def test_a_record_is_sent_though_nobody_waits_for_it_any_more(lingering: Producer) -> None:
    future = lingering.send("events", "v")

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.05)
        assert not future.cancel()

    asyncio.run(main())
    assert (future.running(), future.cancelled()) == (True, False)
    lingering.flush()
    assert future.result(0).offset == 0


def test_one_call_wakes_all_tasks_that_await_records_of_a_batch(
    lingering: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(one_record(lingering)) for _ in range(50)]
        await asyncio.sleep(0)
        wake = loop.call_soon_threadsafe

        def counted(*given: Any) -> asyncio.Handle:
            calls.append(given)
            return wake(*given)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        thread = threading.Thread(target=lingering.flush)
        thread.start()
        found = await asyncio.wait_for(asyncio.gather(*tasks), SOON_S)
        thread.join()
        return found

    assert asyncio.run(main()) == list(range(50))
    assert len(calls) == 1


async def one_record(producer: Producer) -> int:
    return (await producer.send("events", "v")).offset


def test_a_task_that_is_cancelled_takes_no_other_one_with_it(lingering: Producer) -> None:
    async def main() -> list[int]:
        tasks = [asyncio.create_task(one_record(lingering)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.to_thread(lingering.flush)
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        return [await asyncio.wait_for(tasks[at], SOON_S) for at in (0, 2)]

    assert asyncio.run(main()) == [0, 2]


def test_a_loop_may_be_closed_before_its_records_are_written(lingering: Producer) -> None:
    futures = [lingering.send("events", "v") for _ in range(2)]

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(futures[0], 0.01)

    asyncio.run(give_up())
    lingering.flush()
    assert futures[1].result(SOON_S).offset == 1


def test_several_loops_await_the_same_record(lingering: Producer) -> None:
    future = lingering.send("events", "v")
    found: list[int] = []

    async def wait() -> None:
        found.append((await asyncio.wait_for(future, SOON_S)).offset)

    threads = [threading.Thread(target=asyncio.run, args=(wait(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    lingering.flush()
    for thread in threads:
        thread.join()
    assert found == [0] * 4


def test_a_record_of_a_split_batch_is_awaited_until_its_part_has_ended() -> None:
    whole, part = ProduceResult(EVENTS), ProduceResult(EVENTS)
    future = RecordFuture(whole, 0, 0)

    async def main() -> int:
        task = asyncio.create_task(asyncio.wait_for(future, SOON_S))
        await asyncio.sleep(0)
        whole.children = [(0, part)]
        whole.release()
        await asyncio.sleep(0.01)
        assert not task.done()
        part.set(7, -1, None)
        part.release()
        return (await task).offset

    assert asyncio.run(main()) == 7


def test_futures_are_waited_for_together(lingering: Producer) -> None:
    futures = [lingering.send("events", "v") for _ in range(3)]
    told: list[int] = []
    futures[1].add_done_callback(lambda done: told.append(done.result().offset))
    flushing = threading.Thread(target=lingering.flush)
    flushing.start()
    done = concurrent.futures.wait(futures, SOON_S).done
    flushing.join()

    assert done == set(futures)
    assert told == [1]
    assert {one.result().offset for one in concurrent.futures.as_completed(futures, 0)} == {0, 1, 2}


def test_what_nobody_waits_for_so_has_no_state_of_its_own(lingering: Producer) -> None:
    future = lingering.send("events", "v")
    lingering.flush()

    assert (future.done(), future.exception(), future.result().offset) == (True, None, 0)
    assert vars(future) == {}


def test_a_future_follows_its_record_into_the_parts_of_a_split_batch() -> None:
    whole, first, second = (ProduceResult(EVENTS) for _ in range(3))
    futures = [RecordFuture(whole, index, 0) for index in range(2)]
    rows = ArrowFuture()
    rows.add(whole, 0, np.arange(2, dtype=np.int32))
    rows.close(2)
    told: list[object] = []
    for one in (*futures, rows):
        one.add_done_callback(told.append)

    whole.children = [(0, first), (1, second)]
    whole.release()
    assert told == []
    first.set(7, -1, None)
    first.release()
    assert told == [futures[0]]
    second.set(-1, -1, LOST)
    second.release()
    assert {*told} == {*futures, rows}
    assert futures[0].result(0).offset == 7
    assert [one.exception(0) for one in (futures[1], rows)] == [LOST, LOST]


def test_every_waiting_thread_is_told_once_whenever_the_batch_ends() -> None:
    for _ in range(200):
        batch = ProduceResult(EVENTS)
        future = RecordFuture(batch, 0, 0)
        told: list[object] = []
        start = threading.Barrier(4)

        def wait(
            future: RecordFuture = future,
            told: list[object] = told,
            start: threading.Barrier = start,
        ) -> None:
            start.wait()
            future.add_done_callback(told.append)

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        batch.set(0, -1, None)
        start.wait()
        batch.release()
        for thread in threads:
            thread.join()
        assert told == [future] * 3


def test_in_a_fork_nothing_waits_for_what_the_parent_sends() -> None:
    batch = ProduceResult(EVENTS)
    batch._process_id -= 1
    future = RecordFuture(batch, 0, 0)

    for _ in range(2):
        with pytest.raises(ProducerForkedError):
            future.add_done_callback(print)
