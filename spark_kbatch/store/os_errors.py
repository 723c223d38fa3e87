"""The translation of OSErrors, which come from any file below a path, for callers of the Python API.

Below the API an OSError is what it is: who uses a disk decides by its errno what a failure means.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, GeneratorType
from typing import Any, ParamSpec, TypeVar, cast

from spark_kbatch.errors import FileSystemError, KBatchError

_Class = TypeVar("_Class", bound=type)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@contextlib.contextmanager
def translated(path: Path | str = "") -> Iterator[None]:
    """Raise a FileSystemError for each OSError within; it names `path` if nothing is named."""
    try:
        yield
    except KBatchError:
        raise
    except OSError as error:
        raise FileSystemError.of(error, str(path)) from error


def translating(
    function: Callable[_Arguments, _Result], path: Path | str = ""
) -> Callable[_Arguments, _Result]:
    """Return a function that raises FileSystemErrors where the given one raises OSErrors.

    So do generators that it returns.
    """

    @functools.wraps(function)
    def call(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        where = path or _place_of(arguments[0] if arguments else None)
        with translated(where):
            result = function(*arguments, **named)
        if isinstance(result, GeneratorType):
            return cast("_Result", translated_each(result, where))
        return result

    return call


def _place_of(api: object) -> str:
    return getattr(getattr(api, "_store", None), "address", "")


def translated_each(results: Iterator[Any], path: Path | str) -> Iterator[Any]:
    """Yield results, with FileSystemErrors in place of OSErrors."""
    with translated(path):
        yield from results


def raises_kbatch_errors(api: _Class) -> _Class:
    """Have all public methods of a class, and those that it inherits, raise no OSErrors but KBatchErrors."""
    for name in dir(api):
        member = getattr(api, name)
        if isinstance(member, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(api, name, translating(member))
    return api
