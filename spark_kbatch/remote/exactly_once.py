"""A Spark job's write to a real Kafka cluster in one transaction: all of its rows once, or none.

    job = ExactlyOnceJob.begin(options)   # driver: checks the options, the topic, versions, rights
    pickle.dumps(job)                     # driver: InitProducerId, once for each job
    staged = job.stage(rows)              # each task: encodes its batches, and sends nothing
    job.commit_micro_batch([staged], 7)   # driver, another process: sends batches and progress

Tasks return finished batches, which go through the driver: up to `exactly.once.driver.bytes`. So no
attempt of a task leaves anything in the cluster, whether it failed, ran twice, or is still running.

`transactional.id.prefix` is both the transactional id and the group whose offsets are the progress:

    the driver of micro-batch N             the process that commits it
    InitProducerId: a new epoch, which
      fences all earlier drivers, and
      aborts what they began
    pickles the job with that epoch
    (tasks send it back with their rows)    OffsetFetch, once no transaction has offsets pending
                                            N is there: skip, or refuse (`store.repetitions`)
                                            AddPartitionsToTxn, Produce, AddOffsetsToTxn,
                                            TxnOffsetCommit of N + 1, EndTxn

The epoch is that of the rows, not of the process that commits: Spark builds another job for the
commit, and a driver that was frozen since its tasks ran must not fence the one that took its place.

The offset N + 1 belongs to partition 0 of the option `topic`; or, where rows name their topics, of one of
the first rows, and stays there. Its metadata says of what, in at most 4,096 characters, the brokers' limit:

    {"id": query, or NAME@TOPIC of a txnAppId, "turn": counts commits under the prefix, **Evidence}

A query that was given another topic has several: the last by turn counts, as a number may be lower again.

If EndTxn gets no answer, or the answer that another driver has taken over, the transaction may have
been committed. Nothing aborts it any more: the progress, which is committed with it, tells.

A cluster forgets offsets that were not committed for offsets.retention.minutes (7 days). A
micro-batch above 0 without progress is therefore refused; and the first micro-batch of a query is
noted even if it has no rows, where there is a topic for it.

Source: KIP-98, KIP-447; Kafka core/.../server/KafkaApis.scala (handleTxnOffsetCommitRequest).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kbatch.clock import monotonic_ms, now_ms
from spark_kbatch.errors import (
    CommitError,
    ConfigError,
    KBatchError,
    RecordTooLargeError,
    RequestTimedOutError,
)
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.remote import ClusterOptions
from spark_kbatch.options.topic import Topic
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.record.header import unpack
from spark_kbatch.remote.batch_producer import BatchProducer
from spark_kbatch.remote.client import Client, leased
from spark_kbatch.remote.job import RemoteJob, ensure_topic, producer_config
from spark_kbatch.remote.topics import max_message_bytes
from spark_kbatch.remote.transactions import Transactions, is_fenced
from spark_kbatch.store.commits import NOTHING_VISIBLE
from spark_kbatch.store.groups import OffsetAndMetadata
from spark_kbatch.store.job import StagedRows, TopicsOfJob, TopicsOfTask, WholeJob
from spark_kbatch.store.repetitions import Attempt, Evidence
from spark_kbatch.store.transport import ProduceBatch
from spark_kbatch.stored_json import StoredObject
from spark_kbatch.wire.errors import ErrorCode, code_of

if TYPE_CHECKING:
    from spark_kbatch.producer.task_producer import TaskProducer
    from spark_kbatch.store.repetitions import ReadPlan

logger = logging.getLogger(__name__)

_METADATA_MAX = 4096  # characters, by default of offset.metadata.max.bytes
_SUMS_MAX = 1000  # characters; by topic they may take more than all metadata
_UNKNOWN, _ONCE = "it is not known whether it is visible", "its rows are visible, once"
# What a broker answers to a client that lacks a right, and a server without transactions to all.
_REFUSALS = {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
}


class Claim(NamedTuple):
    """The transactional id of a job's driver, as its tasks send it back: a later one fences it."""

    producer_id: int
    epoch: int


class StagedBatch(NamedTuple):
    """A finished batch on its way from a task to the commit."""

    topic: Topic
    partition: int
    data: bytearray
    records_count: int
    attributes: int


class QueryProgress(NamedTuple):
    """The last commit of an id under a prefix."""

    id: str
    number: int
    evidence: Evidence
    turn: int  # of the commit among those under the prefix: an older checkpoint has lower numbers

    @classmethod
    def of_attempt(cls, attempt: Attempt, turn: int) -> QueryProgress:
        """Return what is kept of an attempt, without its sources if they are long."""
        evidence = attempt.evidence
        if len(evidence.sums) > _SUMS_MAX:
            digest = hashlib.sha256(evidence.sums.encode()).hexdigest()
            evidence = evidence._replace(sums=f"rows with the digest {digest}")
        found = cls(attempt.id, attempt.number, evidence, turn)
        if len(found.packed().metadata) > _METADATA_MAX:
            found = found._replace(evidence=evidence._replace(sources=""))
        return found

    @classmethod
    def of(cls, found: OffsetAndMetadata, prefix: str) -> QueryProgress:
        """Return what an offset's metadata has; raises ConfigError if another one wrote it."""
        where = f"the offset of group {prefix!r}"
        try:
            kept = StoredObject(json.loads(found.metadata), where, damaged=ConfigError)
            turn = kept.integer("turn", 0)
            return cls(kept.text("id"), found.offset - 1, Evidence.of(kept), turn)
        except ValueError as error:
            raise ConfigError(
                f"option 'transactional.id.prefix' is {prefix!r}, a consumer group with offsets "
                f"that no write has committed ({error}); give another prefix"
            ) from None

    def packed(self) -> OffsetAndMetadata:
        """Return the offset to commit."""
        kept = {"id": self.id, "turn": self.turn, **self.evidence._asdict()}
        text = json.dumps(kept, separators=(",", ":"), ensure_ascii=False)
        return OffsetAndMetadata(self.number + 1, text)


class ExactlyOnceJob(WholeJob):
    """A Spark job that writes to a real cluster in one transaction."""

    def __init__(self, options: WriteOptions) -> None:
        """Store the options that `begin` has checked."""
        self.options, self.topics = options, TopicsOfJob(options)
        self.id: Claim | None = None

    @classmethod
    def begin(
        cls, options: WriteOptions, *, overwrite: bool = False, is_micro_batch: bool = False
    ) -> ExactlyOnceJob:
        """Check a write on the driver; raises as `RemoteJob.begin`.

        Raises:
            ConfigError: an option contradicts exactly once; the cluster is too old, or refuses it.
        """
        if not producer_config(options).enable_idempotence:
            raise ConfigError(
                "option 'delivery.guarantee' is 'exactly-once', which needs acks=all, "
                "enable.idempotence=true, retries of at least 1, and at most 5 requests in "
                "flight; leave these options out"
            )
        RemoteJob.begin(options, overwrite=overwrite, is_micro_batch=is_micro_batch)
        job = cls(options)
        if job._question not in _answered:
            with leased(job._cluster) as client, job._explained():
                job._transactions(client).ensure_usable([options.topic] if options.topic else [])
            _answered.add(job._question)
        return job

    @property
    def _cluster(self) -> ClusterOptions:
        assert self.options.cluster is not None
        return self.options.cluster

    @property
    def _prefix(self) -> str:
        return self.options.transactional_id_prefix or ""

    @property
    def _question(self) -> tuple[ClusterOptions, str, str | None]:
        return self._cluster, self._prefix, self.options.topic

    def _transactions(self, client: Client) -> Transactions:
        timeout_ms = self.options.transaction_timeout_ms
        return Transactions(client, self._prefix, timeout_ms=timeout_ms)

    def __getstate__(self) -> dict[str, Any]:
        """Take over from earlier drivers, once: the job of tasks is pickled, the commit's is not."""
        if self.id is None:
            with leased(self._cluster) as client, self._explained():
                transactions = self._transactions(client)
                transactions.take_over()
            self.id = Claim(transactions.producer_id, transactions.producer_epoch)
        return vars(self)

    # Tasks.

    def begin_task(self) -> tuple[TopicsOfTask, TaskProducer[list[StagedBatch]]]:
        """Begin a task whose batches stay in memory."""
        from spark_kbatch.producer.task_producer import TaskProducer  # noqa: PLC0415  as in folders

        topics = _FoundTopics(self.topics, self._cluster)
        staging = _InMemory(topics, self.options.exactly_once_driver_bytes)
        return topics, TaskProducer(staging.stage, staging, topics.find, self.options, now_ms)

    # The commit.

    def commit_micro_batch(
        self, staged: Sequence[StagedRows], number: int, read_plan: ReadPlan | None = None
    ) -> None:
        """Commit as every place does, and the first micro-batch of a query even if it has no rows.

        Else the next one could not be told from one whose progress is lost.
        """
        rows = [one.rows for one in staged]
        attempt = Attempt.of_micro_batch(
            rows, number, self.options, read_plan, even_empty=number == 0
        )
        if attempt is not None:
            self.commit(staged, attempt)

    def commit(self, staged: Sequence[StagedRows], attempt: Attempt | None = None) -> bool:
        """Send all batches and the progress in one transaction.

        Args:
            staged: by all tasks, in their order.
            attempt: what the progress says; without it none is kept, nor a repetition noticed.

        Returns:
            False if it was skipped as a duplicate.

        Raises:
            CommitError: its rows are too large, another driver has taken over, it took too long,
                or it is no repetition and may not follow; says whether anything is visible.
            KBatchError: a batch was refused; nothing is visible.
        """
        batches = [batch for one in staged for batch in one.extents]
        if not batches and attempt is None:
            return False
        _ensure_fit(sum(len(one.data) for one in batches), self.options.exactly_once_driver_bytes)
        with leased(self._cluster) as client, self._explained():
            transactions = self._transactions(client)
            transactions.go_on_as(*self._claim_of(staged))
            if attempt is None:
                self._send(transactions, batches, {}, {})
                return True
            place = TopicPartition(self.options.topic, 0) if self.options.topic else None
            known = self._known(transactions, place)
            turn = 1 + max((one.turn for one in known.values()), default=0)
            progress = QueryProgress.of_attempt(attempt, turn)
            attempt = attempt._replace(evidence=progress.evidence)
            own = {at: one for at, one in known.items() if one.id == attempt.id}
            last = max(own, key=lambda at: own[at].turn, default=None)
            is_skipped = self._is_repetition(
                attempt, None if last is None else own[last], known.values()
            )
            if is_skipped and own:
                return False
            place = place or last
            if place is None and batches:
                place = TopicPartition(min(one.topic.name for one in batches), 0)
            # What a user skips is noted, or the next one would be refused as well.
            batches = [] if is_skipped else batches
            if place is not None:
                self._send(transactions, batches, {place: progress}, own)
        return not is_skipped

    def abort(self, staged: Sequence[StagedRows]) -> None:
        """Do nothing: tasks leave nothing, and a commit that failed has aborted what it could."""

    def _claim_of(self, staged: Sequence[StagedRows]) -> Claim:
        claims = {one.job for one in staged}
        if len(claims) != 1 or None in claims:
            raise CommitError(
                NOTHING_VISIBLE,
                f"its tasks belong to {len(claims)} writers ({claims}), where one is right: "
                "another driver has run the same micro-batch",
            )
        (claim,) = claims
        return Claim(*claim)

    def _known(
        self, transactions: Transactions, place: TopicPartition | None
    ) -> dict[TopicPartition, QueryProgress]:
        """Return what is kept under the prefix; at this place once no transaction has it pending."""
        found = transactions.committed()
        if place is not None:
            found |= transactions.committed(partitions=[place])
        return {at: QueryProgress.of(one, self._prefix) for at, one in found.items()}

    def _is_repetition(
        self, attempt: Attempt, own: QueryProgress | None, known: Iterable[QueryProgress]
    ) -> bool:
        """Return True if an attempt is skipped; raises as `Attempt.is_repetition`."""
        if own is not None:
            return attempt.is_repetition((own.number, own.evidence))
        others = [one for one in known if _owner(one.id) != _owner(attempt.id)]
        if others:
            last = max(others, key=lambda one: one.turn)
            why = (
                f"under the prefix {self._prefix!r} the last commit is {last.number} of {last.id} "
                f"({last.evidence.shown()}). A prefix belongs to one query: give this one another "
                "'transactional.id.prefix'"
            )
        elif attempt.number > 0 and not attempt.app_id:
            why = (
                f"under the prefix {self._prefix!r} no earlier one is known: the query has "
                "written without 'exactly-once' so far, or under another prefix, or its topic was "
                "deleted, or the cluster forgot the group's offsets after "
                "offsets.retention.minutes. So it cannot be told whether the rows of micro-batch "
                f"{attempt.number} are there"
            )
        else:
            return attempt.is_repetition((-1, None))
        what = f"{'version' if attempt.app_id else 'micro-batch'} {attempt.number} of {attempt.id}"
        wanted = attempt.resolution
        if wanted is None or wanted[1:] != (attempt.id, attempt.number):
            raise CommitError(
                NOTHING_VISIBLE,
                f"{what} is refused: {why}. If it is right to go on, option resolve.micro.batch "
                f"may say 'write {attempt.id} {attempt.number}', or 'skip {attempt.id} "
                f"{attempt.number}' if its rows are in the topic",
            )
        logger.warning("%s: resolve.micro.batch says %s, although %s", what, wanted[0], why)
        return wanted[0] == "skip"

    def _send(
        self,
        transactions: Transactions,
        batches: Sequence[StagedBatch],
        progress: Mapping[TopicPartition, QueryProgress],
        before: Mapping[TopicPartition, QueryProgress],
    ) -> None:
        """Send batches and progress in one transaction, and end it.

        Args:
            transactions: with the epoch of the rows.
            batches: to send.
            progress: to keep, by its place; may be none.
            before: what is kept of the same id so far.
        """
        began_ms = monotonic_ms()
        producer = BatchProducer(transactions)
        try:
            self._ensure_same_topics(transactions.client, batches)
            transactions.add_partitions(
                {TopicPartition(one.topic.name, one.partition) for one in batches}
            )
            for one in batches:
                producer.send(*one)
            producer.flush()
            if progress:
                transactions.add_offsets({at: one.packed() for at, one in progress.items()})
        except BaseException as error:
            producer.abort()
            if isinstance(error, RequestTimedOutError):
                limit = f"transaction.timeout.ms={transactions.timeout_ms}"
                raise CommitError(NOTHING_VISIBLE, f"{error} ({limit})") from error
            raise
        try:
            transactions.end(commit=True)
        except KBatchError as error:
            self._ensure_committed(transactions, progress, before, error)
        logger.info(
            "%s: %d records in %d bytes to %s in %d ms",
            *[f"{one.number} of {one.id}" for one in progress.values()] or ["a batch job"],
            sum(one.records_count for one in batches),
            sum(len(one.data) for one in batches),
            self._cluster,
            monotonic_ms() - began_ms,
        )

    def _ensure_same_topics(self, client: Client, batches: Sequence[StagedBatch]) -> None:
        """Check that the topics are those that tasks have found.

        The option's topic is created for a first micro-batch without rows, if it may be.
        """
        topics = {one.topic.name: one.topic for one in batches}
        if not topics and self.options.topic is not None:
            ensure_topic(self.options, client, self.options.topic)
        found = client.existing_topics(topics).topics if topics else {}
        for name, topic in topics.items():
            if name not in found or found[name].topic_id != topic.topic_id:
                raise CommitError(
                    NOTHING_VISIBLE,
                    f"topic {name!r} of {self._cluster} was deleted while the job ran; run it again",
                )

    def _ensure_committed(
        self,
        transactions: Transactions,
        progress: Mapping[TopicPartition, QueryProgress],
        before: Mapping[TopicPartition, QueryProgress],
        error: KBatchError,
    ) -> None:
        """Return if a transaction was committed whose end was answered by an error, or by nothing.

        Raises:
            CommitError: it was not, or that is not known.
        """
        if not progress:
            raise CommitError(
                _UNKNOWN, f"{error}. With 'txnAppId' and 'txnVersion' another try would find out"
            ) from error
        ((place, mine),) = progress.items()
        try:
            known = self._known(transactions, place)
        except KBatchError as unanswered:
            raise CommitError(
                _UNKNOWN,
                f"{error}; {unanswered}. When it runs again it is skipped if it is there",
            ) from error
        if known.get(place) == mine:
            logger.info("%d of %s is committed, although %s", mine.number, mine.id, error)
            return
        now = {at: one for at, one in known.items() if one.id == mine.id}
        if now != before and any(one.number >= mine.number for one in now.values()):
            raise CommitError(_ONCE, f"a newer driver has gone on from it ({error})") from error
        if is_fenced(error):
            raise error
        raise CommitError(NOTHING_VISIBLE, f"the cluster has aborted it: {error}") from error

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        began_ms = monotonic_ms()
        try:
            yield
        except KBatchError as error:
            timeout_ms = self.options.transaction_timeout_ms
            if is_fenced(error):
                why = (
                    f"it took longer than transaction.timeout.ms={timeout_ms}, or a newer driver"
                    if monotonic_ms() - began_ms >= timeout_ms
                    else "a newer driver, or another query,"
                )
                raise CommitError(
                    NOTHING_VISIBLE,
                    f"{why} has taken over the prefix {self._prefix!r} in {self._cluster} ({error})",
                ) from error
            code = code_of(error)
            if code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise ConfigError(
                    f"option 'transaction.timeout.ms' is {timeout_ms}, more than the brokers of "
                    f"{self._cluster} allow by transaction.max.timeout.ms; give less"
                ) from error
            if code in _REFUSALS:
                raise ConfigError(
                    f"{self._cluster} refuses what exactly-once needs ({error}): transactions and "
                    "Kafka 2.5, and the rights to write and describe the transactional id "
                    f"{self._prefix!r}, to read the consumer group of that name, and to read and "
                    "write the topics"
                ) from error
            raise


# What this process has asked clusters for: else streams would ask twice for each micro-batch.
_answered: set[tuple[ClusterOptions, str, str | None]] = set()


def _owner(name: str) -> str:
    """Return the query of an id, or the txnAppId with the @ that no query has."""
    return name[: name.rindex("@") + 1] if "@" in name else name


def _ensure_fit(size_in_bytes: int, limit: int, whose: str = "a job or micro-batch") -> None:
    if size_in_bytes > limit:
        raise CommitError(
            NOTHING_VISIBLE,
            f"{whose} has {size_in_bytes} bytes or more, and with 'exactly-once' they go through "
            f"the driver: at most {limit}. Let a stream take less at a time "
            "(maxOffsetsPerTrigger), or compress (compression.type), or raise "
            "'exactly.once.driver.bytes' if the driver has the memory; or, for any size, write to "
            "a cluster in a folder or a bucket, and copy that with `kbatch mirror`",
        )


class _FoundTopics(TopicsOfTask):
    """The topics of one task, which exist or are created now, and how large their batches may be."""

    def __init__(self, job: TopicsOfJob, cluster: ClusterOptions) -> None:
        self.found, self.planned, self.most_bytes = {}, {}, dict[str, int]()
        self._options, self._cluster = job.options, cluster

    def find(self, name: str) -> Topic:
        """Return a topic; raises as `ensure_topic`."""
        with leased(self._cluster) as client:
            client.metadata([name], fresh=True)  # an earlier job may have seen one of its name
            topic = ensure_topic(self._options, client, name)
            self.most_bytes[name] = max_message_bytes(client, name)
        self.found[name] = Topic(name, topic.topic_id, len(topic.partitions), config=None)
        return self.found[name]


class _InMemory:
    """The staged batches of one task; a `TaskStaging`."""

    def __init__(self, topics: _FoundTopics, limit: int) -> None:
        self._topics, self._limit = topics, limit
        self._batches: list[StagedBatch] = []
        self._size = 0

    def stage(self, batch: ProduceBatch) -> None:
        """Keep a copy of a batch; raises RecordTooLargeError, upon which a producer divides it."""
        topic, size = batch.topic, len(batch.data)
        most = self._topics.most_bytes[topic.name]
        if size > most:
            what = f"a record for topic {topic.name!r}, as a batch of its own,"
            raise RecordTooLargeError(what, size, most, "max.message.bytes", topic.name)
        self._size += size
        _ensure_fit(self._size, self._limit, "a task")
        data = bytearray(batch.data)
        attributes, partition = unpack(data).attributes, batch.topic_partition.partition
        self._batches.append(StagedBatch(topic, partition, data, batch.records_count, attributes))

    def finish(self) -> list[StagedBatch]:
        """Return all batches, in order."""
        return self._batches

    def abandon(self) -> None:
        """Drop all batches."""
        self._batches = []
