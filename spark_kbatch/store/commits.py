"""The commits of Spark jobs to a place, and the interface by which they are listed."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import NO_TRANSACTION_SEQUENCE, TopicPartition, ranges_shown

APPEND, OVERWRITE = "append", "overwrite"  # modes
ALL_COMMITS = range((1 << 63) - 1)  # in place of some numbers
NOTHING_VISIBLE = "nothing is visible"  # an outcome of a commit


class Author(NamedTuple):
    """The application, query and user that commit, as far as known."""

    application_id: str = ""  # of Spark
    query_id: str = ""  # of a streaming query
    user: str = ""


UNKNOWN_AUTHOR = Author()


def user_name() -> str:
    """Return the name of the user who runs this process, for the history of commits."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return str(os.getuid())


class Commit(NamedTuple):
    """One commit of a Spark job, as the history of its place has it."""

    number: int
    time_ms: int
    overwrite: bool
    transactional_id: str
    sequence: int  #: of the transaction within its id; -1 for none
    author: Author
    records_count: int
    size_in_bytes: int
    offsets: Mapping[TopicPartition, tuple[int, int]]  #: of its records: first, and after the last
    ends: Mapping[TopicPartition, int]  #: high watermarks of all partitions of the topics touched

    @property
    def mode(self) -> str:
        """The save mode, in Spark's words."""
        return OVERWRITE if self.overwrite else APPEND

    @property
    def job(self) -> str:
        """What was committed: a micro-batch of a query, a job, or a transaction."""
        number, query_id = self.sequence, self.author.query_id
        return (
            f"micro-batch {number} of query {query_id}"
            if query_id
            else f"job {self.transactional_id}"
            if number == NO_TRANSACTION_SEQUENCE
            else f"transaction {number} of {self.transactional_id}"
        )

    @property
    def topics(self) -> list[str]:
        """Names of the topics that it touched, sorted."""
        return sorted({tp.topic for tp in self.ends})

    def ending_offsets(self, topic: str | None = None) -> str:
        """Return the topics' end offsets after the commit, as JSON for the option `endingOffsets`.

        Args:
            topic: only this one; all that the commit touched by default.

        Raises:
            ConfigError: the commit did not touch that topic.
        """
        topics = self.topics if topic is None else [topic]
        if topics and topics[0] not in self.topics:
            raise ConfigError(
                f"commit {self.number} did not touch topic {topic!r}; it touched: "
                f"{', '.join(self.topics)}"
            )
        ends = {tp: end for tp, end in self.ends.items() if tp.topic in topics}
        return json.dumps(_by_topic(ends))

    def summary(self) -> str:
        """Return one line about the commit: its job, number of records, bytes and offsets."""
        return (
            f"commit {self.number}, {self.job}: {self.records_count} records, {self.size_in_bytes} bytes, "
            f"{ranges_shown(self.offsets)}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return all fields of the commit, by their names in JSON."""
        return {
            "commit": self.number,
            "time": self.time_ms,
            "mode": self.mode,
            "transactional_id": self.transactional_id,
            "sequence": self.sequence,
            **self.author._asdict(),
            "records": self.records_count,
            "bytes": self.size_in_bytes,
            "offsets": _by_topic(self.offsets),
            "ends": _by_topic(self.ends),
        }


class CommitHistory(Protocol):
    """The history of a place's commits."""

    def read(self, topic: str | None = None, numbers: range = ALL_COMMITS) -> Iterator[Commit]:
        """Yield the commits with these numbers, or only those that touched a topic, newest first."""

    def numbers(self) -> range:
        """Return the numbers that commits which are kept may have, up to that of the next one; empty if there is none."""

    def find(self, number: int) -> Commit:
        """Return the commit with this number.

        Raises:
            ConfigError: there is none, or it is not kept any more.
        """


def _by_topic(values: Mapping[TopicPartition, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for topic_partition in sorted(values):
        topic, partition = topic_partition
        found.setdefault(topic, {})[str(partition)] = values[topic_partition]
    return found
