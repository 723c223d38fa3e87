"""The destination of a producer's finished batches: logs, staging files, or brokers.

The sender asks which node leads a partition and which can take a request now, and waits by `poll`, which for
the network is where everything is sent and received. Only the thread that sends calls these, but for `wake_up`.

Source: Kafka clients/.../clients/KafkaClient.java.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from spark_kbatch.model import AppendResult, TopicPartition
from spark_kbatch.options.topic import Topic

NEVER_MS = 2**62  # a delay: nothing will be due because of time

Node: TypeAlias = Hashable  # whatever a transport names its nodes by
LeaderOf: TypeAlias = Callable[[TopicPartition], Node | None]  # None: not known at the moment


class Nodes(Protocol):
    """The nodes behind a transport."""

    @property
    def leader_of(self) -> LeaderOf | None:
        """A function that returns a partition's leader node; None if one node leads all partitions.

        It returns None for a leader that is not known, and starts to look it up.
        """

    @property
    def why_unreachable(self) -> Exception | None:
        """The error for which a node cannot be connected to; None if there is none."""

    def take_refusal(self) -> Exception | None:
        """Return, once, the error for which no node can be asked for leaders, if that is final; else None."""

    def is_ready(self, node: Node) -> bool:
        """Return True if the node takes a request now; otherwise start to connect."""

    def delay_ms(self, node: Node) -> int:
        """Return how long to wait before `is_ready` is asked again, if nothing happens before."""

    def poll(self, timeout_ms: int) -> None:
        """Send, receive, and pass on answers; return once something has happened, or the time is up."""

    def wake_up(self) -> None:
        """End the waiting `poll`, or the next one if none waits. Any thread may call this."""

    def close(self) -> None:
        """Let go of the nodes: nothing more is sent."""


class ProduceBatch(NamedTuple):
    """One finished batch of a request."""

    topic: Topic
    topic_partition: TopicPartition
    data: memoryview  # does not change until the request is answered
    records_count: int


class SendRequest(NamedTuple):
    """Finished batches for a transport, at most one of each partition.

    A transport that takes runs may get several, one after the other: it writes them all, or none.
    """

    acks: int  # -1, 0, 1
    timeout_ms: int
    batches: Sequence[ProduceBatch]
    node: Node | None = None  # that leads their partitions; None where one leads all


Answer = Mapping[TopicPartition, AppendResult]  # for a run, of its first batch


class Transport(Protocol):
    """The destination of finished batches."""

    def send(self, request: SendRequest, on_answer: Callable[[Answer], None]) -> None:
        """Take a request, and answer it once, now or later, from any thread.

        An exception counts as the answer for every batch.
        """
