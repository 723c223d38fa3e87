"""Disks fail and come back under a server with replicas: nothing that was acknowledged is lost or doubled.

An idempotent producer, and a consumer that commits its offsets, run all the time. Disks fail one at a time,
so of three replicas two are always left, as many as min.insync.replicas asks for.

One failure by default, 10 with `make soak`; `tests.support.draws` has more, and how to repeat a run.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.model import LATEST, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.server.housekeeping import Housekeeping
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey, FetchResponse, ListOffsetsRequest
from tests.support import builders, draws
from tests.support.failing_disks import (
    BROKEN,
    FULL,
    READ_ONLY,
    Disks,
    a_replicated_cluster,
    bytes_of,
    partition,
)
from tests.support.killed_children import kills
from tests.support.raw_clients import RawClient, fetch, request
from tests.support.running_clients import Consuming, Producing
from tests.support.store import store_of
from tests.support.waiting import until

TOPIC, PARTITIONS, REPLICAS = "events", 2, 3
ALL = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]


def ensure_failing_disks_lose_nothing(folder: Path, failures: int) -> None:
    rng, disks = random.Random(draws.FIRST), Disks()
    config = TopicConfig(min_insync_replicas=2)
    cluster = a_replicated_cluster(
        folder, disks, partitions=PARTITIONS, replicas=REPLICAS, config=config
    )
    with cluster, cluster.serve(log_retention_check_interval_ms=200) as server:
        producing, consuming = (
            Producing(server.bootstrap_servers, TOPIC, partitions=PARTITIONS),
            Consuming(server.bootstrap_servers, TOPIC),
        )
        until(lambda: producing.places and consuming.committed, "both clients work")
        for _ in range(failures):
            disk = folder / f"disk-{rng.randrange(REPLICAS)}"
            disks.fail(disk, rng.choice((BROKEN, FULL, READ_ONLY)))
            acknowledged, committed = len(producing.places), consuming.committed
            until(lambda n=acknowledged: len(producing.places) > n + 200, "the producer goes on")  # type: ignore[misc]
            until(lambda n=committed: consuming.committed > n, "the consumer goes on")  # type: ignore[misc]
            time.sleep(rng.uniform(0, 0.3))
            disks.mend(disk)
            until(lambda: all(in_sync(cluster)), "all replicas are in sync again")
        producing.stop()
        until(lambda: len(consuming.records) >= producing.sent, "everything is read")
        consuming.stop()
        Housekeeping(store_of(cluster), interval_ms=1000).run_once()

        stored = builders.contents(cluster)
        for tp in ALL:
            copies = [bytes_of(cluster, node, tp) for node in range(REPLICAS)]
            assert copies[0] == copies[1] == copies[2] != b""

    log = {(tp.partition, one.offset): one.value for tp in ALL for one in stored[tp]}
    # A batch may be stored though its answer is an error; the client infers that from the next answer.
    told = {value: place for value, place in producing.places.items() if place[1] is not None}
    assert {log[place]: place for place in told.values()} == told
    assert Counter(log.values()) == Counter([*producing.places])  # each once, and nothing else
    read = Counter(consuming.records)
    assert {*read} == {(*place, value) for place, value in log.items()}
    for number in range(PARTITIONS):
        offsets = [offset for p, offset, _ in dict.fromkeys(consuming.records) if p == number]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("api_key", [ApiKey.FETCH, ApiKey.LIST_OFFSETS], ids=lambda one: one.name)
def test_an_election_that_waits_for_a_lock_delays_no_other_requests(
    tmp_path: Path, api_key: ApiKey
) -> None:
    disks = Disks()
    with (
        a_replicated_cluster(tmp_path, disks, partitions=2, replicas=2) as cluster,
        cluster.serve() as server,
        RawClient(server) as other,
    ):
        leader, healthy = sorted(ALL, key=lambda tp: partition(cluster, tp).view.state().leader)
        builders.append_records(cluster, {one: builders.batch(n=1) for one in ALL})
        clients = [RawClient(server) for _ in range(8)]  # more than there are threads for them
        with store_of(cluster).manager.locks.partitions([leader]):  # as a commit has them
            disks.fail(tmp_path / "disk-0", BROKEN)
            for client in clients:
                client.send(ask_about(api_key, leader))
            started = time.monotonic()
            until(lambda: error(other, api_key, healthy) == 0)
            assert time.monotonic() - started < 5
            for client in clients:
                answer = client.receive(api_key, VERSIONS[api_key])
                assert error_of(answer) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        until(lambda: error(other, api_key, leader) == 0, "another replica is elected")
        for client in clients:
            client.socket.close()


VERSIONS = {ApiKey.FETCH: 12, ApiKey.LIST_OFFSETS: 5}


def ask_about(api_key: ApiKey, tp: TopicPartition) -> bytes:
    """Return a Fetch or a ListOffsets for a partition."""
    version = VERSIONS[api_key]
    if api_key is ApiKey.FETCH:
        return request(api_key, version, fetch(0, tp.topic, tp.partition))
    topic_of = ListOffsetsRequest.ListOffsetsTopic
    place = topic_of.ListOffsetsPartition(
        partition_index=tp.partition, current_leader_epoch=-1, timestamp=LATEST
    )
    topics = [topic_of(name=tp.topic, partitions=[place])]
    body = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)
    return request(api_key, version, body)


def error(client: RawClient, api_key: ApiKey, tp: TopicPartition) -> int:
    """Ask about a partition; return the error in the answer."""
    client.send(ask_about(api_key, tp))
    return error_of(client.receive(api_key, VERSIONS[api_key]))


def error_of(answer: Any) -> int:
    """Return the error of the one partition in an answer."""
    topics = answer.responses if isinstance(answer, FetchResponse) else answer.topics
    return int(topics[0].partitions[0].error_code)


def in_sync(cluster: Cluster) -> list[bool]:
    """Return whether each partition of the topic has all replicas in sync."""
    return [len(partition(cluster, tp).view.state().isr) == REPLICAS for tp in ALL]


def test_a_disk_that_fails_and_comes_back_costs_no_record(tmp_path: Path) -> None:
    with kills(1) as failures:
        ensure_failing_disks_lose_nothing(tmp_path, failures)


@pytest.mark.slow
def test_disks_that_fail_and_come_back_often_cost_no_record(tmp_path: Path) -> None:
    with kills(10) as failures:
        ensure_failing_disks_lose_nothing(tmp_path, failures)
