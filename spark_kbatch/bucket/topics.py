"""The topics of a cluster in a bucket, to look up and to change; each change is one entry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from spark_kbatch.bucket.reading import topic_id_of
from spark_kbatch.bucket.shared_ledger import SharedLedger
from spark_kbatch.errors import ConfigError, OffsetOutOfRangeError
from spark_kbatch.ledger.entries import (
    Content,
    StartOffsets,
    TopicAlteration,
    TopicCreation,
    TopicDeletion,
    TopicGrowth,
)
from spark_kbatch.ledger.image import TopicHead
from spark_kbatch.ledger.state import LedgerState
from spark_kbatch.model import TopicPartition, random_id
from spark_kbatch.options.topic import (
    Topic,
    TopicConfig,
    altered,
    ensure_more_partitions,
    ensure_not_alike,
    ensure_not_internal,
    ensure_valid_topic,
    parse_topic_options,
    topic_field,
    topic_key,
)
from spark_kbatch.record.header import MAGIC
from spark_kbatch.store.catalog import OwnCatalog

logger = logging.getLogger(__name__)

_WRITER_TOPIC_AGE_MAX_MS = 5000  # of the state that a producer looks its topics up in


class BucketCatalog(OwnCatalog):
    """The topics of a cluster, as they are now; a `store.Catalog`. Thread-safe."""

    def __init__(self, ledger: Callable[[], SharedLedger]) -> None:
        """Set up for one cluster, whose ledger `ledger` returns once it is needed."""
        self._ledger = ledger
        # The last object made of each topic, so that it is the same one as long as nothing changes. Needs no
        # lock: of two that are made at the same time either is right.
        self._made: dict[str, tuple[object, Topic]] = {}

    def topics(self, *, internal: bool) -> list[Topic]:
        """Return all topics, sorted by name; none is internal."""
        del internal
        with self._ledger().state() as state:
            return [self._of(state.topic(name)) for name in sorted(state.topic_ids)]

    def topic(self, name: str, *, max_age_ms: int = 0) -> Topic:
        """Return a topic; raises UnknownTopicOrPartitionError, which says what there is.

        Args:
            max_age_ms: how old the state may be in which it is found; one that is not there is looked for in
                the newest.
        """
        with self._ledger().state(max_age_ms=max_age_ms) as state:
            if name in state.topic_ids:
                return self._of(state.topic(name))
        with self._ledger().state() as state:
            topic_id_of(state, name)
            return self._of(state.topic(name))

    def find(self, name: str) -> Topic | None:
        """Return a topic; None if there is none."""
        with self._ledger().state() as state:
            return self._of(state.topic(name)) if name in state.topic_ids else None

    def topic_to_write(self, name: str) -> Topic:
        """Return a topic for a producer, as it was a moment ago."""
        return self.topic(name, max_age_ms=_WRITER_TOPIC_AGE_MAX_MS)

    def plan(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int,
        config: TopicConfig,
        given: Iterable[str],
    ) -> Topic:
        """Return a topic as it would be created, for which the ledger is not read.

        Without keys in `given` all settings are given.

        Raises:
            ConfigError: a setting is out of its range, too.
        """
        ensure_not_internal(ensure_valid_topic(name))
        if replication_factor != 1:
            raise ConfigError(
                f"replication.factor is {replication_factor}; in a bucket it is 1: the object store keeps the copies"
            )
        _ensure_supported(config)
        keys = frozenset(given) or frozenset(
            topic_key(field)
            for field, value in vars(config).items()
            if value != getattr(TopicConfig, field)
        )
        # A TopicConfig may have a value that no option accepts, and that could not be read back.
        parse_topic_options({key: _text(config, key) for key in keys})
        return Topic(name, random_id(), partitions, config, given=keys)

    def create(
        self, planned: Topic, first_offsets: Sequence[int] = (), *, level: int = logging.WARNING
    ) -> Topic:
        """Create a topic, by one entry."""
        content = TopicCreation(
            planned.topic_id,
            planned.name,
            tuple(first_offsets) or (0,) * planned.partitions,
            {key: _text(planned.known_config, key) for key in planned.given},
        )

        def propose(state: LedgerState) -> Content | None:
            if planned.name in state.topic_ids:
                return None
            for other in state.topic_ids:
                ensure_not_alike(planned.name, other)
            return content

        if self._ledger().commit(propose) is not None:
            logger.log(
                level,
                "created topic %r with %d partition%s in %s",
                planned.name,
                planned.partitions,
                "s" * (planned.partitions != 1),
                self._ledger().address,
            )
        return self.topic(planned.name, max_age_ms=1000)

    def _change(self, name: str, content_of: Callable[[TopicHead], Content]) -> None:
        """Write the entry that changes a topic; `content_of` returns it, given the topic as it is then."""
        self._ledger().commit(lambda state: content_of(state.topics[topic_id_of(state, name)]))

    def _of(self, head: TopicHead) -> Topic:
        version = head.topic_id, head.partitions, sorted(head.config.items())
        made = self._made.get(head.name)
        if made is None or made[0] != version:
            partitions, given = head.partitions, frozenset(head.config)
            topic = Topic(head.name, head.topic_id, partitions, head.settings, given=given)
            self._made[head.name] = made = version, topic
        return made[1]

    def delete_topic(self, name: str) -> Topic:
        """Delete a topic with all its records."""
        ensure_not_internal(name)
        found = self.topic(name)
        self._change(name, lambda head: TopicDeletion(head.topic_id))
        return found

    def create_partitions(self, name: str, total_count: int) -> Topic:
        """Add partitions to a topic."""
        ensure_not_internal(name)

        def grown(head: TopicHead) -> Content:
            count = head.partitions
            ensure_more_partitions(name, count, total_count)
            return TopicGrowth(head.topic_id, (0,) * (total_count - count))

        self._change(name, grown)
        return self.topic(name)

    def alter_topic(self, name: str, changes: Mapping[str, object]) -> Topic:
        """Change settings of a topic."""
        ensure_not_internal(name)
        after = altered(self.topic(name), changes)
        _ensure_supported(after.known_config)
        texts = {
            key: None if value is None else _text(after.known_config, key)
            for key, value in ((topic_key(given), value) for given, value in changes.items())
        }
        self._change(name, lambda head: TopicAlteration(head.topic_id, texts))
        return self.topic(name)

    def delete_records(self, below: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Move start offsets; nothing is read below them any more."""
        starts: dict[TopicPartition, int] = {}

        def propose(state: LedgerState) -> Content | None:
            starts.clear()
            moved: dict[str, dict[int, int]] = {}
            for tp, offset in below.items():
                topic_id = topic_id_of(state, tp.topic)
                head = state.partition(topic_id, tp.partition)
                if offset > head.next_offset:
                    raise OffsetOutOfRangeError(
                        str(tp), offset, head.start_offset, head.next_offset
                    )
                starts[tp] = max(head.start_offset, head.next_offset if offset < 0 else offset)
                if starts[tp] > head.start_offset:
                    moved.setdefault(topic_id, {})[tp.partition] = starts[tp]
            return StartOffsets(moved) if moved else None

        for tp in below:
            ensure_not_internal(tp.topic)
        self._ledger().commit(propose)
        return starts


def _ensure_supported(config: TopicConfig) -> None:
    if config.message_magic < MAGIC or config.is_log_append_time:
        raise ConfigError(
            "in a bucket there are no older message formats, and no LogAppendTime: times are under the CRC of a "
            "batch, and no one rewrites a batch in a bucket"
        )


def _text(config: TopicConfig, key: str) -> str:
    return str(getattr(config, topic_field(key)))
