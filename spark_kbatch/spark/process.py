"""Logging, garbage collection and errors in the Python processes that Spark starts.

What is logged there from the level KBATCH_LOG_LEVEL on, by default WARNING, goes to stderr, with level and logger: on
the driver that is the program's own stderr, on executors their log. With spark.sql.pyspark.worker.logging.enabled
Spark collects it instead, from INFO on.

Spark prints the traceback of a Python process before an error's message. It leaves the traceback
out if SPARK_HIDE_TRACEBACK is set in that process, which ends with the error.
"""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from spark_kbatch.errors import KBatchError
from spark_kbatch.terminal import LogFormatter, log_level

# New objects until Python looks for garbage. By default that is 700: while modules are loaded it would look at all
# of them again and again, a fifteenth of the time that a process takes to plan.
_COLLECTED_AFTER = 50_000

_P = ParamSpec("_P")
_R = TypeVar("_R")

_is_frozen = False


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Log handler that writes to stderr, unless Spark collects the log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record to stderr, unless another handler takes all of the process's log."""
        if not logging.getLogger().handlers:
            super().emit(record)


def is_sparks() -> bool:
    """Return True if this is one of the Python processes that Spark starts."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def set_up() -> None:
    """Show this package's log on stderr and collect garbage seldom, if this is one of Spark's Python processes."""
    if is_sparks():
        gc.set_threshold(_COLLECTED_AFTER, *gc.get_threshold()[1:])
        handler = _Stderr()
        handler.setLevel(log_level())
        handler.setFormatter(LogFormatter())
        logger = logging.getLogger("spark_kbatch")
        logger.addHandler(handler)
        logger.setLevel(min(logging.INFO, handler.level))


def freeze_modules() -> None:
    """Exempt objects loaded by earlier tasks from garbage collection, as a Spark task starts.

    Spark collects all garbage after each task, and only then does the process take the next one. With numba's
    100,000 objects that takes 0.1 s, and none of them is ever garbage.
    """
    global _is_frozen  # to ask how much is frozen takes long
    if not _is_frozen and "numba" in sys.modules and is_sparks():
        gc.freeze()
        _is_frozen = True


def briefly(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make `method` raise this package's errors with their message alone, without a traceback.

    An error that another one caused, such as one of a user's partitioner, keeps its traceback.
    """
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def iterate(*args: Any, **named: Any) -> Any:
            try:
                yield from cast(Any, method)(*args, **named)
            except KBatchError as error:
                raise _brief(error) from error.__cause__

        return cast("Callable[_P, _R]", iterate)

    @functools.wraps(method)
    def call(*args: _P.args, **named: _P.kwargs) -> _R:
        try:
            return method(*args, **named)
        except KBatchError as error:
            raise _brief(error) from error.__cause__

    return call


def _brief(error: KBatchError) -> KBatchError:
    if not isinstance(error.__cause__, (KBatchError, OSError, type(None))):
        return error
    if is_sparks():
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return error.with_traceback(None)
