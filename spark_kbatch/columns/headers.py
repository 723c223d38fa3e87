"""A column whose schemas are named in headers of the records, or by GUIDs in front of the values.

Its decoder takes Confluent's five bytes in front of each value, and gets such ones: no row
becomes a Python object for that. `values.framing` says what the headers have.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kbatch.consumer.rows import TypedColumn
from spark_kbatch.values.decoded import DecodedValues, RowError
from spark_kbatch.values.flat import INT32_MAX, strings_of
from spark_kbatch.values.framing import (
    GUID_MAGIC,
    GUID_SIZE,
    HEADER_SIZE,
    IN_HEADER,
    NO_SCHEMA_ID,
    header,
    schema_ids_of,
)

_FRAMED = pa.large_binary()  # five bytes in front of each may be too many for an int32
_NONE, _NULL = pa.scalar(b"", _FRAMED), pa.scalar(None, _FRAMED)


def decoded_by_headers(
    column: TypedColumn,
    name: str,
    id_of: Callable[[str], int | str],
    headers: pa.Array,
    array: pa.Array,
    *,
    needs_ids: bool,
    memory_max: int | None = None,
) -> DecodedValues:
    """Decode keys or values whose records say in a header which schema wrote them.

    Args:
        column: the decoder of values in Confluent's framing.
        name: key or value.
        id_of: returns the id of a GUID, or why it is not known.
        headers: list<struct<key, value>>[n] of the records.
        array: binary[n], to decode.
        needs_ids: whether a value whose id is not known is an error.
        memory_max: how many bytes the values of several rows may take; None for any number.

    Returns:
        The values; positions in errors are those in `array`.

    Raises:
        SchemaRegistryError, OverflowError: as `id_of`, and as the decoder.
    """
    in_headers = _last(headers, IN_HEADER.format(name))
    has_header = pc.and_(array.is_valid(), in_headers.is_valid()).to_numpy(zero_copy_only=False)
    # The bytes that name a schema, or begin with such; null where there is nothing to decode.
    names = pc.if_else(
        array.is_valid(), pc.coalesce(in_headers, array), pa.scalar(None, array.type)
    )
    is_of_guid = pc.and_(
        pc.starts_with(names, bytes([GUID_MAGIC])),
        pc.greater_equal(pc.binary_length(names), GUID_SIZE),
    ).fill_null(False)
    has_guid = is_of_guid.to_numpy(zero_copy_only=False)
    guids = pc.binary_slice(names.filter(is_of_guid), 1, GUID_SIZE).dictionary_encode()
    told = [id_of(str(UUID(bytes=one))) for one in guids.dictionary.to_pylist()]
    known = [NO_SCHEMA_ID if isinstance(one, str) else one for one in told]
    ids, which = schema_ids_of(strings_of(names)), np.zeros(len(array), np.int64)
    ids[has_guid], which[has_guid] = np.array(known, np.int32)[guids.indices], guids.indices

    is_bad = (has_header | has_guid) & (ids == NO_SCHEMA_ID) & (needs_ids | ~has_guid)
    malformed = (
        f"the header {IN_HEADER.format(name)} names no schema: it has neither a 0 and an id of 4 bytes, nor a 1 and "
        "a GUID of 16"
    )
    errors = [
        RowError(row, str(told[which[row]]) if has_guid[row] else malformed)
        for row in np.flatnonzero(is_bad).tolist()
    ]
    in_fives = pc.binary_slice(in_headers, 0, HEADER_SIZE).cast(_FRAMED)
    # The decoder needs an id, if only any, of values that do without.
    of_guids = pa.array([header(max(one, 0)) for one in known], _FRAMED).take(guids.indices)
    fronts = pc.replace_with_mask(
        pc.if_else(pa.array(has_header), in_fives, _NONE), is_of_guid, of_guids
    )
    in_front = has_guid & ~has_header
    # Without an end, Arrow's binary_slice fails where it takes less than it leaves out.
    behind = pc.binary_slice(array.filter(pa.array(in_front)), GUID_SIZE, INT32_MAX)
    values = pc.replace_with_mask(array, pa.array(in_front), behind).cast(_FRAMED)
    decoded = column.decode(
        pc.binary_join_element_wise(pc.if_else(pa.array(is_bad), _NULL, fronts), values, _NONE),
        memory_max=memory_max,
    )
    moved = np.where(in_front, GUID_SIZE - HEADER_SIZE, -HEADER_SIZE * has_header)
    errors += [
        one._replace(
            position=None if one.position is None else one.position + int(moved[one.row]),
            schema_id=int(ids[one.row]),
        )
        for one in decoded.errors
    ]
    return DecodedValues(decoded.values, ids, tuple(sorted(errors)))


def _last(headers: pa.Array, name: str) -> pa.Array:
    """Return binary[n], the last header of a name in each row; null if none, or if it is null."""
    pairs = pc.list_flatten(headers)
    is_it = pc.equal(pc.struct_field(pairs, "key"), name)
    rows = pc.list_parent_indices(headers).filter(is_it).to_numpy()
    last = np.full(len(headers), -1)
    last[rows] = np.arange(len(rows))  # of several numbers for a row, the last one stays
    return pc.struct_field(pairs, "value").filter(is_it).take(pa.array(last, mask=last < 0))
