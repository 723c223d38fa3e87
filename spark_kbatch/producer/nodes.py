"""The nodes behind a transport: one for an embedded log, a cluster's brokers for the network.

The sender asks who leads a partition and who takes a request now, and waits by `poll`, which for the network is
where everything is sent and received. Only the thread that sends calls these, but for `wake_up`.

Source: Kafka clients/.../clients/KafkaClient.java.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Protocol, TypeAlias

from spark_kbatch.model import TopicPartition

NEVER_MS = 2**62  # a delay: nothing will be due because of time

Node: TypeAlias = Hashable  # whatever a transport names its nodes by
LeaderOf: TypeAlias = Callable[[TopicPartition], Node | None]  # None: not known at the moment


class Nodes(Protocol):
    """The nodes behind a transport."""

    @property
    def leader_of(self) -> LeaderOf | None:
        """Returns the node that leads a partition, or None and finds it out; None if one leads all."""

    def is_ready(self, node: Node) -> bool:
        """Return True if the node takes a request now; otherwise begin to connect."""

    def delay_ms(self, node: Node) -> int:
        """Return how long to wait before `is_ready` is asked again, if nothing happens before."""

    def poll(self, timeout_ms: int) -> None:
        """Send, receive, and pass on answers; return once something has happened, or the time is up."""

    def wake_up(self) -> None:
        """End the waiting `poll`, or the next one if none waits. Any thread may call this."""

    def close(self) -> None:
        """Let go of the nodes: nothing more is sent."""


class OneNode:
    """The node of a transport that needs none to be known: it leads all, and answers by itself."""

    leader_of: LeaderOf | None = None

    def __init__(self) -> None:
        # Not an Event: an interrupt in `set` could leave its lock taken for ever.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_ready(self, node: Node) -> bool:
        """Return True."""
        return True

    def delay_ms(self, node: Node) -> int:
        """Return 0."""
        return 0

    def poll(self, timeout_ms: int) -> None:
        """Sleep until woken; return at once if that happened before."""
        if timeout_ms <= 0:
            if not self._wakes.empty():
                with suppress(queue.Empty):
                    self._wakes.get(block=False)
            return
        timeout = min(timeout_ms, threading.TIMEOUT_MAX * 1000 - 1) / 1000
        with suppress(queue.Empty):
            self._wakes.get(timeout=timeout)

    def wake_up(self) -> None:
        """End the sleep."""
        if self._wakes.empty():
            self._wakes.put(None)

    def close(self) -> None:
        """Do nothing."""
