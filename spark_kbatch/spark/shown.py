"""Errors as Spark shows them: it prints the whole traceback, and the sentence last."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from spark_kbatch.errors import KBatchError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def briefly(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make `method` raise our errors without their traceback, so that the sentence stands out."""

    @functools.wraps(method)
    def call(*args: _P.args, **named: _P.kwargs) -> _R:
        try:
            return method(*args, **named)
        except KBatchError as error:
            raise error.with_traceback(None) from None

    return call
