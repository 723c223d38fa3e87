"""InitProducerId: an id for an idempotent producer.

A transactional producer is refused with a code that every client takes as final; after a retriable one it
would go on asking. An id for which a lock is not free is refused with a retriable one, that with which Kafka
says that it has no ids for now.

Source: Kafka transaction-coordinator/.../TransactionCoordinator handleInitProducerId.
"""

from __future__ import annotations

import logging

from spark_kbatch.clock import monotonic_s
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import KBatchError, LockTimeoutError
from spark_kbatch.server.outcomes import Outcomes
from spark_kbatch.server.requests import Received, Respond
from spark_kbatch.server.transactional import warn_of_refusal
from spark_kbatch.wire.errors import ErrorCode, code_of
from spark_kbatch.wire.protocol import InitProducerIdResponse

logger = logging.getLogger(__name__)

_TAKES_WITHIN_S = 10.0  # an id; clients wait for 30 s
_FIRST_WITH_IDS = 3


class ProducerIdsHandler:
    """Handler of InitProducerId requests; thread-safe."""

    def __init__(self, parts: FolderParts, outcomes: Outcomes) -> None:
        self._parts, self._outcomes = parts, outcomes

    def init_producer_id(self, received: Received, respond: Respond) -> None:
        """Answer InitProducerId: a new id, with epoch 0."""
        transactional_id = received.body.transactional_id
        error, producer_id, epoch = ErrorCode.NONE, -1, -1
        if transactional_id == "" or _names_half(received):
            error = ErrorCode.INVALID_REQUEST
        elif transactional_id is not None:
            error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            warn_of_refusal(transactional_id, received, self._outcomes)
        else:
            deadline = monotonic_s() + _TAKES_WITHIN_S
            try:
                producer_id, epoch = self._parts.new_producer_id(deadline=deadline), 0
            except (OSError, KBatchError) as problem:
                error = code_of(problem)
                if isinstance(problem, LockTimeoutError):
                    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                logger.warning("no producer id for %s: %s", received.client_host, problem)
        respond(
            InitProducerIdResponse(
                error_code=error,
                producer_id=producer_id,
                producer_epoch=epoch,
            )
        )


def _names_half(received: Received) -> bool:
    """Return True if a request names a producer id without an epoch, or the reverse."""
    if received.version < _FIRST_WITH_IDS:
        return False
    body = received.body
    return bool((body.producer_id == -1) != (body.producer_epoch == -1))
