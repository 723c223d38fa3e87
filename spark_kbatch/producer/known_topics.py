"""Topics as a producer knows them: looked up when first named, and looked at now and then.

Others add partitions to a topic, alter it, delete it and create it again while a producer runs. So a
topic is looked at again once REFRESH_MS have passed since the last look, and at once after an answer
with an error of it. A look costs one `stat` where nothing has changed.

Kafka's producer does the same with metadata.max.age.ms, of five minutes: it has to ask a broker.

Source: Kafka clients/producer/internals/ProducerMetadata.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from spark_kbatch.errors import KafkaStorageError, UnknownTopicOrPartitionError
from spark_kbatch.options.topic import Topic

logger = logging.getLogger(__name__)

REFRESH_MS = 100


class _Known(NamedTuple):
    topic: Topic
    next_look_ms: int


class KnownTopics:
    """The topics of one producer. Thread-safe: each step on the dict is one of the interpreter's."""

    def __init__(
        self,
        find_topic: Callable[[str], Topic],
        ensure_accepted: Callable[[Topic], None],
        monotonic_ms: Callable[[], int],
    ) -> None:
        """Set up.

        Args:
            find_topic: the topic as it is now; the same object while it has not changed.
            ensure_accepted: raises where the producer cannot write to a topic; asked of each object.
        """
        self._find_topic, self._ensure_accepted = find_topic, ensure_accepted
        self._monotonic_ms = monotonic_ms
        self._known: dict[str, _Known] = {}

    def __call__(self, name: str) -> Topic:
        """Return the topic as it was at the last look; the same object while it has not changed.

        Raises:
            UnknownTopicOrPartitionError: it does not exist, or does no longer.
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
        except (KafkaStorageError, OSError) as error:
            if known is None:
                raise
            # It may pass; whether records can be written meanwhile the transport finds out.
            logger.warning("topic %r cannot be looked at, and is taken as it was: %s", name, error)
            topic = known.topic
        if known is None or topic is not known.topic:
            self._ensure_accepted(topic)
        self._known[name] = _Known(topic, now_ms + REFRESH_MS)
        return topic

    def look_again(self, name: str) -> None:
        """Look at a topic when it is asked for next: something was wrong with it."""
        known = self._known.get(name)
        if known is not None:
            self._known[name] = known._replace(next_look_ms=-(2**63))
