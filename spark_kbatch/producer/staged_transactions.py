"""The transactional producer of a folder or a bucket, whose transactions are jobs of one task.

    _take_over    the number of the last transaction that was committed under the name
    _begin        a job, and a task of it with its producer
    _commit       the job is committed with the next number
    _abort        what the task has staged is removed

A transaction whose number is committed already is another producer's, which has taken over; or it is this one's, and
its commit, whose outcome was unknown, is repeated. `store.repetitions` tells the two apart, as it does for
micro-batches: in place of what a checkpoint says, the evidence has the run of the producer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

from spark_kbatch.errors import CommitError, ConfigError, ProducerFencedError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.object_store import NO_STORE_OPTIONS, StoreOptions
from spark_kbatch.options.producer import ProducerConfig
from spark_kbatch.options.write import WriteOptions
from spark_kbatch.producer.producer import Producer
from spark_kbatch.producer.transactional import TransactionalProducer
from spark_kbatch.store.commits import NOTHING_VISIBLE
from spark_kbatch.store.job import StagedRows, WholeJob
from spark_kbatch.store.repetitions import Attempt, Evidence, LastKept, RowsOfTask

# Appended to the name, so that no stream, `txnAppId` or mirror has the same id: no topic has such a name.
_SUFFIX = "@/producer"


class StagingProducer(TransactionalProducer):
    """A transactional producer of a folder or a bucket."""

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
        super().__init__(config, address)
        self._begin_job, self._last_kept = begin_job, last_kept
        self._id, self._run_id = self._name + _SUFFIX, uuid.uuid4().hex
        self._number = -1  # of the last transaction
        self._options = WriteOptions(
            path=address,
            store=store,
            compression_type=config.compression_type,
            compression_level=config.compression_level,
            batch_size=config.batch_size,
            buffer_memory=config.buffer_memory,
            linger_ms=config.linger_ms,
            # Or a function, in the process that has it.
            partitioner_class=cast("Any", config.partitioner_class),
            partitioner_ignore_keys=config.partitioner_ignore_keys,
            auto_create_topics_enable=config.auto_create_topics_enable,
            request_timeout_ms=config.request_timeout_ms,
            flush=config.flush,
            maintain_ms=config.maintain_ms,
            topic_config={},
        )

    def _take_over(self) -> None:
        """See which transaction was the last one of the name; one that an earlier producer commits later fences this."""
        self._number, _ = self._last_kept(self._id)

    def _begin(self) -> Producer:
        """Begin a job, and return the producer of its one task."""
        self._job = self._begin_job(self._options)
        self._topics, self._task = self._job.begin_task()
        self._staged: StagedRows | None = None  # once it is to be committed
        return cast("Producer", self._task.producer)

    def _committed(self, group_id: str) -> NoReturn:
        """Refuse offsets of groups."""
        raise ConfigError(
            f"a transaction has offsets of groups in a real cluster: in {self._place} a commit has records alone; "
            "write the offsets as records of a topic of their own, in the same transaction"
        )

    def _add_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> NoReturn:
        """Refuse them."""
        self._committed(group_id)

    def _commit(self, producer: Producer) -> None:
        """Publish what was staged, if that is anything; raises as `WholeJob.commit`."""
        producer.close()  # another thread may be sending
        if self._staged is None:
            of_task = RowsOfTask(self._name, None, self._run_id)
            self._staged = self._job.finish_task(self._topics, self._task, of_task)
        if not self._staged.extents:
            self._job.abort([self._staged])
            return
        evidence = Evidence.of_tasks([self._staged.rows], None, (self._run_id, ""))
        try:
            self._job.commit([self._staged], Attempt(self._id, self._number + 1, evidence, None))
        except CommitError as error:
            self._is_decided = error.outcome != NOTHING_VISIBLE
            if not self._is_decided and self._last_kept(self._id)[0] > self._number:
                raise ProducerFencedError(
                    self._name,
                    self._place,
                    "another one of its name has committed a transaction since",
                    f"{NOTHING_VISIBLE} of its transaction",
                ) from error
            raise
        self._number += 1

    def _abort(self) -> None:
        """Remove what was staged."""
        self._task.abandon()
        self._job.abort([] if self._staged is None else [self._staged])
