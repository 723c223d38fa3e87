"""The nodes behind a transport: one for an embedded log, a cluster's brokers for the network.

The sender asks which node leads a partition and which can take a request now, and waits by `poll`, which for
the network is where everything is sent and received. Only the thread that sends calls these, but for `wake_up`.

Source: Kafka clients/.../clients/KafkaClient.java.
"""

from __future__ import annotations

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
        """A function that returns a partition's leader node; None if one node leads all partitions.

        It returns None for a leader that is not known, and finds it out.
        """

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


class OneNode:
    """The single node of a transport without a network: it leads all partitions and is always ready."""

    leader_of: LeaderOf | None = None

    def __init__(self) -> None:
        # Free once woken, until the sleeper has seen it. Neither an Event, whose own lock an interrupt in
        # `set` could leave taken for ever, nor a SimpleQueue: in Python 3.11, its `get` may wait for ever
        # if the thread loses the processor just after it has read the clock.
        self._wake = threading.Lock()
        self._wake.acquire()

    def is_ready(self, node: Node) -> bool:
        """Return True."""
        return True

    def delay_ms(self, node: Node) -> int:
        """Return 0."""
        return 0

    def poll(self, timeout_ms: int) -> None:
        """Sleep until woken; return at once if that happened before."""
        if timeout_ms <= 0:
            self._wake.acquire(blocking=False)
        else:
            self._wake.acquire(timeout=min(timeout_ms / 1000, threading.TIMEOUT_MAX))

    def wake_up(self) -> None:
        """End the sleep."""
        if self._wake.locked():
            with suppress(RuntimeError):  # another thread was faster
                self._wake.release()

    def close(self) -> None:
        """Do nothing."""
