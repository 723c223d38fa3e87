"""The transactional producer of a real cluster: a `Producer` for each transaction, whose batches are part of it.

    _take_over    a client is leased; InitProducerId
    _begin        a producer, over a transport with the client and the producer id of the transactions
    _commit       TxnOffsetCommit for each group, EndTxn
    _abort        requests without an answer are given up, EndTxn; the next _begin is in another epoch

The client belongs to the thread of the producer while there is one, and else to the caller's. Sequence numbers go
on from one transaction to the next. After an abort it is not known which of them the brokers have: they start again
in another epoch, which a producer that was fenced meanwhile does not get.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from spark_kbatch.clock import monotonic_ms
from spark_kbatch.errors import KBatchError, ProducerFencedError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.producer import ProducerConfig
from spark_kbatch.options.remote import ClusterOptions
from spark_kbatch.producer.metrics import ProducerMetrics
from spark_kbatch.producer.producer import Producer
from spark_kbatch.producer.transactional import TransactionalProducer
from spark_kbatch.remote.client import leased
from spark_kbatch.remote.producer import open_producer
from spark_kbatch.remote.transactions import Transactions, is_fenced, refusals_explained
from spark_kbatch.store.commits import NOTHING_VISIBLE
from spark_kbatch.store.groups import OffsetAndMetadata
from spark_kbatch.wire.errors import ErrorCode, code_of


class ClusterProducer(TransactionalProducer):
    """A transactional producer of a real cluster."""

    def __init__(self, options: ClusterOptions, config: ProducerConfig) -> None:
        """Lease a client, and ask nothing of the cluster; the config has the transactional id."""
        super().__init__(config, str(options))
        self._options = options
        client = self._held.enter_context(leased(options))
        self._transactions = Transactions(
            client, self._name, timeout_ms=config.transaction_timeout_ms
        )
        self._metrics = ProducerMetrics(monotonic_ms())  # of all transactions
        self._needs_epoch = False  # since an abort
        self._told: dict[str, set[TopicPartition]] = {}  # whose offsets were given, by group

    def _take_over(self) -> None:
        """Fence earlier producers of the transactional id; raises as `refusals_explained`."""
        with refusals_explained(self._transactions):
            self._transactions.take_over()

    def _begin(self) -> Producer:
        """Return a producer of the open transaction's records; after an abort, in the next epoch."""
        if self._needs_epoch:
            with self._explained():
                self._transactions.renew()
            self._needs_epoch = False
        self._began_ms = monotonic_ms()
        self._offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}  # by group
        return open_producer(
            self._options, self._config, transactions=self._transactions, metrics=self._metrics
        )

    def _committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the offsets of a group; raises as `Transactions.committed`."""
        found = self._transactions.committed(group_id)
        own = self._told.get(group_id)
        if own:  # those of the last transaction may be pending
            found |= self._transactions.committed(group_id, own)
        return {tp: one.offset for tp, one in found.items()}

    def _add_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Note offsets of a group for the commit."""
        found = {tp: OffsetAndMetadata(offset, "") for tp, offset in offsets.items()}
        self._told.setdefault(group_id, set()).update(found)
        self._offsets.setdefault(group_id, {}).update(found)

    def _commit(self, producer: Producer) -> None:
        """Commit offsets of groups and the transaction; raises as `Transactions.add_offsets` and `Transactions.end`."""
        with self._explained():
            producer.close()  # another thread may be sending
            producer.ensure_delivered()
            for group_id in [name for name, offsets in self._offsets.items() if offsets]:
                self._transactions.add_offsets(self._offsets[group_id], group_id)
                del self._offsets[group_id]  # a commit that is repeated adds none
            self._is_decided = self._transactions.is_open
            self._transactions.end(commit=True)

    def _abort(self) -> None:
        """Abort the transaction; raises as `Transactions.end`."""
        self._transactions.client.connections.disconnect_busy("the transaction is aborted")
        self._needs_epoch |= self._transactions.is_open
        with self._explained():
            self._transactions.end(commit=False)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise ProducerFencedError in place of an error that means that this producer was fenced."""
        try:
            yield
        except KBatchError as error:
            if not is_fenced(error):
                raise
            why, limit_ms = "another one of its name has taken over", self._transactions.timeout_ms
            if code_of(error) == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
                why = (
                    "the cluster has forgotten it, which happens if nothing is written for "
                    "transactional.id.expiration.ms"
                )
            taken_ms = monotonic_ms() - self._began_ms
            if taken_ms >= limit_ms:
                why = (
                    f"its transaction took {taken_ms} ms, longer than transaction.timeout.ms={limit_ms}, "
                    f"or {why}"
                )
            outcome = (
                "its commit was asked for: if the cluster's answer was lost, the transaction is committed, else "
                f"{NOTHING_VISIBLE} of it"
                if self._is_decided
                else f"{NOTHING_VISIBLE} of its transaction"
            )
            self._error = ProducerFencedError(self._name, self._place, why, outcome)
            raise self._error from error
