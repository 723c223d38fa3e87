"""A mirror into a real cluster: transactions of batches, with progress as offsets of a consumer group.

    take over   InitProducerId, which aborts what a dead process began; OffsetFetch, once offsets are stable
    start       a transaction of offsets alone: from then on progress is there, whatever happens to a unit
    send        AddPartitionsToTxn, Produce
    commit      AddOffsetsToTxn, TxnOffsetCommit, EndTxn

The mirror's name is its transactional id and the name of its group, which has no members. A consumer that
reads committed records sees each unit as a whole, or never.

A cluster forgets offsets of a group that were not committed for offsets.retention.minutes (7 days): so all
are committed again at each start and once a day. A cluster also aborts a transaction that takes longer
than transaction.timeout.ms, which is a minute here: a unit takes seconds.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from spark_kbatch.clock import monotonic_ms
from spark_kbatch.consumer.reading import read_range
from spark_kbatch.errors import (
    ConfigError,
    CorruptRecordError,
    KBatchError,
    MirrorFencedError,
    TopicAlreadyExistsError,
)
from spark_kbatch.mirroring import progress as mirror_progress
from spark_kbatch.mirroring.batches import MirroredBatch
from spark_kbatch.mirroring.progress import Progress
from spark_kbatch.mirroring.target import (
    EndOffsets,
    KeptTopic,
    TargetTopic,
    ensure_no_other_wrote,
)
from spark_kbatch.model import LATEST, OffsetRange, TopicPartition
from spark_kbatch.options.remote import ClusterOptions
from spark_kbatch.options.topic import Topic
from spark_kbatch.remote.batch_producer import BatchProducer
from spark_kbatch.remote.client import Client
from spark_kbatch.remote.metadata import TopicMetadata
from spark_kbatch.remote.offsets import list_edge
from spark_kbatch.remote.source import RemoteSource
from spark_kbatch.remote.topics import max_message_bytes
from spark_kbatch.remote.transactions import Transactions, is_fenced, refusals_explained

TRANSACTION_TIMEOUT_MS = 60_000
_COMMIT_ALL_AGAIN_MS = 24 * 3_600_000


class ClusterTarget:
    """A real Kafka cluster as the target of a mirror, which writes to it in transactions.

    A `target.Target`.
    """

    def __init__(self, options: ClusterOptions, mirror: str) -> None:
        """Set up for the mirror of this name, which is the transactional id and the group's id."""
        self._mirror = mirror
        self._client = Client(options)
        self._transactions = Transactions(self._client, mirror, timeout_ms=TRANSACTION_TIMEOUT_MS)
        self._producer = BatchProducer(self._transactions)
        self._topics: dict[str, Topic] = {}
        self._sent: Counter[TopicPartition] = Counter()  # records, in the current transaction
        self._committed: dict[TopicPartition, int] = {}  # offsets, by this process
        self._all_committed_ms = 0

    @property
    def name(self) -> str:
        """The target cluster's bootstrap servers."""
        return str(self._client.options)

    @property
    def cluster_id(self) -> str:
        """The target cluster's id."""
        return self._client.metadata([]).cluster_id

    def take_over(self) -> Progress:
        """Fence an earlier process of the mirror, and return its progress from the group's offsets.

        Raises:
            ConfigError: the group has offsets that no mirror committed.
        """
        with self._fenced(), refusals_explained(self._transactions):
            self._transactions.take_over()
            found = self._transactions.committed()
        self._producer = BatchProducer(self._transactions)
        try:
            return mirror_progress.unpack_partitions(found)
        except CorruptRecordError as error:
            raise ConfigError(
                f"group {self._mirror!r} of {self.name} has offsets that no mirror committed ({error}); "
                "give the mirror another name"
            ) from None

    def topic(self, name: str) -> TargetTopic | None:
        """Return a topic of the target cluster; None if it does not exist."""
        found = self._client.metadata([name], fresh=True).topics.get(name)
        return None if found is None else self._known(found)

    def create_topic(
        self, name: str, partitions: int, kept: KeptTopic | None = None
    ) -> TargetTopic:
        """Create a topic with the cluster's default settings and replication factor."""
        if kept is not None:
            raise ConfigError(
                f"{self.name} is a real cluster, which gives records its own offsets and topics its own ids: they can "
                "be kept in a folder or a bucket"
            )
        # Its answer may have been lost.
        with contextlib.suppress(TopicAlreadyExistsError):
            self._client.create_topic(name, partitions)
        return self._known(self._client.topic(name))

    def _known(self, found: TopicMetadata) -> TargetTopic:
        name, count = found.name, len(found.partitions)
        self._topics[name] = Topic(name, found.topic_id, count, config=None)
        return TargetTopic(found.topic_id, count, max_message_bytes(self._client, name))

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        """Return the log end offset of each partition of a topic, open transactions included."""
        count = len(self._client.topic(topic).partitions)
        partitions = [TopicPartition(topic, number) for number in range(count)]
        found = list_edge(self._client, partitions, LATEST)
        return {tp.partition: end for tp, end in found.items()}

    def has_records(self, topic: str) -> bool:
        """Return True if a topic has a committed record, or a transaction that is open.

        Records of transactions that this mirror began and did not commit do not count.
        """
        source = RemoteSource(self._client.options)
        for tp, view in source.views(source.partitions(topic)).items():
            start, end, stable, _ = view.offsets
            if stable < end:
                return True
            wanted = OffsetRange(tp, start, stable)
            with source.fetcher(wanted, "") as fetcher:
                if any(rows.num_rows for rows in read_range(fetcher, wanted, ["offset"])):
                    return True
        return False

    def start(self, progress: Progress) -> None:
        """Commit all of the mirror's progress as group offsets, before the first record is written.

        Offsets that are committed again do not expire.
        """
        with self._fenced():
            self._commit_offsets(progress, progress.offsets)
            self._transactions.end(commit=True)
        self._all_committed_ms = monotonic_ms()

    def send(self, topic_partition: TopicPartition, batches: Iterable[MirroredBatch]) -> None:
        """Produce a partition's batches in the mirror's current transaction."""
        topic, partition = self._topics[topic_partition.topic], topic_partition.partition
        with self._fenced():
            for batch in batches:
                self._sent[topic_partition] += batch.records_count
                self._producer.send(
                    topic, partition, batch.data, batch.records_count, batch.attributes
                )

    def is_due(self) -> bool:
        """Return True if the group's offsets must be committed again so as not to expire: once a day."""
        return monotonic_ms() - self._all_committed_ms >= _COMMIT_ALL_AGAIN_MS

    def commit(self, progress: Progress, ends: EndOffsets) -> None:
        """Commit the transaction with the offsets that have changed, and once a day with all of them.

        Of two mirrors that write to a topic for the first time, at most one commits: each writes before it
        looks at all partitions, so that the one that looks later sees what the other one wrote.
        """
        is_due = self.is_due()
        changed = {
            tp: offset
            for tp, offset in progress.offsets.items()
            if is_due or self._committed.get(tp) != offset
        }
        with self._fenced():
            self._producer.flush()
            self._ensure_no_other_wrote(ends)
            self._commit_offsets(progress, changed)
            self._transactions.end(commit=True)
        self._sent.clear()
        if is_due:
            self._all_committed_ms = monotonic_ms()

    def _ensure_no_other_wrote(self, wanted: EndOffsets) -> None:
        expected = {
            topic: {
                partition: end + self._sent[TopicPartition(topic, partition)]
                for partition, end in ends.items()
            }
            for topic, ends in wanted.items()
        }
        ensure_no_other_wrote(self.name, self._mirror, expected, self.end_offsets)

    def _commit_offsets(self, progress: Progress, offsets: Mapping[TopicPartition, int]) -> None:
        topics = self._client.metadata({tp.topic for tp in offsets}).topics
        found = {
            tp: mirror_progress.pack_partition(progress, tp)
            for tp in offsets
            if tp.topic in topics  # of others the cluster keeps no offsets
        }
        if found:
            self._transactions.add_offsets(found)
            self._committed.update({tp: one.offset for tp, one in found.items()})

    def abandon(self) -> None:
        """Abort the transaction after an error, so that readers need not wait until it times out."""
        self._producer.abort()

    def close(self) -> None:
        """Abort the transaction if it is open, and close all connections."""
        self.abandon()
        self._client.close()

    @contextlib.contextmanager
    def _fenced(self) -> Iterator[None]:
        try:
            yield
        except KBatchError as error:
            if is_fenced(error):
                why = (
                    f"a unit took longer than the transaction's {TRANSACTION_TIMEOUT_MS // 1000} s"
                )
                raise MirrorFencedError(self._mirror, self.name, why) from error
            raise
