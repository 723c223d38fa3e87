"""Short tracebacks of errors about what a test gave to a fixture: they end at the test's own line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from spark_kbatch.errors import (
    ConfigError,
    InvalidTimestampError,
    RecordTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# Their words say what is wrong and what to do. Of others, where they come from may matter.
_ABOUT_ARGUMENTS = (
    ConfigError,
    InvalidTimestampError,
    RecordTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)


def ends_at_caller(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Return a function whose errors about its arguments have no frames of this package."""

    @functools.wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except _ABOUT_ARGUMENTS as error:
            raise error.with_traceback(None)  # noqa: B904  its own cause and context stay

    return call
