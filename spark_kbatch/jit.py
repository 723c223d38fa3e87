"""Compiles a module's kernels when one is first called; the only module that imports numba.

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

logger = logging.getLogger(__name__)


def copy(source: Any, start: Any, out: Any, position: Any, size: Any) -> Any:
    """Copy `size` bytes; a call of memcpy once compiled."""
    for i in range(size):
        out[position + i] = source[start + i]
    return position + size


def prefetch(source: Any, position: Any) -> None:
    """Have the processor fetch two cache lines that will be read soon; nothing until compiled.

    The position may lie behind the end. Bytes come from memory while the loop does its other work:
    a third of the time for records of 130 bytes.
    """


def compile_on_first_call(
    module: dict[str, Any],
    helpers: Sequence[str],
    kernels: Sequence[str],
    warm_up: Callable[[], None],
) -> Callable[[], None]:
    """Put functions that compile themselves in place of a module's kernels.

    Args:
        module: its globals, which are written to: now, and again with compiled functions.
        helpers: names of functions that kernels call; not `_copy` and `_prefetch`, which a module
            has from here.
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
    if settings.BOUNDSCHECK:  # memcpy would check nothing
        module["_copy"] = numba.njit(forceinline=True)(copy)
    else:
        module["_copy"] = _memcpy()
    module["_prefetch"] = _llvm_prefetch()
    for name in helpers:
        module[name] = numba.njit(forceinline=True)(functions[name])
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


def _memcpy() -> Any:
    """`_copy(source, start, out, position, size)` as a call of memcpy, on any processor.

    For short spans it is twice as fast as the loop, which first tests whether they overlap. Spans
    of 16 to 128 bytes, as keys and values often are, need no call: two or four vectors, of which
    those from the front and those from the back may overlap.
    """
    from llvmlite import ir  # noqa: PLC0415  see the module's docstring
    from numba.core import cgutils, types  # noqa: PLC0415  see the module's docstring
    from numba.extending import intrinsic  # noqa: PLC0415  see the module's docstring

    code: Any = cgutils

    def copy(
        typing_context: Any, source: Any, start: Any, out: Any, position: Any, size: Any
    ) -> Any:
        del typing_context

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def address(array: int, index: int) -> Any:
                view = code.create_struct_proxy(signature.args[array])
                data = view(context, builder, value=arguments[array]).data
                return builder.gep(data, [arguments[index]])

            to, origin, size = address(2, 3), address(0, 1), arguments[4]

            def copy_vectors(width: int, count: int) -> None:
                """So many vectors of `width` bytes, half of them up to the end."""
                fronts = [size.type(width * index) for index in range(count // 2)]
                ends = [
                    builder.sub(size, size.type(width * count // 2 - at.constant)) for at in fronts
                ]
                vector = ir.VectorType(ir.IntType(8), width).as_pointer()

                def part(base: Any, at: Any) -> Any:
                    return builder.bitcast(builder.gep(base, [at]), vector)

                places = fronts + ends
                values = [builder.load(part(origin, at), align=1) for at in places]
                for value, at in zip(values, places, strict=True):
                    builder.store(value, part(to, at), align=1)

            def choose(ways: list[tuple[int, int]]) -> None:
                if not ways:
                    code.raw_memcpy(builder, to, origin, size, 1, align=1)
                    return
                (width, count), *others = ways
                half = size.type(width * count // 2)
                is_right = builder.icmp_unsigned("<=", builder.sub(size, half), half)
                with builder.if_else(is_right) as (this, other):
                    with this:
                        copy_vectors(width, count)
                    with other:
                        choose(others)

            choose([(16, 2), (32, 4), (32, 2)])
            return builder.add(arguments[3], size)

        return types.uint64(source, start, out, position, size), generate

    return intrinsic(copy)


def _llvm_prefetch() -> Any:
    """`_prefetch(source, position)` as LLVM's prefetch of two cache lines, on any processor."""
    from llvmlite import ir  # noqa: PLC0415  see the module's docstring
    from numba.core import cgutils, types  # noqa: PLC0415  see the module's docstring
    from numba.extending import intrinsic  # noqa: PLC0415  see the module's docstring

    code: Any = cgutils
    line_bytes, is_read, keep_in_l2, is_data = 64, 0, 2, 1

    def prefetch(typing_context: Any, source: Any, position: Any) -> Any:
        del typing_context

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            view = code.create_struct_proxy(signature.args[0])
            data = view(context, builder, value=arguments[0]).data
            number = ir.IntType(32)
            for ahead in (0, line_bytes):
                position = builder.add(arguments[1], arguments[1].type(ahead))
                address = builder.gep(data, [position])
                takes = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
                hint = builder.module.declare_intrinsic("llvm.prefetch", [address.type], takes)
                builder.call(hint, [address, *map(number, (is_read, keep_in_l2, is_data))])
            return context.get_dummy_value()

        return types.none(source, position), generate

    return intrinsic(prefetch)
