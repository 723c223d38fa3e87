"""The coordinator of all transactions of a cluster: states, time-outs, and what follows a decision.

    a request's thread, or the tick's     applies a step to an id's state, and appends the next state to the log
    the same, after a decision            offsets into `__consumer_offsets`; markers into the partitions' queues
    threads of the queues                 append the markers, each after what is queued before it
    a thread of the pool                  appends Complete... after the last marker

A state is what the log has: it is replaced in memory once its record is stored. What is not done, because a
partition is locked or a disk fails, is tried again; a restart does it again, too.

Source: Kafka transaction-coordinator/.../TransactionCoordinator.scala, TransactionMarkerChannelManager.scala.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Collection
from typing import TypeAlias

from spark_kbatch.clock import monotonic_s
from spark_kbatch.cluster.offsets_store import Change
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.cluster.state_log import append_and_wait
from spark_kbatch.cluster.transactions.checking import (
    OpenTransaction,
    all_open_transactions,
    ensure_newest,
    partitions_of,
)
from spark_kbatch.cluster.transactions.ending import NEEDS_NO_MARKER, changes_of
from spark_kbatch.cluster.transactions.log import ADVICE, StoredTransactions, TransactionLog
from spark_kbatch.cluster.transactions.state import (
    EXPIRATION_MS,
    PendingOffsets,
    ProducerIdAndEpoch,
    Step,
    TransactionMetadata,
    complete,
    fence,
    without_offsets,
    without_offsets_of,
)
from spark_kbatch.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaStorageError,
    KBatchError,
    NotLeaderOrFollowerError,
    TransactionCoordinatorFencedError,
)
from spark_kbatch.log.steps import expiring_ms
from spark_kbatch.model import AppendOrigin, AppendResult, TopicPartition
from spark_kbatch.record.header import BatchHeader
from spark_kbatch.replica.manager import ACKS_ALL
from spark_kbatch.server.appends import Append, Appends
from spark_kbatch.server.groups.coordinator import GroupCoordinator
from spark_kbatch.server.groups.group import (
    GROUP_OBJECTS,
    OFFSET_OBJECTS,
    GroupMemory,
    size_of_texts,
)
from spark_kbatch.server.groups.offsets import metadata_size
from spark_kbatch.server.peers import Peer, client_warnings
from spark_kbatch.server.pools import CallLater, Pool
from spark_kbatch.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

_AGAIN_AFTER_MS, _EXPIRES_EVERY_MS = 1_000, 3_600_000
# The memory of one transactional id with its transaction, whose record is no larger, and of all of them.
TRANSACTION_BYTES_MAX, BYTES_MAX = 4 << 20, 32 << 20
UNUSED_MS = 3_600_000  # after which ids are forgotten once they take half of that
ID_OBJECTS, PARTITION_OBJECTS = 600, 500  # of Python's objects, besides bytes of clients
_MARKER_MS = 30_000  # of one attempt

# From a state and the time of day.
NextState: TypeAlias = Callable[[TransactionMetadata | None, int], Step]


class TransactionCoordinator:
    """The coordinator of all transactions of one cluster; thread-safe."""

    def __init__(
        self,
        parts: FolderParts,
        appends: Appends,
        groups: GroupCoordinator,
        pool: Pool,
        call_later: CallLater,
        *,
        flush: bool,
        monotonic_ms: Callable[[], int],
        term: Callable[[], int | None],
    ) -> None:
        """Start without transactions, which the first `tick` loads.

        Args:
            parts: the cluster.
            appends: the partitions' queues, for markers.
            groups: stores the offsets of transactions.
            pool: runs what is done after an answer.
            call_later: for what is tried again.
            flush: whether states are on disk before they count.
            monotonic_ms: for time-outs.
            term: the number of the term in which this server has all transactions; None if it has them no
                more. See `Ownership.term`.
        """
        self._parts, self._appends, self._groups = parts, appends, groups
        self._pool, self._call_later = pool, call_later
        self._monotonic_ms, self._term = monotonic_ms, term
        self._now_ms = parts.manager.now_ms
        self._mutex = threading.Lock()  # guards what follows; held while the log is appended to
        self._log = TransactionLog(parts, flush=flush)
        self._is_closed = False
        self._loaded_in: int | None = None  # a term
        self._load_after_ms = self._expire_after_ms = 0
        self._deadlines: dict[str, int] = {}  # of open transactions, on the monotonic clock
        self._told = ""
        # Those that are open or whose decision is carried out.
        self._active: dict[str, TransactionMetadata] = {}
        # Read without the mutex: who has which id, and the offsets of transactions.
        self._owners: dict[int, TransactionMetadata] = {}
        self._pending: dict[str, dict[str, PendingOffsets]] = {}  # by group and transactional id
        parts.manager.ensure_in_transaction = self.ensure_in_transaction

    # States.

    def step(self, transactional_id: str, next_state: NextState) -> Step:
        """Apply a request to the state of an id, and return the next state once it is stored."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        with self._mutex:
            if error := self._why_not_ready():
                return error
            known = self._log.contents.transactions.get(transactional_id)
            found = next_state(known, self._now_ms())
            if isinstance(found, ErrorCode) or found is known:
                return found
            size = size_of(found)
            added = size - (size_of(known) if known else 0)
            if added > 0 and (size > TRANSACTION_BYTES_MAX or not self._memory.take(added)):
                client_warnings.warn(
                    "transactional id %.100r is refused %d bytes of memory", transactional_id, added
                )
                return ErrorCode.POLICY_VIOLATION
            return self._stored(found)

    def known(
        self, transactional_ids: Collection[str] | None
    ) -> dict[str, TransactionMetadata] | ErrorCode:
        """Return the states of these ids, or of all, by id; those without a state are left out."""
        with self._mutex:
            if error := self._why_not_ready():
                return error
            every = self._log.contents.transactions
            wanted = every if transactional_ids is None else transactional_ids
            return {one: every[one] for one in wanted if one in every}

    def pending_of(self, group_id: str) -> Collection[TopicPartition] | ErrorCode:
        """Return the partitions of which transactions that are open, or decided, have a group's offsets.

        While transactions are not loaded, offsets that are pending would look stable: then it is an error after
        which clients ask again. After COORDINATOR_NOT_AVAILABLE some do not.
        """
        if self._loaded_in is None:
            with self._mutex:
                if self._why_not_ready():
                    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        of_group = [*self._pending.get(group_id, {}).values()]
        return {tp for offsets in of_group for tp in offsets}

    def drop_pending(self, group_id: str, partitions: Collection[TopicPartition]) -> ErrorCode:
        """Drop a group's offsets of these partitions from transactions, since they are deleted; return why not."""

        def next_state(known: TransactionMetadata | None, _: int) -> Step:
            left = without_offsets_of(known, group_id, partitions) if known else ErrorCode.NONE
            # Those of a decision are stored in a moment, and can be deleted then.
            is_late = left is not known and known is not None and known.is_decided
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_late else left

        names = [*self._pending.get(group_id, ())]
        errors = [code_of_step(self.step(name, next_state)) for name in names]
        return next(filter(None, errors), ErrorCode.NONE)

    def ensure_in_transaction(
        self, header: BatchHeader, topic_partition: TopicPartition, topic_id: str
    ) -> None:
        """Check that a batch's producer has this partition in an open transaction.

        For the holder of the partition's lock: a decision is known here before its marker is queued. So what is
        accepted lies before the marker, and what comes later is refused.

        Raises:
            InvalidProducerEpochError: its producer is fenced.
            InvalidTxnStateError: it has no open transaction, or not with this partition.
            NotLeaderOrFollowerError: transactions are not loaded yet; the client tries again.
        """
        owner = self._owners.get(header.producer_id)
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        if owner is not None and owner.has(producer, topic_partition, topic_id):
            return
        if self._loaded_in is None:
            raise NotLeaderOrFollowerError("the transactions of clients are not loaded yet")
        named = str(topic_partition)
        if owner is not None and producer < owner.producer:
            epochs = owner.producer.epoch, producer.epoch
            raise InvalidProducerEpochError(named, producer.producer_id, *epochs)
        raise InvalidTxnStateError(named, producer.producer_id)

    def _stored(self, found: TransactionMetadata) -> Step:
        try:
            self._log.append(found)
        except KBatchError as error:
            logger.warning(
                "the state of transactional id %r is not stored: %s", found.transactional_id, error
            )
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._apply(found)
        return found

    def _apply(self, found: TransactionMetadata) -> None:
        name = found.transactional_id
        before = self._active.get(name, found).offsets
        for group_id in before.keys() - found.offsets.keys():
            self._pending[group_id].pop(name)
            if not self._pending[group_id]:
                del self._pending[group_id]
        for group_id, offsets in found.offsets.items():
            self._pending.setdefault(group_id, {})[name] = offsets
        self._owners[found.producer.producer_id] = found
        if found.is_open:
            self._deadlines.setdefault(name, self._monotonic_ms() + found.timeout_ms)
        else:
            self._deadlines.pop(name, None)
        if found.is_active:
            self._active[name] = found
        else:
            self._active.pop(name, None)

    # Loading.

    def _why_not_ready(self) -> ErrorCode:
        term = self._term()
        if term is not None and term == self._loaded_in and not self._is_closed:
            return ErrorCode.NONE
        if self._loaded_in is not None:
            self._loaded_in = None
            self._owners, self._active, self._pending, self._deadlines = {}, {}, {}, {}
        if term is None or self._is_closed or self._monotonic_ms() < self._load_after_ms:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        began_ms = self._monotonic_ms()
        try:
            self._load()
        except (OSError, KBatchError) as error:
            if str(error) != self._told:
                logger.error("there are no transactions for clients: %s", error)
            self._told = str(error)
            took_ms = self._monotonic_ms() - began_ms
            self._load_after_ms = began_ms + took_ms + max(_AGAIN_AFTER_MS, 10 * took_ms)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._loaded_in, self._told = term, ""
        return ErrorCode.NONE

    def _load(self) -> None:
        """Load the log, compare it with the partitions, and go on with what a server has left.

        Raises:
            KafkaStorageError: the log cannot be read, or is older than the partitions are.
        """
        try:
            stored = self._log.load()
        except (OSError, KBatchError) as error:
            held = all_open_transactions(self._parts, StoredTransactions())
            raise KafkaStorageError(
                f"{error}; nothing is decided before, and open transactions stay in "
                f"{partitions_of(held) or 'no partition'}; {ADVICE}"
            ) from error
        self._memory = GroupMemory(self._size_in_bytes, self._monotonic_ms)
        self._memory.bytes_max = BYTES_MAX
        found = all_open_transactions(self._parts, stored)
        ensure_newest(found)
        self._log.forget_if_old()
        unknown = [one for one in found if not one.is_known]
        kept = [one for one in unknown if not one.may_abort]
        if kept:
            logger.error(
                "transactions are open in %s that may have been committed: end this server, and decide with "
                "`kbatch transactions`",
                partitions_of(kept),
            )
        for one in unknown:
            if one.may_abort:
                self._abort_unknown(one)
        if any(state.is_decided for state in stored.transactions.values()):
            # Flushed: who decided may have died before the decision was on disk, and what follows it would stay.
            self._log.start_epoch()
        for state in stored.transactions.values():
            self._apply(state)
            if state.is_decided:
                self._pool.submit(functools.partial(self.carry_out, state))

    def _abort_unknown(self, found: OpenTransaction) -> None:
        """Abort a transaction that its partition lost the marker of, or the log the start of."""
        self._log.start_epoch()
        tp = found.topic_partition
        marker = self._log.marker(found.producer, is_commit=False)
        results = append_and_wait(
            self._parts, {tp: marker}, timeout_ms=_AGAIN_AFTER_MS, flush=True,
            topic_ids={tp: found.topic_id},
        )  # fmt: skip
        logger.warning(
            "the transaction of producer %d in %s since offset %d is aborted: %s",
            found.producer.producer_id, tp, found.first_offset,
            results[tp].error or "no decision on it is known",
        )  # fmt: skip

    # Time.

    def tick(self) -> None:
        """Abort transactions whose time is up, and forget ids that were not used for long."""
        decided = []
        with self._mutex:
            if self._why_not_ready():
                return
            now_ms = self._monotonic_ms()
            late = [one for one, deadline_ms in self._deadlines.items() if deadline_ms <= now_ms]
            for name in late:
                self._deadlines[name] = now_ms + _AGAIN_AFTER_MS  # if it cannot be stored now
                found = self._stored(fence(self._active[name], self._now_ms()))
                if isinstance(found, TransactionMetadata):
                    logger.info(
                        "the transaction of %r is aborted: it was open for more than %d ms",
                        name, found.timeout_ms,
                    )  # fmt: skip
                    decided.append(found)
            if now_ms >= self._expire_after_ms:
                self._expire_after_ms = now_ms + _EXPIRES_EVERY_MS
                self._forget_expired()
        for one in decided:
            self.carry_out(one)

    def _forget_expired(self) -> None:
        now_ms = expiring_ms(self._now_ms())
        every = self._log.contents.transactions
        unused_ms = EXPIRATION_MS if self._size_in_bytes() < BYTES_MAX // 2 else UNUSED_MS
        expired = [name for name, one in every.items() if one.is_expired(now_ms, unused_ms)]
        try:
            if expired:
                self._log.forget(expired)
        except KBatchError as error:
            logger.warning("transactional ids do not expire for now: %s", error)
            return
        self._owners = {one.producer.producer_id: one for one in every.values()}

    def _size_in_bytes(self) -> int:
        return sum(map(size_of, self._log.contents.transactions.values()))

    def close(self) -> None:
        """Answer later requests with an error after which clients look for a coordinator."""
        with self._mutex:
            self._is_closed = True

    # After a decision.

    def carry_out(
        self,
        decided: TransactionMetadata,
        offsets: list[Change] | None = None,
        peer: Peer | None = None,
    ) -> None:
        """Do what follows a decision, as far as it waits for nothing; the rest goes on in other threads.

        `offsets` are those that are not stored yet; by default all. `peer` is who decided, and whose work
        the markers are.
        """
        if decided.offsets:
            emptied = without_offsets(decided)
            changes = changes_of(decided) if offsets is None else offsets

            def note() -> ErrorCode:
                changes.clear()  # Storing them again could replace newer ones.
                return code_of_step(self._go_on(decided, emptied))

            if self._groups.store_decided(changes, note):
                self._again(functools.partial(self.carry_out, decided, changes, peer))
                return
            decided = emptied
        left = set(decided.partitions)
        for topic_partition in decided.partitions:
            self._mark(decided, topic_partition, left, peer)
        if not decided.partitions:
            self._complete(decided)

    def _mark(
        self,
        decided: TransactionMetadata,
        topic_partition: TopicPartition,
        left: set[TopicPartition],
        peer: Peer | None,
    ) -> None:
        """Queue the marker of a partition, which leaves those that are `left` once it is appended."""

        def answer(result: AppendResult) -> None:
            error = result.error
            if isinstance(error, TransactionCoordinatorFencedError):
                logger.error(
                    "%r stays open in %s: %s", decided.transactional_id, topic_partition, error
                )
            elif error is not None and not isinstance(error, NEEDS_NO_MARKER):
                self._again(functools.partial(self._mark, decided, topic_partition, left, peer))
            else:
                left.discard(topic_partition)
                if not left:
                    self._complete(decided)  # Two threads may: the second finds it done.

        append = Append(
            self._log.marker(decided.producer, is_commit=decided.is_commit),
            ACKS_ALL,
            _MARKER_MS,
            monotonic_s() + _MARKER_MS / 1000,
            answer,
            peer,
            origin=AppendOrigin.COORDINATOR,
            topic_id=decided.partitions[topic_partition],
        )
        self._appends.append(topic_partition, append)

    def _complete(self, decided: TransactionMetadata) -> None:
        def work() -> None:
            if self._go_on(decided, complete(decided, self._now_ms())) is (
                ErrorCode.COORDINATOR_NOT_AVAILABLE
            ):
                self._again(work)

        self._pool.submit(work)

    def _go_on(self, decided: TransactionMetadata, after: TransactionMetadata) -> Step:
        """Store the state after a step that was carried out, unless the id has another one by now."""

        def next_state(known: TransactionMetadata | None, _: int) -> Step:
            return after if known == decided else ErrorCode.INVALID_TXN_STATE

        return self.step(decided.transactional_id, next_state)

    def _again(self, work: Callable[[], object]) -> None:
        self._call_later(_AGAIN_AFTER_MS / 1000, functools.partial(self._pool.submit, work))


def size_of(transaction: TransactionMetadata) -> int:
    """Return the memory that a transactional id and its transaction take, about."""
    of_groups = sum(
        GROUP_OBJECTS
        + size_of_texts(group_id)
        + sum(OFFSET_OBJECTS + metadata_size(one.metadata) for one in offsets.values())
        for group_id, offsets in transaction.offsets.items()
    )
    of_partitions = len(transaction.partitions) * PARTITION_OBJECTS
    return ID_OBJECTS + size_of_texts(transaction.transactional_id) + of_partitions + of_groups


def code_of_step(step: Step) -> ErrorCode:
    """Return the error that a client gets; NONE for a state."""
    return step if isinstance(step, ErrorCode) else ErrorCode.NONE
