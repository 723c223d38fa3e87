"""Brokers in memory that serve one partition of one topic, and do what a test says.

with ScriptedCluster([batch, batch]) as cluster:
    cluster.lead(2, epoch=5)                        # of nodes 1 and 2, which know the same log
    cluster.on_fetch = lambda fetch: answer         # None for what a broker would answer
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from spark_kbatch.model import EARLIEST, LATEST, MAX_TIMESTAMP, TopicPartition
from spark_kbatch.options.remote import ClusterOptions, parse_cluster_options
from spark_kbatch.record.header import walk
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import (
    SUPPORTED,
    ApiKey,
    DescribeConfigsResponse,
    FetchResponse,
    ListOffsetsResponse,
    MetadataResponse,
    OffsetForLeaderEpochResponse,
    Request,
    Versions,
)
from tests.support.wire_servers import LoopbackServer

TOPIC = "events"
EVENTS_0 = TopicPartition(TOPIC, 0)
EARLIEST_LOCAL = -4
_Topic = FetchResponse.FetchableTopicResponse


class Fetch(NamedTuple):
    """A fetch that a broker received."""

    node: int
    version: int
    offset: int
    max_bytes: int
    leader_epoch: int
    rack: str
    isolation: int


class ScriptedCluster:
    """A cluster of nodes 1, 2, ...; all of them have the same log."""

    def __init__(
        self,
        batches: Sequence[bytes],
        *,
        nodes: int = 2,
        offered: Mapping[int, Versions] = SUPPORTED,
    ) -> None:
        self.batches = list(batches)
        self.log_start = 0
        self.log_end = max((h.next_offset for b in batches for _, h in walk(b)), default=0)
        self.leader, self.epoch = 1, 0
        self.epoch_ends: dict[int, int] = {}  # of earlier epochs, where a leader knows them
        self.last_stable: int | None = None  # None for the log's end
        self.local_start = 0  # offsets below are in remote storage
        self.largest_time_at: int | None = None  # offset of the record with the largest time
        self.offset_by_time: Callable[[int], int] = lambda time_ms: -1  # no answer
        self.cleanup_policy: str | None = "delete"  # None: who asks may not see it
        self.fetches: list[Fetch] = []
        self.on_fetch: Callable[[Fetch], Any] = lambda fetch: None
        self.on_end_of_epoch: Callable[[], None] = lambda: None
        self._servers = [
            LoopbackServer(lambda request, node=node: self._answer(node, request), offered=offered)  # type: ignore[misc]
            for node in range(1, nodes + 1)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            server.close()

    def options(self, **more: str) -> ClusterOptions:
        """Return a client's options."""
        servers = ",".join(str(server.node) for server in self._servers)
        return parse_cluster_options({"bootstrap_servers": servers} | more, alone=True)

    def lead(self, node: int, *, epoch: int) -> None:
        """Make another node the leader."""
        self.epoch_ends.setdefault(self.epoch, self.log_end)
        self.leader, self.epoch = node, epoch

    @property
    def accepted(self) -> int:
        """Number of connections that were made."""
        return sum(server.accepted for server in self._servers)

    def asked(self, api_key: int) -> int:
        """Return the number of requests of a kind."""
        return sum(one.api_key == api_key for server in self._servers for one in server.requests)

    def wait_for_fetches(self, count: int) -> None:
        """Wait until so many were received."""
        deadline = time.monotonic() + 10
        while len(self.fetches) < count:
            assert time.monotonic() < deadline, self.fetches
            time.sleep(0.001)

    # Answers.

    def _answer(self, node: int, request: Request) -> Any:
        answers: dict[int, Callable[[int, Request], Any]] = {
            ApiKey.METADATA: self._metadata,
            ApiKey.LIST_OFFSETS: self._list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self._end_of_epoch,
            ApiKey.FETCH: self._fetch,
            ApiKey.DESCRIBE_CONFIGS: self._settings,
        }
        return answers[request.api_key](node, request)

    def _metadata(self, _node: int, _request: Request) -> Any:
        topic, broker = (
            MetadataResponse.MetadataResponseTopic,
            MetadataResponse.MetadataResponseBroker,
        )
        partition = topic.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=self.leader, leader_epoch=self.epoch,
            replica_nodes=[1, 2], isr_nodes=[1, 2],
        )  # fmt: skip
        return MetadataResponse(
            brokers=[
                broker(node_id=number, host=one.node.host, port=one.node.port)
                for number, one in enumerate(self._servers, 1)
            ],
            cluster_id="scripted",
            controller_id=1,
            topics=[topic(error_code=0, name=TOPIC, partitions=[partition])],
        )

    def _list_offsets(self, node: int, request: Request) -> Any:
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        ((asked,),) = (each.partitions for each in request.body.topics)
        offsets = {
            EARLIEST: self.log_start,
            LATEST: self._end(request.body.isolation_level),
            MAX_TIMESTAMP: -1 if self.largest_time_at is None else self.largest_time_at,
            EARLIEST_LOCAL: self.local_start,
        }
        one = topic.ListOffsetsPartitionResponse(
            partition_index=0,
            error_code=self._refusal(node, asked.current_leader_epoch),
            timestamp=-1,
            offset=(
                offsets[asked.timestamp]
                if asked.timestamp < 0
                else self.offset_by_time(asked.timestamp)
            ),
            leader_epoch=self.epoch,
        )
        return ListOffsetsResponse(topics=[topic(name=TOPIC, partitions=[one])])

    def _end(self, isolation: int) -> int:
        """Return where the log ends for an isolation level, 1 for READ_COMMITTED."""
        return self.log_end if self.last_stable is None or not isolation else self.last_stable

    def _settings(self, _node: int, _request: Request) -> Any:
        result = DescribeConfigsResponse.DescribeConfigsResult
        hidden = self.cleanup_policy is None
        setting = result.DescribeConfigsResourceResult(
            name="cleanup.policy", value=self.cleanup_policy, read_only=False,
            config_source=1, is_sensitive=False, synonyms=[], config_type=0, documentation=None,
        )  # fmt: skip
        one = result(
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED if hidden else 0, error_message=None,
            resource_type=2, resource_name=TOPIC, configs=[] if hidden else [setting],
        )  # fmt: skip
        return DescribeConfigsResponse(results=[one])

    def _end_of_epoch(self, node: int, request: Request) -> Any:
        topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        ((found,),) = (each.partitions for each in request.body.topics)
        self.on_end_of_epoch()
        asked = found.leader_epoch
        end = self.log_end if asked == self.epoch else self.epoch_ends.get(asked, -1)
        one = topic.EpochEndOffset(
            partition=0,
            error_code=self._refusal(node, found.current_leader_epoch),
            leader_epoch=asked if end >= 0 else -1,
            end_offset=end,
        )
        return OffsetForLeaderEpochResponse(topics=[topic(topic=TOPIC, partitions=[one])])

    def _fetch(self, node: int, request: Request) -> Any:
        ((one,),) = (each.partitions for each in request.body.topics)
        fetch = Fetch(
            node, request.version, one.fetch_offset, one.partition_max_bytes,
            one.current_leader_epoch, request.body.rack_id, request.body.isolation_level,
        )  # fmt: skip
        self.fetches.append(fetch)
        given = self.on_fetch(fetch)
        if given is not None:
            return given
        refusal = self._refusal(node, fetch.leader_epoch)
        return self.error(refusal) if refusal else self.records(fetch)

    def _refusal(self, node: int, leader_epoch: int) -> int:
        """Return the error of a request to a node that names a leader epoch, -1 for none.

        Source: Kafka core/.../cluster/Partition.scala, checkCurrentLeaderEpoch.
        """
        if 0 <= leader_epoch != self.epoch:
            older = leader_epoch < self.epoch
            return ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if node == self.leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def records(self, fetch: Fetch, **fields: Any) -> FetchResponse:
        """Return the answer of a broker that has the log: one batch, as there is no limit below one."""
        if not self.log_start <= fetch.offset <= self.log_end:
            return self.error(ErrorCode.OFFSET_OUT_OF_RANGE)
        end = self._end(fetch.isolation)
        found = [
            batch
            for batch in self.batches
            if any(h.next_offset > fetch.offset and h.base_offset < end for _, h in walk(batch))
        ]
        told = {
            "records": b"".join(found[:1]),
            "high_watermark": self.log_end,
            "last_stable_offset": self._end(1),
            "log_start_offset": self.log_start,
        }
        return answer_of(**told | fields)

    def error(self, code: int, **fields: Any) -> FetchResponse:
        """Return an answer with an error of the partition."""
        return answer_of(error_code=code, **fields)


def answer_of(**fields: Any) -> FetchResponse:
    """Return an answer about the partition."""
    part = _Topic.PartitionData(**{"high_watermark": -1, "aborted_transactions": None, **fields})
    return FetchResponse(responses=[_Topic(topic=TOPIC, partitions=[part])])


def diverging(epoch: int, end_offset: int) -> Any:
    """Return where an epoch ends, as a broker says when a client's log differs."""
    return _Topic.PartitionData.EpochEndOffset(epoch=epoch, end_offset=end_offset)
