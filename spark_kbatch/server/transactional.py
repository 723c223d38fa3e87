"""Refusals of transactional producers: clients have no transactions here.

A client first asks which broker coordinates its transactions. What its user is shown depends on the answer:

    librdkafka   the message, but only with the code TRANSACTIONAL_ID_AUTHORIZATION_FAILED: after any other one it
                 asks again until it gives up. It asks in version 2 of FindCoordinator at most
    Java         the message, but only with a code that it does not expect. Since Kafka 2.4 it asks in version 3 or
                 above
    others       what the code means

So the code depends on the version. The log names the client, whatever its user is shown.

Source: Kafka clients/.../producer/internals/TransactionManager.java FindCoordinatorHandler; librdkafka
src/rdkafka_txnmgr.c rd_kafka_txn_handle_FindCoordinator.
"""

from __future__ import annotations

from typing import Final

from spark_kbatch.server.outcomes import Outcomes
from spark_kbatch.server.requests import Received
from spark_kbatch.wire.errors import ErrorCode

NO_TRANSACTIONS: Final = (
    "this server has no transactions: leave out the producer's transactional.id "
    '(docs/server.md, "What is refused")'
)
_SHOWN_MAX = 200  # characters of a name, in the log
_FIRST_OF_UNEXPECTED = 3  # version of FindCoordinator


def coordinator_error(version: int) -> ErrorCode:
    """Return the code that refuses to find the coordinator of transactions."""
    if version < _FIRST_OF_UNEXPECTED:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return ErrorCode.UNSUPPORTED_VERSION


def warn_of_refusal(transactional_id: str, received: Received, outcomes: Outcomes) -> None:
    """Log the refusal of a transactional producer, once for each client id and transactional id."""
    outcomes.warn_once(
        f"the producer of client {received.client_id[:_SHOWN_MAX]!r} with transactional.id "
        f"{transactional_id[:_SHOWN_MAX]!r} is refused: "
        f"{NO_TRANSACTIONS}"
    )
