"""The transactions of a producer to a folder or a bucket: each is a job of one task.

    take_over   the number of the last transaction that was committed under the name
    begin       a job, and a task of it with its producer
    commit      the job is committed with the next number
    abort       what the task has staged is removed

A transaction whose number is committed already is another producer's, which has taken over; or it is this one's, and
its commit, whose outcome was unknown, is repeated. Which of the two, the run says that the commit keeps.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from spark_kbatch.errors import CommitError, ConfigError, KBatchError, ProducerFencedError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.object_store import NO_STORE_OPTIONS, StoreOptions
from spark_kbatch.options.producer import ProducerConfig
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.producer.producer import Producer
from spark_kbatch.producer.task_producer import TaskProducer
from spark_kbatch.producer.transactional import GroupOffsets
from spark_kbatch.store.commits import NOTHING_VISIBLE
from spark_kbatch.store.job import StagedRows, TopicsOfTask, WholeJob
from spark_kbatch.store.os_errors import translated
from spark_kbatch.store.repetitions import Attempt, Evidence, LastKept, RowsOfTask

# Behind the name, so that no stream, `txnAppId` or mirror has the same id: it is no topic's name.
_SUFFIX = "@/producer"


class _Turn(Attempt):
    """A producer's transaction; its id is the producer's, and the evidence has its run."""

    def is_repetition(self, kept: LastKept) -> bool:
        """Return True if this transaction is committed.

        Raises:
            ProducerFencedError: another one of its number, or of a later one, is.
        """
        number, last = kept
        if number < self.number:
            return False
        if number == self.number and last is not None and last.run_id == self.evidence.run_id:
            return True
        raise ProducerFencedError(
            self.id.removesuffix(_SUFFIX),
            self.app_id,
            "another one of its name has committed a transaction since",
            f"{NOTHING_VISIBLE} of its transaction",
        )


class _Open(NamedTuple):
    job: WholeJob
    topics: TopicsOfTask
    task: TaskProducer[Any]


class StagedTransactions:
    """A folder or a bucket as the place of one transactional producer; a `TransactionalPlace`."""

    is_decided = False

    def __init__(
        self,
        address: str,
        config: ProducerConfig,
        begin_job: Callable[[WriteOptions], WholeJob],
        last_kept: Callable[[str], LastKept],
        store: StoreOptions = NO_STORE_OPTIONS,
    ) -> None:
        """Set up.

        Args:
            address: of the place.
            config: of the producer, with its transactional id.
            begin_job: begins a job there.
            last_kept: returns what is kept of the last commit of an id, as of now.
            store: options of the bucket.
        """
        self.name = name = config.transactional_id or ""
        self.why_no_offsets = (
            f"a transaction has offsets of groups in a real cluster: in {address} a commit has records alone; "
            "write the offsets as records of a topic of their own, in the same transaction"
        )
        self._options, self._id = _options_of(address, config, store), name + _SUFFIX
        self._begin_job, self._last_kept = begin_job, last_kept
        self._of_task = RowsOfTask(name, None, uuid.uuid4().hex)
        self._number = -1  # of the last transaction
        self._open: _Open | None = None  # the latest transaction
        self._staged: StagedRows | None = None  # of it, once it is to be committed

    def take_over(self) -> None:
        """See which transaction was the last one of the name; one that an earlier producer commits later fences this."""
        with translated(self._options.path):
            self._number, _ = self._last_kept(self._id)

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Refuse, as a commit has no offsets of groups."""
        raise ConfigError(self.why_no_offsets)

    def begin(self) -> Producer:
        """Begin a job, and return the producer of its one task."""
        with translated(self._options.path):
            job = self._begin_job(self._options)
            self._open, self._staged = _Open(job, *job.begin_task()), None
        return self._open.task.producer

    def commit(self, offsets: GroupOffsets) -> None:
        """Publish what was staged, if that is anything; raises as `WholeJob.commit`."""
        del offsets
        assert self._open is not None
        job, topics, task = self._open
        with translated(self._options.path):
            if self._staged is None:
                self._staged = job.finish_task(topics, task, self._of_task)
            if not self._staged.extents:
                job.abort([self._staged])
                return
            evidence = Evidence.of_tasks([self._staged.rows], None)
            turn = _Turn(self._id, self._number + 1, evidence, None, self._options.path)
            try:
                job.commit([self._staged], turn)
            except CommitError as error:
                self.is_decided = error.outcome != NOTHING_VISIBLE
                raise
        self._number, self.is_decided = self._number + 1, False

    def abort(self) -> None:
        """Remove what was staged."""
        assert self._open is not None
        with translated(self._options.path):
            self._open.task.abandon()
            self._open.job.abort([] if self._staged is None else [self._staged])

    def fenced(self, error: KBatchError) -> KBatchError | None:
        """Return the error that says that another producer of the name has committed, or None."""
        causes = error, error.__cause__
        return next((one for one in causes if isinstance(one, ProducerFencedError)), None)

    def close(self) -> None:
        """Do nothing: a job keeps nothing open."""


def _options_of(address: str, config: ProducerConfig, store: StoreOptions) -> WriteOptions:
    partitioner: Any = config.partitioner_class  # or a function, in the process that has it
    return WriteOptions(
        path=address,
        store=store,
        compression_type=config.compression_type,
        compression_level=config.compression_level,
        batch_size=config.batch_size,
        buffer_memory=config.buffer_memory,
        linger_ms=config.linger_ms,
        partitioner_class=partitioner,
        partitioner_ignore_keys=config.partitioner_ignore_keys,
        auto_create_topics_enable=config.auto_create_topics_enable,
        request_timeout_ms=config.request_timeout_ms,
        flush=config.flush,
        maintain_ms=config.maintain_ms,
        topic_config={},
    )
