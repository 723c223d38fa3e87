"""A transactional producer: a `Producer` for each transaction, between the place's begin and end of it.

    _take_over    once: in a real cluster it fences earlier producers of the name
    _begin        a new `Producer`; outside of a transaction there is none, or one that is closed
    _commit       the producer has written all records and ends, then the place commits
    _abort        the producer drops what it has not sent and ends, then the place aborts

Each place has a subclass with these. So the place alone knows what a transaction is, and while it begins or ends
one no thread sends.

    after an error of               what is left to do
    a record, or the commit         abort_transaction
    the commit's last step, if its  commit_transaction again: it may be committed already
      outcome is unknown
    anything, as it was fenced      close

Source: Kafka clients/producer/KafkaProducer.java, clients/producer/internals/TransactionManager.java.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

from spark_kbatch.errors import (
    CommitError,
    KBatchError,
    ProducerFencedError,
    TransactionAbortedError,
)
from spark_kbatch.model import PartitionKey, TopicPartition
from spark_kbatch.options import arguments
from spark_kbatch.options.producer import ProducerConfig
from spark_kbatch.producer.producer import Producer
from spark_kbatch.store.commits import NOTHING_VISIBLE
from spark_kbatch.store.os_errors import translated

logger = logging.getLogger(__name__)

_ABORT_TIMEOUT_S = 5.0  # for requests in flight
_UNKNOWN = "whether the transaction is committed is not known"  # an outcome of a commit

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _of_latest(
    method: _Method, *, sends: bool = False, before: Callable[[], object] = lambda: None
) -> _Method:
    """Return a method of `Producer` as the producer of the latest transaction has it.

    Args:
        method: of `Producer`.
        sends: whether that transaction must be open.
        before: makes what it returns as long as there was none.
    """

    @functools.wraps(method)
    def call(self: TransactionalProducer, *given: Any, **named: Any) -> Any:
        producer = self._open_one(method.__name__, sends=True) if sends else self._producer
        return before() if producer is None else method(producer, *given, **named)

    return cast("_Method", call)


class TransactionalProducer(Producer):
    """A producer whose records become visible a transaction at a time. Thread-safe.

        with cluster.producer(transactional_id="orders-1") as producer:
            with producer.transaction():
                producer.send("orders", key="k", value="v")
                producer.send_offsets_to_transaction({("events", 0): 1500}, "my-group")

    or, in the words of other clients, begin_transaction, commit_transaction and abort_transaction. Records of one
    transaction are all visible, or none is, to a reader of committed records, which every reader here is.

    It has all methods of a Producer, which the one of the open transaction does. Outside of a transaction nothing
    is sent: `send` and `send_arrow` raise KBatchError, or ProducerFencedError if another producer has taken over.
    Their futures end when the records are written, and not yet visible; in a folder or a bucket, where the commit
    gives offsets, their offsets are -1. `metrics` has nothing before the first transaction; in a real cluster it is
    of all transactions, in a folder or a bucket of the latest one.
    """

    def __init__(self, config: ProducerConfig, place: str) -> None:
        """Set up; nothing is asked of the place yet.

        Args:
            config: with the transactional id.
            place: its address, for errors.
        """
        # What `Producer.__init__` sets is of one transaction.
        self._config, self._process_id, self._is_closed = config, os.getpid(), False
        self._name, self._place = config.transactional_id or "", place
        self._lock = threading.RLock()  # held by who begins or ends
        self._held = contextlib.ExitStack()  # what is let go when this is closed
        self._producer: Producer | None = None  # of the latest transaction
        self._has_taken_over = self._is_open = self._is_ending = False
        self._is_decided = False  # whether the commit was asked for, so that it may have happened
        # Why the open transaction can only be aborted; or that this producer was fenced.
        self._error: Exception | None = None

    # The place. One thread at a time calls these; they may raise KBatchErrors and OSErrors.

    @abstractmethod
    def _take_over(self) -> None:
        """Get ready for the first transaction."""

    @abstractmethod
    def _begin(self) -> Producer:
        """Begin a transaction, and return the producer of its records."""

    @abstractmethod
    def _committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the offsets of a group between transactions; raises as `_add_offsets`."""

    @abstractmethod
    def _add_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Note offsets of a group for the commit; raises ConfigError if the place takes none."""

    @abstractmethod
    def _commit(self, producer: Producer) -> None:
        """Close the transaction's producer, see that it has written everything, and commit.

        It sets `_is_decided` if an error leaves the outcome unknown.

        Raises:
            ProducerFencedError: another producer of the name has taken over.
        """

    @abstractmethod
    def _abort(self) -> None:
        """Abort the transaction, whose producer has ended; raises as `_commit`."""

    # Transactions.

    def init_transactions(self) -> None:
        """Get ready for the first transaction; `begin_transaction` does that by itself.

        In a real cluster this aborts what an earlier producer of the name has begun and not ended, and fences it.

        Raises:
            ConfigError: the place has no transactions for this client; says what to do.
            ProducerFencedError: another producer has taken over since.
            ProducerClosedError, ProducerForkedError: as for `Producer.send`.
        """
        with self._alone("init_transactions()"):
            self._ensure_open()
            if not self._has_taken_over:
                self._take_over()
                self._has_taken_over = True

    def begin_transaction(self) -> None:
        """Begin a transaction; raises as `init_transactions`.

        Raises:
            KBatchError: one is open.
        """
        with self._alone("begin_transaction()"):
            self.init_transactions()
            self._ensure_none_open()
            self._producer, self._error = self._begin(), None
            self._is_open, self._is_ending = True, False

    def commit_transaction(self) -> None:
        """Send everything, wait until it is written, and make it visible together with the offsets of groups.

        Raises:
            CommitError: a record or an offset could not be written, so that the transaction can only be aborted;
                or its outcome is unknown, and this may be called again.
            ProducerFencedError: another producer has taken over, or the transaction's time was up.
            KBatchError: no transaction is open; or a callback calls this.
        """
        with self._alone("commit_transaction()"):
            producer = self._open_one("commit_transaction")
            self._is_ending = True
            try:
                if self._error is not None and not self._is_decided:
                    raise self._error
                self._commit(producer)
            except (KBatchError, OSError) as error:
                self._error = error
                if isinstance(error, ProducerFencedError) or (
                    isinstance(error, CommitError) and not self._is_decided
                ):
                    raise  # it says itself whether anything is visible
                raise CommitError(
                    f"{_UNKNOWN}; call commit_transaction() again"
                    if self._is_decided
                    else f"{NOTHING_VISIBLE}, and abort_transaction() is what is left to do",
                    str(error),
                ) from error
            self._is_open = self._is_decided = False

    def abort_transaction(self) -> None:
        """Drop all records of the transaction, and its offsets; readers of committed records never see them.

        Records that were not sent fail with TransactionAbortedError.

        Raises:
            CommitError: the commit was asked for, and its outcome is unknown.
            ProducerFencedError: as for `commit_transaction`; says whether anything of the transaction is visible.
            KBatchError: no transaction is open; or a callback calls this.
        """
        with self._alone("abort_transaction()"):
            producer = self._open_one("abort_transaction")
            is_fenced = isinstance(self._error, ProducerFencedError)
            if self._is_decided:
                if is_fenced:
                    self._ensure_open()
                raise CommitError(
                    _UNKNOWN,
                    "its commit was asked for, so it cannot be aborted: call commit_transaction() again",
                )
            if not is_fenced:
                self._is_ending = True
                producer.abandon(
                    TransactionAbortedError("the transaction was aborted"), _ABORT_TIMEOUT_S
                )
                self._error = self._error or KBatchError("abort_transaction() has failed")
                self._abort()
            self._is_open = False

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
            if self._is_open:  # the block may have ended it
                self.commit_transaction()
        finally:
            self._abort_if_open()

    def _abort_if_open(self) -> None:
        if self._is_open and not self._is_decided:
            try:
                self.abort_transaction()
            except KBatchError as error:
                logger.warning("a transaction of %r could not be aborted: %s", self._name, error)

    def committed_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the offsets that a group has committed: where a program that sends them goes on when it starts.

        It waits until no transaction that is being ended has offsets of the group.

        Raises:
            ConfigError: the argument is not accepted; or this place takes no offsets in transactions.
            KBatchError: a transaction is open; or as `init_transactions`.
        """
        with self._alone("committed_offsets()"):
            self.init_transactions()
            self._ensure_none_open()
            return self._committed(arguments.group(group_id))

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
            KBatchError: no transaction is open; or a callback calls this.
        """
        group_id, wanted = arguments.group_offsets(group_id, offsets)
        with self._alone("send_offsets_to_transaction()"):
            self._open_one("send_offsets_to_transaction", sends=True)
            self._add_offsets(group_id, wanted)

    # Records.

    send = _of_latest(Producer.send, sends=True)
    send_arrow = _of_latest(Producer.send_arrow, sends=True)
    flush = _of_latest(Producer.flush)
    ensure_delivered = _of_latest(Producer.ensure_delivered)
    metrics = _of_latest(Producer.metrics, before=dict)
    why_waiting = _of_latest(Producer.why_waiting)

    def close(self, timeout: float | None = None) -> None:
        """Abort the open transaction, if there is one, and stop. Safe to call again.

        Args:
            timeout: of no meaning here: an abort takes seconds, or a few minutes if a cluster does not answer.
        """
        if self._process_id == os.getpid():
            with self._alone("close()"):
                if self._is_open:
                    logger.warning(
                        "producer %r is closed: its transaction is aborted"
                        if not self._is_decided
                        else "producer %r is closed before it is known whether its transaction is committed",
                        self._name,
                    )
                self._abort_if_open()
                self._is_closed, self._is_open = True, False
                self._held.close()

    # Inside.

    def _open_one(self, what: str, *, sends: bool = False) -> Producer:
        """Return the open transaction's producer; if it `sends`, only until that is being ended."""
        producer = self._producer
        if producer is not None and self._is_open and not (sends and self._is_ending):
            return producer
        self._ensure_open()
        raise KBatchError(
            f"{what}() in a transaction that is being ended: begin another one"
            if self._is_open
            else f"{what}() outside of a transaction: call begin_transaction() first, or write "
            "`with producer.transaction():`"
        )

    def _ensure_none_open(self) -> None:
        if self._is_open:
            raise KBatchError(
                "a transaction is open: commit_transaction() or abort_transaction() ends it"
            )

    def _ensure_open(self) -> None:
        super()._ensure_open()
        if isinstance(self._error, ProducerFencedError):
            raise self._error

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        self._ensure_not_forked()
        if self._producer is not None:  # the lock's holder may wait for it
            self._producer.ensure_no_callback(what)
        with self._lock, translated(self._place):
            yield

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<TransactionalProducer {self._name!r}, {state}>"
