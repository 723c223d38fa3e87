"""Compile a kernel when it gets more work than Python does quickly: once on each machine, then from a cache.

Importing numba takes 0.25 s and 60 MB, loading a kernel a tenth of a second, and compiling one up to a few
seconds. Planners and committers call no kernels and must not pay for that, so numba is imported when a
kernel is to be compiled; and a process that reads does not pay for the kernels that write.

Nor does a process pay that has little to do: a test, a command that shows ten records, a small task. Kernels
are Python, so they are run as they are, until that would take longer than PLAIN_US in all. `plain_us` of a
module of kernels estimates it, call by call, from what is known of the arguments.

Compiled code is cached next to the kernels' file, or in the user's cache directory, or, where neither can
be written, in a temporary directory of the user's own, which all of the user's processes share. It is
compiled again whenever the source of the kernels, of helpers from other modules or of the LLVM code
changes.

Several workers that start together would all compile, and each would take several times as long. So one
compiles while the others wait for its result.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import Any

import numpy as np

from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import CompiledCodeError
from spark_kbatch.files import address_space_mib, private_temporary_dir
from spark_kbatch.kernels import llvm

logger = logging.getLogger(__name__)


Examples = Callable[[], Mapping[str, Sequence[Any]]]
Estimates = Mapping[str, Callable[..., int]]

# Microseconds that a process spends in kernels that are not compiled, by estimate. Less than it takes to
# import numba and to load one kernel, so a process with more to do loses little; a thousand records are far below.
PLAIN_US = 150_000


# Kernels make no arrays, so none is counted: that would take two atomic steps for each array that a helper is given,
# three quarters of the time of the decoder of JSON.
_NO_COUNTS: dict[str, Any] = {"_nrt": False}

# The functions of each module of kernels as they are before anything is compiled, by module and name.
PLAIN: dict[str, Mapping[str, Callable[..., Any]]] = {}


class _Spent:
    """The time that this process has spent on kernels; guarded by nothing, as threads that race do no harm."""

    plain_us = 0  # by estimate, on calls in plain Python
    compiling_s = 0.0  # on compiling, or waiting for another process that compiles
    # 0 compiles every kernel on its first call, as for numpy 1, which makes floats of an unsigned number and Python's.
    plain_us_max = PLAIN_US if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 0


def compiling_s() -> float:
    """Return how many seconds this process has spent on compiling kernels, or waited for others that did."""
    return _Spent.compiling_s


def array(
    dtype: str, shape: int | tuple[int, ...] = 0, *, out: bool = False
) -> np.ndarray[Any, Any]:
    """Return an argument for `examples`, which only a kernel that has it as an output may write to."""
    made = np.zeros(shape, dtype)
    made.setflags(write=out)
    return made


def compile_on_first_call(
    module: dict[str, Any],
    helpers: Sequence[str],
    examples: Examples,
    plain_us: Estimates = MappingProxyType({}),
) -> Callable[[], None]:
    """Replace each kernel of a module by a function that compiles it once it pays.

    Args:
        module: its globals, which are written to: now, and again with compiled functions.
        helpers: names of functions that kernels call, in the order in which they call each other;
            `llvm` has its own code for some.
        examples: returns the module's kernels, by name, with the arguments of a call in the one form
            in which it is ever called. Kernels call helpers, and not each other.
        plain_us: for kernels that may run uncompiled: from the arguments of a call, about how many
            microseconds it takes then, at worst. What is called must not trust numbers that come from disk.

    Returns:
        A function that compiles or loads all kernels now. Thread-safe; later calls do nothing.
    """
    kernels = [*examples()]
    functions = {name: module[name] for name in (*helpers, *kernels)}
    plain = PLAIN[module["__name__"]] = _plain_functions(module, functions)
    lock = threading.Lock()  # guards the replacement of the module's functions
    missing = {*kernels}
    compiled: _Kernels | None = None

    def load(names: Sequence[str] = kernels) -> None:
        nonlocal compiled
        with lock:
            wanted = [name for name in names if name in missing]
            if wanted and compiled is None:
                compiled = _Kernels(module, functions, helpers, kernels)
            for name in wanted:
                assert compiled is not None
                module[name] = compiled.compile(name, examples()[name])
                missing.remove(name)

    def lazy(name: str) -> Callable[..., Any]:
        estimate = plain_us.get(name)

        def first_call(*arguments: Any) -> Any:
            if estimate is not None and _Spent.plain_us < _Spent.plain_us_max and name in missing:
                spent_us = _Spent.plain_us + estimate(*arguments)
                if spent_us < _Spent.plain_us_max:
                    _Spent.plain_us = spent_us
                    with np.errstate(over="ignore"):  # hashes wrap around, and so may damaged times
                        return plain[name](*arguments)
            _uninterrupted(load, [name])
            return module[name](*arguments)

        return first_call

    # Without compilation the functions stay as they are, so that a tracer sees their lines.
    if os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0"):
        module.update({name: lazy(name) for name in kernels})
        return functools.partial(_uninterrupted, load)
    return lambda: None


def _uninterrupted(load: Callable[..., None], *arguments: Sequence[str]) -> None:
    """Call `load` in a thread of its own, and wait for it; Ctrl-C ends the wait alone.

    That reaches the main thread only. There it would leave numba, or a module that numba imports,
    half imported, and every later call would fail.

    Raises:
        CompiledCodeError: for what numba raises; its OSError would be taken for a disk's.
    """
    loader = threading.Thread(target=load, args=arguments, name="kbatch-kernels", daemon=True)
    loader.start()
    loader.join()
    try:
        load(*arguments)  # Nothing is left to do, unless that failed: then this raises the same.
    except (ImportError, MemoryError, OSError) as error:
        raise CompiledCodeError(str(error) or "no memory", address_space_mib()) from error


def _plain_functions(
    module: dict[str, Any], functions: Mapping[str, Any]
) -> dict[str, Callable[..., Any]]:
    """Return copies of a module's functions that call each other, whatever the module's names come to mean."""
    names = {**module, **llvm.IN_PYTHON}
    for name, function in functions.items():
        if name not in llvm.IN_PYTHON and function.__globals__ is module:
            names[name] = FunctionType(
                function.__code__, names, name, function.__defaults__, function.__closure__
            )
    return names


class _Kernels:
    """The kernels of one module, compiled one by one."""

    def __init__(
        self,
        module: dict[str, Any],
        functions: dict[str, Any],
        helpers: Sequence[str],
        kernels: Sequence[str],
    ) -> None:
        """Import numba, and have the module's helpers ready for it."""
        import numba  # noqa: PLC0415  see the module's docstring

        settings: Any = numba.config
        try:
            numba.njit(cache=True)(functions[kernels[0]])
        except RuntimeError:
            # Neither the kernels' directory nor the home directory can be written.
            settings.CACHE_DIR = _temporary_directory()
        # LLVM code checks no bounds, and Python cannot call it.
        instead = {} if settings.BOUNDSCHECK or settings.DISABLE_JIT else llvm.by_name()
        for name in helpers:
            module[name] = instead.get(name) or numba.njit(forceinline=True, **_NO_COUNTS)(
                functions[name]
            )
        self._njit: Any = functools.partial(numba.njit, cache=True, nogil=True, **_NO_COUNTS)
        self._functions = functions
        self._source = Path(module["__file__"])
        self._digest = _source_digest(functions, *instead)

    def compile(self, name: str, example: Sequence[Any]) -> Any:
        """Return a compiled kernel; wait for another process that compiles it already."""
        function = self._functions[name]
        # numba notices changes of a kernel's own file only. It names cached files after the
        # function, so with the digest in the name, other sources have other files.
        function.__qualname__ = f"{name}_{self._digest}"
        kernel = self._njit(function)
        if kernel is function:  # a configuration file disables compilation
            return function
        cache = Path(kernel.stats.cache_path)
        cache.mkdir(parents=True, exist_ok=True)
        ready = cache / f"{name}-{_fingerprint(self._source, self._digest)}.ready"
        if ready.exists():
            kernel(*example)
            return kernel
        from filelock import FileLock  # noqa: PLC0415  seldom needed

        start = monotonic_s()
        with FileLock(cache / f"{name}.lock"):
            if not ready.exists():
                logger.info("compiling the kernel %s into %s, once on this machine", name, cache)
            kernel(*example)
            ready.touch()
        _Spent.compiling_s += monotonic_s() - start
        return kernel


def _temporary_directory() -> str:
    """Return a directory for cached kernels that only this user can write, since they are run."""
    shared = private_temporary_dir("spark_kbatch-kernels")
    return str(shared) if shared is not None else tempfile.mkdtemp(prefix="spark_kbatch-kernels-")


def _source_digest(functions: dict[str, Any], *llvm_names: str) -> str:
    """Return a hash of the sources of everything that is compiled into the kernels."""
    modules = {__name__, llvm.__name__, *(function.__module__ for function in functions.values())}
    sources = [inspect.getsource(sys.modules[name]) for name in sorted(modules)]
    return _digest(*llvm_names, *sources)


def _fingerprint(source: Path, source_digest: str) -> str:
    """Return a hash that changes whenever numba would compile the kernels again."""
    import numba  # noqa: PLC0415  see the module's docstring

    seen = source.stat() if source.exists() else None  # none inside a zip file
    return _digest(
        source_digest,
        numba.__version__,
        platform.python_version(),
        platform.machine(),
        platform.node(),
        seen and (seen.st_mtime_ns, seen.st_size),
    )


def _digest(*facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
