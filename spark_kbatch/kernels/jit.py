"""Compilation of a module's numba kernels on their first call: once on each machine, then from a cache.

Importing numba takes 0.25 s and 60 MB, and compiling takes several seconds. Planners and committers call
no kernels and must not pay for that, so numba is imported on the first call too.

Compiled code is cached next to the kernels' file, or in the user's cache directory, or, where neither can
be written, in a temporary directory of the user's own, which all of the user's processes share. It is compiled again whenever the source of the kernels, of
helpers from other modules or of the LLVM code changes.

Several workers that start together would all compile, and each would take several times as long. So one
compiles while the others wait for its result.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import logging
import os
import platform
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spark_kbatch.kernels import llvm

logger = logging.getLogger(__name__)


class _Cache(NamedTuple):
    directory: Path
    digest: str  # of the sources that the kernels are compiled from


def compile_on_first_call(
    module: dict[str, Any],
    helpers: Sequence[str],
    kernels: Sequence[str],
    warm_up: Callable[[], None],
) -> Callable[[], None]:
    """Replace a module's kernels by functions that compile all of them on the first call.

    Args:
        module: its globals, which are written to: now, and again with compiled functions.
        helpers: names of functions that kernels call, in the order in which they call each other;
            `llvm` has its own code for some.
        kernels: names of functions that other modules call.
        warm_up: calls every kernel once, in the one form in which it is ever called.

    Returns:
        A function that compiles or loads all kernels now. Thread-safe; later calls do nothing.
    """
    functions = {name: module[name] for name in (*helpers, *kernels)}
    lock = threading.Lock()  # guards the replacement of the module's functions
    loaded = False

    def load() -> None:
        nonlocal loaded
        with lock:
            if loaded:
                return
            cache = _put_dispatchers(module, functions, helpers, kernels)
            loaded = True
            if cache is not None:
                _compile_once(cache, Path(module["__file__"]), warm_up)

    def lazy(name: str) -> Callable[..., Any]:
        def first_call(*arguments: Any) -> Any:
            load()
            return module[name](*arguments)

        return first_call

    # Without compilation the functions stay as they are, so that a tracer sees their lines.
    if os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0"):
        module.update({name: lazy(name) for name in kernels})
    return load


def _put_dispatchers(
    module: dict[str, Any],
    functions: dict[str, Any],
    helpers: Sequence[str],
    kernels: Sequence[str],
) -> _Cache | None:
    """Replace kernels and helpers by numba's dispatchers for them; return None if compilation is disabled."""
    import numba  # noqa: PLC0415  see the module's docstring

    settings: Any = numba.config
    if settings.DISABLE_JIT:
        return None
    try:
        numba.njit(cache=True)(functions[kernels[0]])
    except RuntimeError:
        # Neither the kernels' directory nor the home directory can be written.
        settings.CACHE_DIR = _temporary_directory()
    instead = {} if settings.BOUNDSCHECK else llvm.by_name()  # which checks no bounds
    for name in helpers:
        module[name] = instead.get(name) or numba.njit(forceinline=True)(functions[name])
    digest = _source_digest(functions, *instead)
    for name in kernels:
        # numba notices changes of a kernel's own file only. It names cached files after the
        # function, so with the digest in the name, other sources have other files.
        functions[name].__qualname__ = f"{name}_{digest}"
        module[name] = numba.njit(cache=True, nogil=True)(functions[name])
    return _Cache(Path(module[kernels[0]].stats.cache_path), digest)


def _temporary_directory() -> str:
    """Return a directory for cached kernels that only this user can write, since they are run."""
    shared = Path(tempfile.gettempdir(), f"spark_kbatch-kernels-{os.getuid()}")
    with contextlib.suppress(OSError):
        shared.mkdir(mode=0o700, exist_ok=True)
        found = shared.lstat()
        is_private = found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o700
        if stat.S_ISDIR(found.st_mode) and is_private:
            return str(shared)
    return tempfile.mkdtemp(prefix="spark_kbatch-kernels-")


def _source_digest(functions: dict[str, Any], *llvm_names: str) -> str:
    """Return a hash of the sources of everything that is compiled into the kernels."""
    modules = {llvm.__name__, *(function.__module__ for function in functions.values())}
    sources = [inspect.getsource(sys.modules[name]) for name in sorted(modules)]
    return _digest(*llvm_names, *sources)


def _compile_once(cache: _Cache, source: Path, warm_up: Callable[[], None]) -> None:
    """Compile a module's kernels, or load those that another process has compiled meanwhile."""
    from filelock import FileLock  # noqa: PLC0415  see the module's docstring

    cache.directory.mkdir(parents=True, exist_ok=True)
    ready = cache.directory / f"{source.stem}-{_fingerprint(source, cache.digest)}.ready"
    if ready.exists():
        warm_up()
        return
    with FileLock(cache.directory / "kernels.lock"):
        if not ready.exists():
            logger.info("compiling kernels into %s, once on this machine", cache.directory)
        warm_up()
        ready.touch()


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
