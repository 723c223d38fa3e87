"""Encoded rows of any format: values, and the reason where a row has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from spark_kbatch.values import flat
from spark_kbatch.values.decoded import RowError


@dataclass(frozen=True, eq=False)
class EncodedValues:
    """The values of one call, in the order of the rows that were given."""

    values: pa.Array | pa.ChunkedArray  # binary; null for a row that is null or bad
    errors: tuple[RowError, ...]  # in the order of rows


def encoded_in_pieces(
    array: pa.Array | pa.ChunkedArray,
    encode: Callable[[pa.Array], tuple[pa.Array, list[RowError]] | None],
) -> EncodedValues:
    """Encode an array in as few calls as there can be.

    Args:
        array: chunked or not. Only read.
        encode: encodes some rows: their values and errors, or None if they take too many bytes.

    Raises:
        OverflowError: an array whose values do not fit into one array: pass it as a chunked one.
    """
    is_chunked = isinstance(array, pa.ChunkedArray)
    left = list(reversed(array.chunks)) if is_chunked else [array]
    chunks: list[pa.Array] = []
    errors: list[RowError] = []
    first = 0
    while left:
        rows = left.pop()
        found = encode(rows)
        if found is not None:
            chunks.append(found[0])
            errors += [one._replace(row=one.row + first) for one in found[1]]
            first += len(rows)
        elif len(rows) == 1:
            raise OverflowError("a single value takes more than 2 GiB")
        else:
            middle = len(rows) // 2
            left += [rows.slice(middle), rows.slice(0, middle)]
    if is_chunked:
        return EncodedValues(pa.chunked_array(chunks, pa.binary()), tuple(errors))
    if len(chunks) > 1 and sum(one.nbytes for one in chunks) > flat.INT32_MAX:
        raise OverflowError("the values do not fit into one Arrow array: pass a chunked one")
    values = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)  # which copies one, too
    return EncodedValues(values, tuple(errors))
