"""Errors without a traceback for Spark, which prints the traceback of a Python process before the message.

Spark leaves the traceback out if SPARK_HIDE_TRACEBACK is set in that process, which ends with the error.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from spark_kbatch.errors import KBatchError
from spark_kbatch.spark import process

_P = ParamSpec("_P")
_R = TypeVar("_R")


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
    if process.is_sparks():
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return error.with_traceback(None)
