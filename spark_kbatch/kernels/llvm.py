"""LLVM code, for any processor, of helpers that numba compiles badly or cannot express.

    name in a module    does                                                         plain twin
    _copy               copies a span of bytes, with vectors or by calling memcpy    copy
    _prefetch           loads two cache lines that will be read soon                 prefetch
    _murmur2_lanes      hashes LANES keys of equal length at once                    in `routing`
    _remainder_lanes    divides LANES numbers at once                                in `routing`

Nothing here checks bounds, and numbers are little-endian, as Arrow's are. numba is imported when
`by_name` is called.
"""

from __future__ import annotations

from typing import Any

LANES = 16  # keys hashed at once
MURMUR_SEED, MURMUR_M = 0x9747B28C, 0x5BD1E995


def copy(source: Any, start: Any, out: Any, position: Any, size: Any) -> Any:
    """Copy `size` bytes in plain Python, as `_copy` does when compiled; return the position after them."""
    for i in range(size):
        out[position + i] = source[start + i]
    return position + size


def _copy_slice(source: Any, start: Any, out: Any, position: Any, size: Any) -> Any:
    """Copy as `copy` does, in one step of numpy, which compiled code with bounds checks would not check."""
    end = position + size
    out[position:end] = source[start : start + size]
    return end


def prefetch(source: Any, position: Any) -> None:
    """Start to load the bytes at `position` into the CPU's cache, when compiled; else do nothing.

    They may lie past the end. Memory is read while the loop does its other work.
    """


# What kernels call in place of these while they are not compiled.
IN_PYTHON = {"_copy": _copy_slice}


def by_name() -> dict[str, Any]:
    """Return the LLVM code that replaces functions of kernel modules, by the functions' names."""
    return {
        "_copy": _llvm_copy(),
        "_prefetch": _llvm_prefetch(),
        "_murmur2_lanes": _llvm_murmur2_lanes(),
        "_remainder_lanes": _llvm_remainder_lanes(),
    }


def _llvm_copy() -> Any:
    """Return the LLVM code of `copy`, which is twice as fast as a plain loop for short spans.

    The plain loop first tests for an overlap. Spans of 16 to 128 bytes, as keys and values often are,
    take no call: two or four vectors, half of them from the front and half up to the end, which may
    overlap.
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
                data = _data(context, builder, signature, arguments, array)
                return builder.gep(data, [arguments[index]])

            to, origin, size = address(2, 3), address(0, 1), arguments[4]

            def copy_vectors(width: int, count: int) -> None:
                """Emit code that copies `count` vectors of `width` bytes, half of them up to the end."""
                fronts = [size.type(width * index) for index in range(count // 2)]
                ends = [
                    builder.sub(size, size.type(width * count // 2 - at.constant)) for at in fronts
                ]
                vector = ir.VectorType(ir.IntType(8), width).as_pointer()

                def part(base: Any, at: Any) -> Any:
                    return builder.bitcast(builder.gep(base, [at]), vector)

                starts = fronts + ends
                values = [builder.load(part(origin, at), align=1) for at in starts]
                for value, at in zip(values, starts, strict=True):
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
    """Return the LLVM code of `prefetch`: an intrinsic, for two cache lines."""
    from llvmlite import ir  # noqa: PLC0415  see the module's docstring
    from numba.core import types  # noqa: PLC0415  see the module's docstring
    from numba.extending import intrinsic  # noqa: PLC0415  see the module's docstring

    number = ir.IntType(32)
    line_bytes, is_read, keep_in_l2, is_data = 64, 0, 2, 1

    def prefetch(typing_context: Any, source: Any, position: Any) -> Any:
        del typing_context

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = _data(context, builder, signature, arguments, 0)
            for ahead in (0, line_bytes):
                position = builder.add(arguments[1], arguments[1].type(ahead))
                address = builder.gep(data, [position])
                takes = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
                hint = builder.module.declare_intrinsic("llvm.prefetch", [address.type], takes)
                builder.call(hint, [address, *map(number, (is_read, keep_in_l2, is_data))])
            return context.get_dummy_value()

        return types.none(source, position), generate

    return intrinsic(prefetch)


def _llvm_murmur2_lanes() -> Any:
    """Return the LLVM code of `_murmur2_lanes`, which hashes LANES keys of equal length as one vector.

    Bytes are loaded key by key.
    """
    from llvmlite import ir  # noqa: PLC0415  see the module's docstring
    from numba.core import cgutils, types  # noqa: PLC0415  see the module's docstring
    from numba.extending import intrinsic  # noqa: PLC0415  see the module's docstring

    code: Any = cgutils
    int8, int32, int64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)

    def murmur2_lanes(typing_context: Any, data: Any, bounds: Any, row: Any, hashes: Any) -> Any:
        del typing_context

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            key_bytes, positions, out = (
                _data(context, builder, signature, arguments, array) for array in (0, 1, 3)
            )
            row = arguments[2]
            lanes = range(LANES)
            vector = ir.VectorType(int32, LANES)

            def bound(at: int) -> Any:
                where = builder.gep(positions, [builder.add(row, int64(at))])
                return builder.sext(builder.load(where), int64)

            def constant(number: int) -> Any:
                return ir.Constant(vector, [number] * LANES)

            starts = [bound(lane) for lane in lanes]
            size = builder.sub(bound(1), starts[0])

            def gather(at: Any, width: ir.IntType) -> Any:
                """Emit code that loads the word or byte at position `at` of each key into a vector."""
                loaded = constant(0)
                for lane in lanes:
                    where = builder.gep(key_bytes, [builder.add(starts[lane], at)])
                    part = builder.load(builder.bitcast(where, width.as_pointer()), align=1)
                    word = part if width is int32 else builder.zext(part, int32)
                    loaded = builder.insert_element(loaded, word, int32(lane))
                return loaded

            def shifted(vector: Any, bits: int) -> Any:
                return builder.xor(vector, builder.lshr(vector, constant(bits)))

            times = constant(MURMUR_M)
            state = code.alloca_once(builder, vector)
            seed = builder.xor(builder.trunc(size, int32), int32(MURMUR_SEED))
            builder.store(_spread(builder, seed), state)
            with code.for_range(builder, builder.lshr(size, int64(2)), intp=int64) as word:
                k = gather(builder.shl(word.index, int64(2)), int32)
                k = builder.mul(shifted(builder.mul(k, times), 24), times)
                h = builder.mul(builder.load(state), times)
                builder.store(builder.xor(h, k), state)
            left = builder.and_(size, int64(3))
            with builder.if_then(builder.icmp_unsigned(">", left, int64(0))):
                tail = builder.sub(size, left)
                with code.for_range(builder, left, intp=int64) as byte:
                    k = gather(builder.add(tail, byte.index), int8)
                    bits = builder.trunc(builder.shl(byte.index, int64(3)), int32)
                    k = builder.shl(k, _spread(builder, bits))
                    builder.store(builder.xor(builder.load(state), k), state)
                builder.store(builder.mul(builder.load(state), times), state)
            h = builder.mul(shifted(builder.load(state), 13), times)
            h = builder.and_(shifted(h, 15), constant(0x7FFFFFFF))
            to = builder.bitcast(builder.gep(out, [row]), vector.as_pointer())
            builder.store(h, to, align=4)
            return context.get_dummy_value()

        return types.none(data, bounds, row, hashes), generate

    return intrinsic(murmur2_lanes)


def _llvm_remainder_lanes() -> Any:
    """Return the LLVM code of `_remainder_lanes`, which multiplies by the reciprocal instead of dividing.

    That takes a tenth of the time. A quotient of 31 bits is exact in a double, or off by less than 2^-21
    / divisor. So after truncation only a whole quotient can be 1 too small.
    """
    from llvmlite import ir  # noqa: PLC0415  see the module's docstring
    from numba.core import types  # noqa: PLC0415  see the module's docstring
    from numba.extending import intrinsic  # noqa: PLC0415  see the module's docstring

    int32, double = ir.IntType(32), ir.DoubleType()

    def remainder_lanes(typing_context: Any, numbers: Any, first: Any, divisor: Any) -> Any:
        del typing_context

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            first = builder.gep(_data(context, builder, signature, arguments, 0), [arguments[1]])
            vector = ir.VectorType(int32, LANES)
            doubles = ir.VectorType(double, LANES)

            divisor = builder.trunc(arguments[2], int32)
            reciprocal = builder.fdiv(double(1.0), builder.uitofp(divisor, double))
            divisors = _spread(builder, divisor)
            pointer = builder.bitcast(first, vector.as_pointer())
            numbers = builder.load(pointer, align=4)
            reciprocals = _spread(builder, reciprocal)
            quotients = builder.fmul(builder.sitofp(numbers, doubles), reciprocals)
            products = builder.mul(builder.fptosi(quotients, vector), divisors)
            left = builder.sub(numbers, products)
            is_whole = builder.icmp_signed(">=", left, divisors)
            left = builder.select(is_whole, builder.sub(left, divisors), left)
            builder.store(left, pointer, align=4)
            return context.get_dummy_value()

        return types.none(numbers, first, divisor), generate

    return intrinsic(remainder_lanes)


def _spread(builder: Any, number: Any) -> Any:
    """Return an LLVM vector with `number` in all lanes."""
    from llvmlite import ir  # noqa: PLC0415  see the module's docstring

    int32 = ir.IntType(32)
    undefined = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, number, int32(0))
    nowhere_else = ir.Constant(ir.VectorType(int32, LANES), [0] * LANES)
    return builder.shuffle_vector(first, undefined, nowhere_else)


def _data(context: Any, builder: Any, signature: Any, arguments: Any, array: int) -> Any:
    """Return the LLVM address of the first element of a kernel's array argument."""
    from numba.core import cgutils  # noqa: PLC0415  see the module's docstring

    code: Any = cgutils
    view = code.create_struct_proxy(signature.args[array])
    return view(context, builder, value=arguments[array]).data
