"""InitProducerId: an id for an idempotent producer.

There are no transactions of clients. A request for one is refused with a code that every client takes as
final; after a retriable one it would go on asking. An id for which a lock is not free is refused with a
retriable one, that with which Kafka says that it has no ids for now.

Source: Kafka transaction-coordinator/.../TransactionCoordinator handleInitProducerId.
"""

from __future__ import annotations

import logging
import time

from spark_kbatch.errors import KBatchError, LockTimeoutError
from spark_kbatch.server.backend import Backend
from spark_kbatch.server.requests import Received, Respond
from spark_kbatch.wire.errors import ErrorCode, code_of
from spark_kbatch.wire.protocol import InitProducerIdResponse

logger = logging.getLogger(__name__)

_SHOWN_MAX = 200  # characters, in the log
_TAKES_WITHIN_S = 10.0  # an id; clients wait for 30 s


class ProducerIdsHandler:
    """Handler of InitProducerId requests; thread-safe."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._refused: set[str] = set()  # transactional ids whose refusal was logged

    def init_producer_id(self, received: Received, respond: Respond) -> None:
        """Answer InitProducerId: a new id, with epoch 0."""
        transactional_id = received.body.transactional_id
        error, producer_id, epoch = ErrorCode.NONE, -1, -1
        if transactional_id == "":
            error = ErrorCode.INVALID_REQUEST
        elif transactional_id is not None:
            error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            self._say(transactional_id, received)
        else:
            deadline = time.monotonic() + _TAKES_WITHIN_S
            try:
                producer_id, epoch = self._backend.new_producer_id(deadline=deadline), 0
            except (OSError, KBatchError) as problem:
                error = code_of(problem)
                if isinstance(problem, LockTimeoutError):
                    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                logger.warning("no producer id for %s: %s", received.client_host, problem)
        respond(
            InitProducerIdResponse(
                version=received.version,
                error_code=error,
                producer_id=producer_id,
                producer_epoch=epoch,
            )
        )

    def _say(self, transactional_id: str, received: Received) -> None:
        shown = transactional_id[:_SHOWN_MAX]
        if len(self._refused) < 1000 and shown not in self._refused:
            self._refused.add(shown)
            logger.warning(
                "transactional.id %r of client %r is refused: this server has no transactions; leave it out",
                shown,
                received.client_id[:_SHOWN_MAX],
            )
