"""A transactional producer: a `Producer` for each transaction, between the place's begin and end of it.

    take_over     once: in a real cluster it fences earlier producers of the name
    begin         a new `Producer`; outside of a transaction there is none
    commit        the producer has written all records and ends, then the place commits
    abort         the producer drops what it has not sent and ends, then the place aborts

So the place alone knows what a transaction is, and while it begins or ends one no thread sends.

    after an error of               what is left to do
    a record, or the commit         abort_transaction
    the commit's last step, if its  commit_transaction again: it may be committed already
      outcome is unknown
    anything, as it was fenced      close

Source: Kafka clients/producer/KafkaProducer.java, clients/producer/internals/TransactionManager.java.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Never, NoReturn, Protocol

from spark_kbatch.errors import (
    BufferExhaustedError,
    CommitError,
    ConfigError,
    KBatchError,
    ProducerClosedError,
    ProducerForkedError,
    RecordTooLargeError,
    TransactionAbortedError,
)
from spark_kbatch.model import PartitionKey, TopicPartition
from spark_kbatch.options import arguments
from spark_kbatch.producer.futures import (
    ArrowCallback,
    ArrowFuture,
    Callback,
    FailedFuture,
    RecordFuture,
)
from spark_kbatch.producer.producer import Bytes, Producer
from spark_kbatch.store.commits import NOTHING_VISIBLE

logger = logging.getLogger(__name__)

_ABORT_TIMEOUT_S = 5.0  # for requests in flight

GroupOffsets = dict[str, dict[TopicPartition, int]]  # by group


class TransactionalPlace(Protocol):
    """A place that one transactional producer writes to. Called by one thread at a time."""

    name: str  # the producer's transactional id
    why_no_offsets: str  # why a commit takes no offsets of groups; empty if it does

    @property
    def is_decided(self) -> bool:
        """Whether the commit of the open transaction was asked for, so that it may have happened."""

    def take_over(self) -> None:
        """Get ready for the first transaction."""

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the offsets of a group between transactions; raises ConfigError where commits take none."""

    def begin(self) -> Producer:
        """Begin a transaction, and return the producer of its records."""

    def commit(self, offsets: GroupOffsets) -> None:
        """Commit the transaction, whose producer has written everything and is closed, with offsets of groups."""

    def abort(self) -> None:
        """Abort the transaction, whose producer has ended."""

    def fenced(self, error: KBatchError) -> KBatchError | None:
        """Return the error for the user if one means that another producer of the name has taken over, else None."""

    def close(self) -> None:
        """Let go of the place."""


class TransactionalProducer(Producer):
    """A producer whose records become visible a transaction at a time. Thread-safe.

        with cluster.producer(transactional_id="orders-1") as producer:
            with producer.transaction():
                producer.send("orders", key="k", value="v")
                producer.send_offsets_to_transaction({("events", 0): 1500}, "my-group")

    or, in the words of other clients, begin_transaction, commit_transaction and abort_transaction. Records of one
    transaction are all visible, or none is, to a reader of committed records, which every reader here is.

    It has all methods of a Producer, which the one of the open transaction does.
    """

    def __init__(self, place: TransactionalPlace) -> None:
        """Set up; nothing is asked of the place yet."""
        # What `Producer.__init__` sets is of one transaction.
        self._place, self._process_id = place, os.getpid()
        self._lock = threading.RLock()  # held by who begins or ends
        self._has_taken_over = self._is_ending = self._is_closed = False
        self._producer: Producer | None = None  # of the open transaction
        self._latest: Producer | None = None
        self._offsets: GroupOffsets = {}
        self._failed: KBatchError | None = None  # why the open transaction can only be aborted
        self._fenced: KBatchError | None = None

    # Transactions.

    def init_transactions(self) -> None:
        """Get ready for the first transaction; `begin_transaction` does that by itself.

        In a real cluster this aborts what an earlier producer of the name has begun and not ended, and fences it.

        Raises:
            ConfigError: the place has no transactions for this client; says what to do.
            ProducerFencedError: another producer has taken over since.
            ProducerClosedError, ProducerForkedError: as for `Producer.send`.
        """
        with self._beginning_or_ending("init_transactions()"):
            self._ensure_open()
            if not self._has_taken_over:
                self._place.take_over()
                self._has_taken_over = True

    def begin_transaction(self) -> None:
        """Begin a transaction; raises as `init_transactions`.

        Raises:
            KBatchError: one is open.
        """
        with self._beginning_or_ending("begin_transaction()"):
            self.init_transactions()
            self._ensure_none_open()
            self._offsets, self._failed, self._is_ending = {}, None, False
            self._producer = self._latest = self._place.begin()

    def commit_transaction(self) -> None:
        """Send everything, wait until it is written, and make it visible together with the offsets of groups.

        Raises:
            CommitError: a record or an offset could not be written, so that the transaction can only be aborted;
                or its outcome is unknown, and this may be called again.
            ProducerFencedError: another producer has taken over, or the transaction's time was up.
            KBatchError: no transaction is open; or a callback calls this.
        """
        with self._beginning_or_ending("commit_transaction()"):
            producer = self._open_one("commit_transaction")
            if self._failed is not None:
                self._refuse_commit(self._failed)
            self._is_ending = True
            try:
                if not self._place.is_decided:
                    # After the end: another thread may be sending meanwhile.
                    producer.close()
                    self.ensure_delivered()
                self._place.commit(self._offsets)
            except KBatchError as error:
                self._refuse_if_fenced(error)
                self._note_failure(error)
            self._producer = None

    def _refuse_if_fenced(self, error: KBatchError) -> None:
        """Raise ProducerFencedError, and keep it, if an error means that."""
        fenced = self._place.fenced(error)
        if fenced is not None:
            self._fenced = fenced
            raise fenced from error

    def _note_failure(self, error: KBatchError) -> NoReturn:
        """Raise the error of a commit that says what is left to do."""
        if self._place.is_decided:
            raise CommitError(
                "whether the transaction is committed is not known; call commit_transaction() again",
                str(error),
            ) from error
        self._failed = error
        self._refuse_commit(error)

    def _refuse_commit(self, why: KBatchError) -> NoReturn:
        if isinstance(why, CommitError):  # of a job, which says whether anything is visible
            raise why
        raise CommitError(
            f"{NOTHING_VISIBLE}, and abort_transaction() is what is left to do", str(why)
        ) from why

    def abort_transaction(self) -> None:
        """Drop all records of the transaction, and its offsets; readers of committed records never see them.

        Records that were not sent fail with TransactionAbortedError.

        Raises:
            CommitError: the commit was asked for, and its outcome is unknown.
            ProducerFencedError: as for `commit_transaction`; nothing of the transaction is visible.
            KBatchError: no transaction is open; or a callback calls this.
        """
        with self._beginning_or_ending("abort_transaction()"):
            producer = self._open_one("abort_transaction")
            if self._place.is_decided and self._fenced is None:
                raise CommitError(
                    "whether the transaction is committed is not known",
                    "its commit was asked for, so it cannot be aborted: call commit_transaction() again",
                )
            self._is_ending = True
            producer.abandon(
                TransactionAbortedError("the transaction was aborted"), _ABORT_TIMEOUT_S
            )
            self._failed = self._failed or KBatchError("abort_transaction() has failed")
            if self._fenced is None:
                try:
                    self._place.abort()
                except KBatchError as error:
                    self._refuse_if_fenced(error)
                    raise
            self._producer = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[TransactionalProducer]:
        """Return a block that is one transaction: committed at its end, aborted if it raises.

            with producer.transaction():
                producer.send("orders", value="v")

        Raises as `begin_transaction` and `commit_transaction`; a transaction that cannot be committed is aborted.
        """
        self.begin_transaction()
        try:
            yield self
            if self._producer is not None:  # the block may have ended it
                self.commit_transaction()
        except BaseException:
            self._abort_if_open()
            raise

    def _abort_if_open(self) -> None:
        with self._lock:
            if self._producer is None or self._place.is_decided:
                return
            try:
                self.abort_transaction()
            except KBatchError as error:
                logger.warning(
                    "a transaction of %r could not be aborted: %s", self._place.name, error
                )

    def committed_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the offsets that a group has committed: where a program that sends them goes on when it starts.

        It waits until no transaction that is being ended has offsets of the group.

        Raises:
            ConfigError: the argument is not accepted; or this place takes no offsets in transactions.
            KBatchError: a transaction is open; or as `init_transactions`.
        """
        with self._beginning_or_ending("committed_offsets()"):
            self.init_transactions()
            self._ensure_none_open()
            return self._place.committed(arguments.group(group_id))

    def send_offsets_to_transaction(
        self, offsets: Mapping[PartitionKey, int], group_id: str
    ) -> None:
        """Commit offsets of a consumer group with the transaction: both happen, or neither.

        They are sent with the commit.

        Args:
            offsets: of the next record to read, by (topic, partition).
            group_id: the group.

        Raises:
            ConfigError: an argument is not accepted; or this place takes no offsets in transactions.
            KBatchError: no transaction is open.
        """
        group_id, wanted = arguments.group_offsets(group_id, offsets)
        self._sending("send_offsets_to_transaction")
        if self._place.why_no_offsets:
            raise ConfigError(self._place.why_no_offsets)
        self._offsets.setdefault(group_id, {}).update(wanted)

    # Sending.

    def send(
        self,
        topic: str,
        value: Bytes | None = None,
        key: Bytes | None = None,
        *,
        headers: Iterable[tuple[str, Bytes | None]] | Mapping[str, Bytes | None] = (),
        partition: int | None = None,
        timestamp: int | datetime.datetime | None = None,
        callback: Callback | None = None,
        **unknown: Never,
    ) -> RecordFuture:
        """Send one record in the open transaction, as `Producer.send` does, which has the arguments.

        Its future ends when the record is written, and not yet visible; in a folder or a bucket, where the commit
        gives offsets, its offset is -1.

        Raises:
            KBatchError: no transaction is open.
            ProducerFencedError: another producer has taken over.
        """
        future = self._sending("send").send(
            topic,
            value,
            key,
            headers=headers,
            partition=partition,
            timestamp=timestamp,
            callback=callback,
            **unknown,
        )
        if isinstance(future, FailedFuture):
            self._fail(future.exception())
        return future

    def send_arrow(
        self, topic: str | None, rows: Any, *, callback: ArrowCallback | None = None
    ) -> ArrowFuture:
        """Send every row of a table in the open transaction, as `Producer.send_arrow` does; raises as `send`."""
        producer = self._sending("send_arrow")
        try:
            return producer.send_arrow(topic, rows, callback=callback)
        except (BufferExhaustedError, RecordTooLargeError) as error:
            self._fail(error)  # some of the rows may be sent
            raise

    def _fail(self, error: BaseException | None) -> None:
        """Let the open transaction only be aborted."""
        if isinstance(error, KBatchError):
            self._failed = self._failed or error

    def flush(self, timeout: float | None = None) -> None:
        """Wait until each record of the open transaction is written or has failed, as `Producer.flush` does."""
        producer = self._producer
        if producer is not None:
            producer.flush(timeout)

    def ensure_delivered(self) -> None:
        """Raise the error of the first record of the open transaction that failed, if any."""
        if self._failed is not None:
            raise self._failed
        if self._producer is not None:
            self._producer.ensure_delivered()

    def metrics(self) -> dict[str, float | None]:
        """Return what was sent, as `Producer.metrics` does; nothing before the first transaction.

        In a real cluster it is of all transactions, in a folder or a bucket of the latest one.
        """
        return {} if self._latest is None else self._latest.metrics()

    def why_waiting(self) -> Exception | None:
        """Return the error for which records wait to be sent again; None if none do."""
        return None if self._producer is None else self._producer.why_waiting()

    def close(self, timeout: float | None = None) -> None:
        """Abort the open transaction, if there is one, and stop. Safe to call again.

        Args:
            timeout: of no meaning here: an abort takes seconds at most.
        """
        if self._process_id != os.getpid():
            return
        with self._beginning_or_ending("close()"):
            if self._is_closed:
                return
            if self._place.is_decided:
                logger.warning(
                    "producer %r is closed before it is known whether its transaction is committed",
                    self._place.name,
                )
            elif self._producer is not None:
                logger.warning(
                    "producer %r is closed: its transaction is aborted", self._place.name
                )
            self._abort_if_open()
            self._is_closed = True
            self._place.close()

    # Inside.

    def _sending(self, what: str) -> Producer:
        """Return the producer of the open transaction, for records."""
        producer = self._open_one(what)
        if self._is_ending:
            raise KBatchError(f"{what}() in a transaction that is being ended: begin another one")
        return producer

    def _ensure_none_open(self) -> None:
        if self._producer is not None:
            raise KBatchError(
                "a transaction is open: commit_transaction() or abort_transaction() ends it"
            )

    def _open_one(self, what: str) -> Producer:
        self._ensure_open(may_be_fenced=what == "abort_transaction")
        producer = self._producer
        if producer is None:
            raise KBatchError(
                f"{what}() outside of a transaction: call begin_transaction() first, or write "
                "`with producer.transaction():`"
            )
        return producer

    def _ensure_open(self, *, may_be_fenced: bool = False) -> None:
        if self._process_id != os.getpid():
            raise ProducerForkedError(self._process_id, os.getpid())
        if self._is_closed:
            raise ProducerClosedError("the producer is closed")
        if self._fenced is not None and not may_be_fenced:
            raise self._fenced

    @contextlib.contextmanager
    def _beginning_or_ending(self, what: str) -> Iterator[None]:
        # Whoever has the lock may wait for a callback.
        if self._latest is not None and self._process_id == os.getpid():
            self._latest.ensure_no_callback(what)
        with self._lock:
            yield

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<TransactionalProducer {self._place.name!r}, {state}>"
