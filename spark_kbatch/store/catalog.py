"""The topics of a place of our own: what follows from finding, planning and creating one, and lists of them.

Lists go on while some topics are damaged, or are deleted meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from spark_kbatch.errors import KafkaStorageError, UnknownTopicOrPartitionError
from spark_kbatch.options.topic import (
    Topic,
    TopicConfig,
    ensure_has_all,
    ensure_not_internal,
    parse_topic_options,
    settings_of_a_new_topic,
)

_Result = TypeVar("_Result")


class OwnCatalog(Protocol):
    """The part of a `Catalog` that is the same for a folder, a bucket and memory.

    A topic is planned, with an id of its own, and then created unless another one has its name by then.
    """

    def find(self, name: str) -> Topic | None:
        """Return a topic as it is now; None if there is none."""

    def topic(self, name: str) -> Topic:
        """Return a topic as it is now; raises UnknownTopicOrPartitionError, which says what there is."""

    def plan(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int,
        config: TopicConfig,
        given: Iterable[str],
    ) -> Topic:
        """Return a topic as it would be created now, for `create`.

        Args:
            name: of the topic, which is not internal.
            partitions: how many.
            replication_factor: copies of each record.
            config: all settings.
            given: keys of the settings that were given, also of those with the default's value.

        Raises:
            InvalidTopicError: the name.
            ConfigError: what the place does not have.
        """

    def create(
        self, planned: Topic, first_offsets: Sequence[int] = (), *, level: int = logging.WARNING
    ) -> Topic:
        """Create a topic as `plan` returned it, unless one of its name exists; return what exists then.

        Args:
            planned: which.
            first_offsets: where each partition begins; 0 by default.
            level: of the line in the log that tells the creation: a warning where no one asked for it.
        """

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
        """Create a topic, with one partition and one replica by default.

        Args:
            name, partitions, replication_factor, config, exist_ok: as for any place.
            implied: whether no one asked for it: it is logged as a warning, and one that another writer has
                created meanwhile will do, whatever it has.
        """
        ensure_not_internal(name)
        settings, given = settings_of_a_new_topic(config)
        found = self.find(name)
        if found is None:
            planned = self.plan(
                name,
                partitions=partitions or 1,
                replication_factor=replication_factor or 1,
                config=TopicConfig(**settings),
                given=given,
            )
            found = self.create(planned, level=logging.WARNING if implied else logging.INFO)
            if implied or found.topic_id == planned.topic_id:
                return found
        ensure_has_all(
            found,
            exist_ok=exist_ok,
            partitions=partitions,
            replication_factor=replication_factor,
            settings=settings,
        )
        return found

    def create_moved_topic(
        self, name: str, topic_id: str, first_offsets: Sequence[int], config: Mapping[str, str]
    ) -> Topic:
        """Create a topic with one replica that goes on with what it has elsewhere, as `create` does.

        Args:
            name: of the topic.
            topic_id: that it has; empty for a new one.
            first_offsets: where each partition begins.
            config: its settings, by Kafka's keys.

        Raises:
            ConfigError: what the place does not have.
        """
        ensure_not_internal(name)
        planned = self.plan(
            name,
            partitions=len(first_offsets),
            replication_factor=1,
            config=TopicConfig(**parse_topic_options(config)),
            given=config,
        )
        if topic_id:
            planned = replace(planned, topic_id=topic_id)
        return self.create(planned, first_offsets)

    def found_again(self, topic: Topic) -> Topic:
        """Return the topic that a job has found at its begin, for one of its tasks.

        Raises:
            UnknownTopicOrPartitionError: it was deleted since; none is created in its place.
        """
        found = self.find(topic.name)
        if found is None or found.topic_id != topic.topic_id:
            raise UnknownTopicOrPartitionError(
                f"topic {topic.name!r} was deleted while the job ran; "
                + ("create it again and run" if found is None else "it was created again: run")
                + " the job again"
            )
        return found

    def topic_to_write(self, name: str) -> Topic:
        """Return a topic for a producer; raises as `topic`."""
        return self.topic(name)

    def why_lost(self, name: str) -> str:
        """Return why a topic's logs are there without it, so that none may be created; empty if they are not."""
        return ""

    def finder(self, *, create: bool) -> Callable[[str], Topic]:
        """Return what finds topics for one producer, and with `create` creates those that do not exist.

        A topic that it has found before, and that was deleted since, is not created again.
        """
        known = set[str]()

        def find(name: str) -> Topic:
            ensure_not_internal(name)
            try:
                topic = self.topic_to_write(name)
            except UnknownTopicOrPartitionError:
                if not create or name in known or self.why_lost(name):
                    raise
                topic = self.create_topic(
                    name,
                    partitions=None,
                    replication_factor=None,
                    config={},
                    exist_ok=True,
                    implied=True,
                )
            known.add(name)
            return topic

        return find


def existing(find: Callable[[str], Topic], names: Iterable[str]) -> list[Topic]:
    """Return the topics with these names, without those deleted since the names were listed."""
    found = []
    for name in names:
        with contextlib.suppress(UnknownTopicOrPartitionError):
            found.append(find(name))
    return found


def damaged_topics(
    find: Callable[[str], Topic], names: Iterable[str]
) -> dict[str, KafkaStorageError]:
    """Return those of the named topics whose files are damaged, with the errors."""
    found = {}
    for name in names:
        try:
            find(name)
        except UnknownTopicOrPartitionError:
            continue
        except KafkaStorageError as error:
            found[name] = error
    return found


def skipping_deleted(
    find: Callable[[str], Topic], names: Sequence[str], work: Callable[[list[str]], _Result]
) -> _Result:
    """Call `work` with the named topics that exist, again if one is deleted meanwhile; return its result."""
    while True:
        found = existing(find, names)
        try:
            return work([topic.name for topic in found])
        except UnknownTopicOrPartitionError:
            if existing(find, names) == found:
                raise
