"""Compiles a module's kernels when one is first called; imports numba, as `intrinsics` does, then.

numba costs 0.25 s and 60 MB to import and the kernels some seconds to compile, so planners and
committers, which call none, must not pay for it. Compiled code is cached beside the kernels' file,
else in the user's cache directory, else in a private temporary one.

Several workers that begin together would all compile and take as many times as long: one compiles
while the others wait for its result.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spark_kbatch.kernels import llvm

logger = logging.getLogger(__name__)


def compile_on_first_call(
    module: dict[str, Any],
    helpers: Sequence[str],
    kernels: Sequence[str],
    warm_up: Callable[[], None],
) -> Callable[[], None]:
    """Put functions that compile themselves in place of a module's kernels.

    Args:
        module: its globals, which are written to: now, and again with compiled functions.
        helpers: names of functions that kernels call, in the order in which they call each other;
            `intrinsics` has others for some.
        kernels: names of functions that others call.
        warm_up: calls every kernel in its one form.

    Returns:
        What makes all kernels ready; thread-safe, does nothing the second time.
    """
    functions = {name: module[name] for name in (*helpers, *kernels)}
    lock = threading.Lock()  # guards the replacement of the module's functions
    loaded = False

    def load() -> None:
        nonlocal loaded
        with lock:
            if loaded:
                return
            cache_dir = _put_dispatchers(module, functions, helpers, kernels)
            loaded = True
            if cache_dir is not None:
                _compile_once(cache_dir, Path(module["__file__"]), warm_up)

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
) -> Path | None:
    """Let numba take over every function; returns its cache directory, None where it is off."""
    import numba  # noqa: PLC0415  see the module's docstring

    settings: Any = numba.config
    if settings.DISABLE_JIT:
        return None
    try:
        numba.njit(cache=True)(functions[kernels[0]])
    except RuntimeError:
        # Neither the kernels' directory nor the home directory can be written.
        settings.CACHE_DIR = tempfile.mkdtemp(prefix="spark_kbatch-kernels-")
    instead = {} if settings.BOUNDSCHECK else llvm.by_name()  # which check nothing
    for name in helpers:
        module[name] = instead.get(name) or numba.njit(forceinline=True)(functions[name])
    for name in kernels:
        module[name] = numba.njit(cache=True, nogil=True)(functions[name])
    return Path(module[kernels[0]].stats.cache_path)


def _compile_once(cache_dir: Path, source: Path, warm_up: Callable[[], None]) -> None:
    """Compile, or load what another process has compiled meanwhile."""
    from filelock import FileLock  # noqa: PLC0415  see the module's docstring

    cache_dir.mkdir(parents=True, exist_ok=True)
    ready = cache_dir / f"{source.stem}-{_fingerprint(source)}.ready"
    if ready.exists():
        warm_up()
        return
    with FileLock(cache_dir / "kernels.lock"):
        if not ready.exists():
            logger.info("compiling kernels into %s, once on this machine", cache_dir)
        warm_up()
        ready.touch()


def _fingerprint(source: Path) -> str:
    """Changes whenever numba would compile again."""
    import numba  # noqa: PLC0415  see the module's docstring

    seen = source.stat() if source.exists() else None  # none inside a zip file
    facts = (
        numba.__version__,
        platform.python_version(),
        platform.machine(),
        platform.node(),
        seen and (seen.st_mtime_ns, seen.st_size),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
