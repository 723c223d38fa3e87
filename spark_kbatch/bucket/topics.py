"""The topics of a cluster in a bucket, to look up and to change; each change is one entry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from spark_kbatch.bucket.entries import (
    Content,
    StartOffsets,
    TopicAlteration,
    TopicCreation,
    TopicDeletion,
    TopicGrowth,
)
from spark_kbatch.bucket.reading import topic_id_of
from spark_kbatch.bucket.shared_ledger import SharedLedger
from spark_kbatch.bucket.state import LedgerState, TopicHead
from spark_kbatch.errors import (
    ConfigError,
    OffsetOutOfRangeError,
)
from spark_kbatch.log.checkpoints import random_id
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import (
    Topic,
    TopicConfig,
    altered,
    ensure_has_all,
    ensure_more_partitions,
    ensure_not_alike,
    ensure_not_internal,
    ensure_valid_topic,
    parse_topic_options,
    settings_of_a_new_topic,
    topic_field,
    topic_key,
)
from spark_kbatch.record.header import MAGIC

logger = logging.getLogger(__name__)

WRITER_TOPIC_AGE_MAX_MS = 5000  # of the state that a producer looks its topics up in


class BucketTopics:
    """The topics of a cluster, as they are now. Thread-safe."""

    def __init__(self, ledger: SharedLedger) -> None:
        self._ledger = ledger
        # The last object made of each topic, so that it is the same one as long as nothing changes. Needs no
        # lock: of two that are made at the same time either is right.
        self._made: dict[str, tuple[object, Topic]] = {}

    def names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        with self._ledger.state() as state:
            return sorted(state.topic_ids)

    def all(self) -> list[Topic]:
        """Return all topics, sorted by name."""
        with self._ledger.state() as state:
            return [self._of(state.topic(name)) for name in sorted(state.topic_ids)]

    def topic(self, name: str, *, max_age_ms: int = 0) -> Topic:
        """Return a topic; raises UnknownTopicOrPartitionError, which says what there is.

        Args:
            max_age_ms: how old the state may be in which it is found; one that is not there is looked for in
                the newest.
        """
        with self._ledger.state(max_age_ms=max_age_ms) as state:
            if name in state.topic_ids:
                return self._of(state.topic(name))
        with self._ledger.state() as state:
            topic_id_of(state, name)
            return self._of(state.topic(name))

    def find(self, name: str) -> Topic | None:
        """Return a topic; None if there is none."""
        with self._ledger.state() as state:
            return self._of(state.topic(name)) if name in state.topic_ids else None

    def existing(self, names: Iterable[str]) -> list[Topic]:
        """Return those of the named topics that exist, all as of one moment."""
        with self._ledger.state() as state:
            return [self._of(state.topic(name)) for name in names if name in state.topic_ids]

    def create(
        self, topic: Topic, first_offsets: Sequence[int] = (), *, level: int = logging.WARNING
    ) -> Topic:
        """Create a topic as `planned` returned it, unless there is one of its name; return what there is then.

        Args:
            topic: which.
            first_offsets: where each partition begins; 0 by default.
            level: of the line in the log that tells the creation: a warning where no one asked for it.
        """
        content = TopicCreation(
            topic.topic_id,
            topic.name,
            tuple(first_offsets) or (0,) * topic.partitions,
            {key: _text(topic.known_config, key) for key in topic.given},
        )

        def propose(state: LedgerState) -> Content | None:
            if topic.name in state.topic_ids:
                return None
            for other in state.topic_ids:
                ensure_not_alike(topic.name, other)
            return content

        if self._ledger.commit(propose) is not None:
            logger.log(
                level,
                "created topic %r with %d partition%s in %s",
                topic.name,
                topic.partitions,
                "s" * (topic.partitions != 1),
                self._ledger.address,
            )
        return self.topic(topic.name, max_age_ms=1000)

    def change(self, name: str, content_of: Callable[[TopicHead], Content]) -> None:
        """Write the entry that changes a topic; `content_of` returns it, given the topic as it is then."""
        self._ledger.commit(lambda state: content_of(state.topics[topic_id_of(state, name)]))

    def _of(self, head: TopicHead) -> Topic:
        version = head.topic_id, len(head.partitions), sorted(head.config.items())
        made = self._made.get(head.name)
        if made is None or made[0] != version:
            partitions, given = len(head.partitions), frozenset(head.config)
            topic = Topic(head.name, head.topic_id, partitions, head.settings, given=given)
            self._made[head.name] = made = version, topic
        return made[1]


class BucketCatalog:
    """The topics of a cluster, to change; a `store.Catalog`."""

    def __init__(self, ledger: SharedLedger, topics: BucketTopics) -> None:
        self._ledger, self._topics = ledger, topics

    def topics(self, *, internal: bool) -> list[Topic]:
        """Return all topics, sorted by name; none is internal."""
        del internal
        return self._topics.all()

    def topic(self, name: str) -> Topic:
        """Return a topic with its settings."""
        return self._topics.topic(name)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None,
        replication_factor: int | None,
        config: TopicConfig | Mapping[str, object],
        exist_ok: bool,
        implied: bool = False,
    ) -> Topic:
        """Create a topic, with one partition by default.

        Args:
            name, partitions, replication_factor, config, exist_ok: as for any place.
            implied: whether no one asked for it, so that it is logged as a warning.
        """
        settings, given = settings_of_a_new_topic(config)
        found = self._topics.find(name)
        if found is None:
            topic = planned(
                name, partitions or 1, replication_factor, TopicConfig(**settings), given
            )
            level = logging.WARNING if implied else logging.INFO
            found = self._topics.create(topic, level=level)
            if found.topic_id == topic.topic_id:
                return found
        ensure_has_all(
            found,
            exist_ok=exist_ok,
            partitions=partitions,
            replication_factor=replication_factor,
            settings=settings,
        )
        return found

    def delete_topic(self, name: str) -> Topic:
        """Delete a topic with all its records."""
        ensure_not_internal(name)
        found = self._topics.topic(name)
        self._topics.change(name, lambda head: TopicDeletion(head.topic_id))
        return found

    def create_partitions(self, name: str, total_count: int) -> Topic:
        """Add partitions to a topic."""
        ensure_not_internal(name)

        def grown(head: TopicHead) -> Content:
            count = len(head.partitions)
            ensure_more_partitions(name, count, total_count)
            return TopicGrowth(head.topic_id, (0,) * (total_count - count))

        self._topics.change(name, grown)
        return self._topics.topic(name)

    def alter_topic(self, name: str, changes: Mapping[str, object]) -> Topic:
        """Change settings of a topic."""
        ensure_not_internal(name)
        after = altered(self._topics.topic(name), changes)
        _ensure_supported(after.known_config)
        texts = {
            key: None if value is None else _text(after.known_config, key)
            for key, value in ((topic_key(given), value) for given, value in changes.items())
        }
        self._topics.change(name, lambda head: TopicAlteration(head.topic_id, texts))
        return self._topics.topic(name)

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
        self._ledger.commit(propose)
        return starts


def planned(
    name: str,
    partitions: int,
    replication_factor: int | None,
    config: TopicConfig,
    given: Iterable[str],
) -> Topic:
    """Return a topic as it would be created, with an id of its own.

    Args:
        given: keys of the settings that were given; empty if all were.

    Raises:
        InvalidTopicError: the name.
        ConfigError: what a bucket does not have, or a setting out of its range.
    """
    ensure_not_internal(ensure_valid_topic(name))
    if (replication_factor or 1) != 1:
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


def _ensure_supported(config: TopicConfig) -> None:
    if config.message_magic < MAGIC or config.is_log_append_time:
        raise ConfigError(
            "in a bucket there are no older message formats, and no LogAppendTime: times are under the CRC of a "
            "batch, and no one rewrites a batch in a bucket"
        )


def _text(config: TopicConfig, key: str) -> str:
    return str(getattr(config, topic_field(key)))
