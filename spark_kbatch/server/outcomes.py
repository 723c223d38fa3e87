"""Outcomes of admin requests: the error code and message in the answer for each topic or resource.

An answer has an outcome for each requested topic or resource, so one error does not stop the others.
Refusals of features that this server does not have are logged, each sentence once.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import InvalidTopicError, KBatchError, TopicAlreadyExistsError
from spark_kbatch.wire.errors import ErrorCode, code_of

logger = logging.getLogger(__name__)

_LOGGED = {
    ErrorCode.INVALID_CONFIG,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ErrorCode.INVALID_REPLICATION_FACTOR,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
_SENTENCES_MAX = 1000  # logged sentences that are remembered
_SENTENCE_MAX = 1000  # characters that are answered and logged, about
_FORGETS_EVERY_S = 60.0

_Result = TypeVar("_Result")


@dataclass(eq=False, repr=False)
class RefusedError(KBatchError):
    """The refusal of a request, or of a part of it, with one of Kafka's codes."""

    code: ErrorCode
    sentence: str

    def __str__(self) -> str:
        return self.sentence


class Outcome(NamedTuple):
    """The error code and message that an answer has for one topic or resource."""

    error_code: int
    error_message: str | None


DONE = Outcome(ErrorCode.NONE, None)


def code_of_existing(error: BaseException) -> ErrorCode:
    """Return the error code for a request about a topic that should exist: none has an invalid name."""
    if isinstance(error, InvalidTopicError):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return code_of(error)


def shortened(sentence: str) -> str:
    """Return both ends of a long sentence, such as one with a long name: an answer may have thousands."""
    if len(sentence) <= _SENTENCE_MAX:
        return sentence
    half = _SENTENCE_MAX // 2
    return f"{sentence[:half]} ... {sentence[-half:]}"


class Outcomes:
    """The conversion of exceptions to error codes and messages for answers, with logging; thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()  # guards the rest; innermost
        self._logged: dict[Hashable, float] = {}  # sentences or what they are about, and when
        self._forgot_s = 0.0  # when sentences were forgotten, to be logged again

    def attempt(self, work: Callable[[], _Result]) -> tuple[_Result | None, Outcome]:
        """Call `work`; return its result and DONE, or None and the outcome of the error that it raised."""
        try:
            return work(), DONE
        except (OSError, KBatchError) as error:
            return None, self._outcome(error)

    def _outcome(self, error: OSError | KBatchError) -> Outcome:
        code = error.code if isinstance(error, RefusedError) else code_of(error)
        sentence = str(error)
        if isinstance(error, TopicAlreadyExistsError):
            sentence = f"Topic '{error.topic}' already exists."  # not how to say so in Python
        sentence = shortened(sentence)
        if code in _LOGGED:
            self.warn_once(f"a client is refused, {code.name}: {sentence}")
        return Outcome(code, sentence)

    def warn_once(
        self, sentence: str, again_after_s: float = math.inf, about: Hashable = None
    ) -> None:
        """Log a warning, unless the same, or another about the same, was logged less than `again_after_s` ago."""
        now_s, about = monotonic_s(), sentence if about is None else about
        with self._mutex:
            if now_s - self._logged.get(about, -math.inf) < again_after_s:
                return
            if len(self._logged) >= _SENTENCES_MAX:
                if now_s - self._forgot_s < _FORGETS_EVERY_S:
                    return
                self._logged.clear()
                self._forgot_s = now_s
            self._logged[about] = now_s
        logger.warning("%s", sentence)
