"""The names of topics that Produce and Fetch name by their ids, as they do from version 13 on.

What is behind a handler knows topics by name, and so do functions that intercept requests. So a
request gets the names before anyone sees it, from what is known of topics without a look at the
disk. If an id is not known, all topics are looked at, which the event loop must not do.

    id -+- known, or found on disk -> name; the id goes along, and is compared with that of the topic
        |                             which has the name when its log is read or appended to
        +- of no topic -------------> the id as text; no topic of that name has this id

An id that no topic has, or none any more, is an UNKNOWN_TOPIC_ID: clients look up the topic again.
Kafka says INCONSISTENT_TOPIC_ID where the metadata and a log differ for a moment. Here they are one.

Source: KIP-516; KafkaApis.handleProduceRequest, handleFetchRequest.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import KBatchError
from spark_kbatch.model import text_of_uuid
from spark_kbatch.options.topic import Topic
from spark_kbatch.server.outcomes import code_of_existing
from spark_kbatch.server.requests import Received
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import BY_TOPIC_ID_SINCE, ApiKey

_NO_ID = uuid.UUID(int=0)
# The array of topics in a request, and the field for a topic's name.
_FIELDS = {ApiKey.PRODUCE: ("topic_data", "name"), ApiKey.FETCH: ("topics", "topic")}


class TopicNames:
    """The names of topics by their ids; thread-safe."""

    def __init__(self, parts: FolderParts) -> None:
        self._topics = parts.metadata.topics

    def fill(self, received: Received, *, looks: bool) -> bool:
        """Put names into a request that has ids; return False if they have to be looked for.

        Args:
            received: any request.
            looks: whether to look for them on disk.
        """
        if received.version < BY_TOPIC_ID_SINCE or received.api_key not in _FIELDS:
            return True
        topics, field = _FIELDS[ApiKey(received.api_key)]
        asked = getattr(received.body, topics)
        if any(self._known(one) is None for one in asked):
            if not looks:
                return False
            self._look()
        for one in asked:
            topic = self._known(one)
            setattr(one, field, str(one.topic_id) if topic is None else topic.name)
        return True

    def _known(self, asked: Any) -> Topic | None:
        return self._topics.known(id_of(asked.topic_id))

    def _look(self) -> None:
        """Look at all topics; one that cannot be read has no id."""
        with contextlib.suppress(OSError, KBatchError):
            for name in self._topics.names(internal=True):
                with contextlib.suppress(OSError, KBatchError):
                    self._topics.find(name)

    def code_of(self, error: Exception, topic_id: str) -> ErrorCode:
        """Return an error's code for a client that named the topic by this id, or by name if empty."""
        code = code_of_existing(error)
        is_gone = code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and topic_id
        if is_gone and self._topics.known(topic_id) is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return code


def id_of(topic_id: uuid.UUID | None, version: int = BY_TOPIC_ID_SINCE) -> str:
    """Return the id by which a request names a topic, as `Topic` has it; empty if by name."""
    return "" if version < BY_TOPIC_ID_SINCE else text_of_uuid((topic_id or _NO_ID).bytes)
