"""The transactions of a producer to a real cluster, each with a `Producer` whose batches are part of it.

    take_over   a client is leased; InitProducerId
    begin       a producer, over a transport with the client and the producer id of the transactions
    commit      TxnOffsetCommit for each group, EndTxn
    abort       requests without an answer are given up, EndTxn, the next epoch

The client belongs to the thread of the producer while there is one, and else to the caller's. Sequence numbers go
on from one transaction to the next. After an abort it is not known which of them the brokers have: they start again
in another epoch, which a producer that was fenced meanwhile does not get.
"""

from __future__ import annotations

from contextlib import ExitStack

from spark_kbatch.clock import monotonic_ms, now_ms
from spark_kbatch.errors import ConfigError, KBatchError, ProducerFencedError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.producer import ProducerConfig
from spark_kbatch.options.remote import ClusterOptions
from spark_kbatch.producer.metrics import ProducerMetrics
from spark_kbatch.producer.producer import Producer
from spark_kbatch.producer.transactional import GroupOffsets
from spark_kbatch.remote.client import leased
from spark_kbatch.remote.producer import FoundTopics
from spark_kbatch.remote.transactions import Transactions, is_fenced, refusals_explained
from spark_kbatch.remote.transport import BrokerTransport
from spark_kbatch.store.commits import NOTHING_VISIBLE
from spark_kbatch.store.groups import OffsetAndMetadata
from spark_kbatch.wire.errors import ErrorCode, code_of


class ClusterTransactions:
    """A real cluster as the place of one transactional producer; a `TransactionalPlace`."""

    why_no_offsets, is_decided = "", False

    def __init__(self, options: ClusterOptions, config: ProducerConfig) -> None:
        """Lease a client, and ask nothing of the cluster; the config has the transactional id."""
        self._options, self._config, self.name = options, config, config.transactional_id or ""
        self._leases = ExitStack()
        client = self._leases.enter_context(leased(options))
        self._transactions = Transactions(
            client, self.name, timeout_ms=config.transaction_timeout_ms
        )
        self._metrics = ProducerMetrics(monotonic_ms())
        self._began_ms = 0
        self._needs_epoch = False  # since an abort

    def take_over(self) -> None:
        """Fence earlier producers of the transactional id.

        Raises:
            ConfigError: the cluster lets this client write no transactions, or none that take so long.
        """
        with refusals_explained(self._options, self.name, "open its PATH"):
            try:
                self._transactions.take_over()
            except KBatchError as error:
                if code_of(error) != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                    raise
                raise ConfigError(
                    f"option 'transaction.timeout.ms' is {self._config.transaction_timeout_ms}; accepted by "
                    f"{self._options}: at most its brokers' transaction.max.timeout.ms"
                ) from error

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the offsets of a group; raises as `Transactions.committed`."""
        found = self._transactions.committed(group_id)
        return {tp: one.offset for tp, one in found.items()}

    def begin(self) -> Producer:
        """Return a producer of the open transaction's records."""
        self._began_ms = monotonic_ms()
        transport = BrokerTransport(
            self._options,
            request_timeout_ms=self._config.request_timeout_ms,
            transactions=self._transactions,
        )
        return Producer(
            self._config,
            transport,
            FoundTopics(self._options, transport),
            now_ms,
            nodes=transport,
            sequences=transport.sequences,
            metrics=self._metrics,
        )

    def commit(self, offsets: GroupOffsets) -> None:
        """Commit offsets of groups and the transaction; raises as `Transactions.add_offsets` and `Transactions.end`."""
        transactions = self._transactions
        if not self.is_decided:
            for group_id, of_group in offsets.items():
                found = {tp: OffsetAndMetadata(offset, "") for tp, offset in of_group.items()}
                if found:
                    transactions.add_offsets(found, group_id)
        self.is_decided = transactions.is_open
        transactions.end(commit=True)
        self.is_decided = False

    def abort(self) -> None:
        """Abort the transaction; raises as `Transactions.end` and `Transactions.renew`."""
        transactions = self._transactions
        transactions.client.connections.disconnect_busy("the transaction is aborted")
        self._needs_epoch |= transactions.is_open
        transactions.end(commit=False)
        if self._needs_epoch:
            transactions.renew()
            self._needs_epoch = False

    def fenced(self, error: KBatchError) -> ProducerFencedError | None:
        """Return the error for the user if one means that the producer was fenced."""
        if not is_fenced(error):
            return None
        why, taken_ms = "another one of its name has taken over", monotonic_ms() - self._began_ms
        if taken_ms >= self._config.transaction_timeout_ms:
            why = (
                f"its transaction took {taken_ms} ms, longer than transaction.timeout.ms="
                f"{self._config.transaction_timeout_ms}, or {why}"
            )
        outcome = (
            "its commit was asked for: if the cluster's answer was lost, the transaction is committed, else "
            f"{NOTHING_VISIBLE} of it"
            if self.is_decided
            else f"{NOTHING_VISIBLE} of its transaction"
        )
        return ProducerFencedError(self.name, str(self._options), why, outcome)

    def close(self) -> None:
        """Return the client."""
        self._leases.close()
