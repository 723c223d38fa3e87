"""A producer's cache of topics.

Other processes may add partitions to a topic, alter it, delete it and recreate it while a producer runs.
So a topic is looked up again when REFRESH_MS have passed since the last time, and at once after one of
its batches got an error. If nothing has changed that costs one `stat`.

Kafka's producer does the same, every five minutes (metadata.max.age.ms): it has to ask a broker.

Source: Kafka clients/producer/internals/ProducerMetadata.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from spark_kbatch.errors import KafkaStorageError, ObjectStoreError, UnknownTopicOrPartitionError
from spark_kbatch.options.topic import Topic

logger = logging.getLogger(__name__)

REFRESH_MS = 100


class _KnownTopic(NamedTuple):
    topic: Topic
    next_look_ms: int


class KnownTopics:
    """The cache of a producer's topics, each looked up again once it is old.

    It is thread-safe: each operation on the dict is atomic.
    """

    def __init__(
        self,
        find_topic: Callable[[str], Topic],
        ensure_accepted: Callable[[Topic], None],
        monotonic_ms: Callable[[], int],
    ) -> None:
        """Start without any topic; `find_topic` is asked for each one that is missing or old.

        Args:
            find_topic: returns a topic as it is now; the same object as long as it has not changed.
            ensure_accepted: raises if the producer cannot write to a topic; called for each new object.
        """
        self._find_topic, self._ensure_accepted = find_topic, ensure_accepted
        self._monotonic_ms = monotonic_ms
        self._known: dict[str, _KnownTopic] = {}

    def __call__(self, name: str) -> Topic:
        """Return a topic as it was when last looked up; the same object as long as it has not changed.

        Raises:
            UnknownTopicOrPartitionError: it does not exist, or no longer exists.
        """
        known = self._known.get(name)
        now_ms = self._monotonic_ms()
        if known is not None and now_ms < known.next_look_ms:
            return known.topic
        try:
            topic = self._find_topic(name)
        except UnknownTopicOrPartitionError:
            self._known.pop(name, None)
            raise
        except (KafkaStorageError, ObjectStoreError, OSError) as error:
            if known is None:
                raise
            # The error may be transient; the transport will find out whether records can be written.
            logger.warning(
                "cannot look up topic %r, assuming that it is unchanged: %s", name, error
            )
            topic = known.topic
        if known is None or topic is not known.topic:
            self._ensure_accepted(topic)
        self._known[name] = _KnownTopic(topic, now_ms + REFRESH_MS)
        return topic

    def look_again(self, name: str) -> None:
        """Look a topic up again when it is next asked for, because an error concerned it."""
        known = self._known.get(name)
        if known is not None:
            self._known[name] = known._replace(next_look_ms=-(2**63))
