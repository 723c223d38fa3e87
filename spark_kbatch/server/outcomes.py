"""Outcomes: the errors that answers have for things that were refused or failed.

An answer has an outcome for each requested topic or resource, so one error does not stop the others.
Refusals of features that this server does not have are logged, each sentence once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from spark_kbatch.errors import KBatchError, TopicAlreadyExistsError
from spark_kbatch.wire.errors import ErrorCode, code_of

logger = logging.getLogger(__name__)

_LOGGED = {
    ErrorCode.INVALID_CONFIG,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ErrorCode.INVALID_REPLICATION_FACTOR,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
_SENTENCES_MAX = 1000  # logged sentences that are remembered

_Result = TypeVar("_Result")


@dataclass(eq=False, repr=False)
class RefusedError(KBatchError):
    """The refusal of a request, or of a part of it, with one of Kafka's codes."""

    code: ErrorCode
    sentence: str

    def __str__(self) -> str:
        return self.sentence


class Outcome(NamedTuple):
    """An error, as answers have it."""

    error_code: int
    error_message: str | None


DONE = Outcome(ErrorCode.NONE, None)


class Outcomes:
    """Turns errors into outcomes. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()  # guards _logged; innermost
        self._logged: set[str] = set()

    def attempt(self, work: Callable[[], _Result]) -> tuple[_Result | None, Outcome]:
        """Do some work; return its result, and DONE or the outcome of its error."""
        try:
            return work(), DONE
        except (OSError, KBatchError) as error:
            return None, self._outcome(error)

    def _outcome(self, error: OSError | KBatchError) -> Outcome:
        code = error.code if isinstance(error, RefusedError) else code_of(error)
        sentence = str(error)
        if isinstance(error, TopicAlreadyExistsError):
            sentence = f"Topic '{error.topic}' already exists."  # not how to say so in Python
        if code in _LOGGED and self._is_new(sentence):
            logger.warning("a client is refused, %s: %s", code.name, sentence)
        return Outcome(code, sentence)

    def _is_new(self, sentence: str) -> bool:
        with self._mutex:
            if sentence in self._logged:
                return False
            if len(self._logged) >= _SENTENCES_MAX:
                self._logged.clear()
            self._logged.add(sentence)
            return True
