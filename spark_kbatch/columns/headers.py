"""A column whose schemas are named in headers of the records, or by GUIDs in front of the values.

Its decoder takes Confluent's five bytes in front of each value, and gets such ones: no row becomes a Python object for
that. `values.framing` has the bytes of headers.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kbatch.consumer.rows import TypedColumn
from spark_kbatch.values.decoded import DecodedValues, RowError
from spark_kbatch.values.flat import INT32_MAX, Array, strings_of, valid_bytes
from spark_kbatch.values.framing import (
    GUID_MAGIC,
    GUID_SIZE,
    HEADER_SIZE,
    NO_SCHEMA_ID,
    header,
    header_name,
    schema_ids_of,
)

# In place of an id: nothing is put in front of a value; or it is not decoded.
_AS_IT_IS, _BAD = -2, -3


class NamedInHeaders:
    """Decodes keys or values whose records say in a header which schema wrote them."""

    def __init__(
        self,
        column: TypedColumn,
        name: str,
        id_of: Callable[[str], int | str],
        *,
        needs_ids: bool,
    ) -> None:
        """Have a decoder take them.

        Args:
            column: the decoder of values in Confluent's framing.
            name: key or value.
            id_of: returns the id of a GUID, or why it is not known.
            needs_ids: whether a value cannot be decoded without its schema's id.
        """
        self._column, self._header = column, header_name(name)
        self._id_of, self._needs_ids = id_of, needs_ids

    def decode(
        self, array: pa.Array, *, memory_max: int | None = None, headers: pa.Array | None = None
    ) -> DecodedValues:
        """Decode values; positions in errors are those of the records. Raises as the column's decoder.

        Args:
            array: binary[n], to decode.
            memory_max: how many bytes the values of several rows may take; None for any number.
            headers: list<struct<key, value>>[n] of their records; None if they have none.
        """
        inside = pa.nulls(len(array), array.type)
        if headers is not None:
            inside = self._last(headers)
        is_valid = valid_bytes(array) != 0
        in_header = is_valid & (valid_bytes(inside) != 0)
        naming = pc.coalesce(inside, array)
        ids, is_guid, reasons = self._ids(naming, is_valid)
        is_named = in_header | is_guid
        for row in np.flatnonzero(in_header & (ids == NO_SCHEMA_ID) & ~is_guid).tolist():
            shown = naming[row].as_py()[:GUID_SIZE].hex(" ")
            reasons[row] = f"the header {self._header} names no schema: it is {shown or 'empty'}"

        # GUIDs that JSON does without have any id for the decoder.
        given = np.where(is_named, np.maximum(ids, 0), _AS_IT_IS)
        given[[*reasons]] = _BAD
        distinct, at = np.unique(given, return_inverse=True)
        none = {_AS_IT_IS: b"", _BAD: None}
        heads = [none[one] if one < 0 else header(one) for one in distinct.tolist()]
        has_guid = is_guid & ~in_header
        behind = pc.binary_slice(array.filter(pa.array(has_guid)), GUID_SIZE, INT32_MAX)
        bodies = pc.replace_with_mask(array, pa.array(has_guid), behind)
        kind = pa.large_binary()  # as the bytes in front may be more than fit
        framed = pc.binary_join_element_wise(
            pa.array(heads, kind).take(pa.array(at)), bodies.cast(kind), pa.scalar(b"", kind)
        )
        decoded = self._column.decode(framed, memory_max=memory_max)
        errors = [RowError(row, reason) for row, reason in reasons.items()]
        for error in decoded.errors:
            if is_named[error.row]:
                moved = GUID_SIZE - HEADER_SIZE if has_guid[error.row] else -HEADER_SIZE
                position = None if error.position is None else error.position + moved
                error = error._replace(position=position, schema_id=int(ids[error.row]))
            errors.append(error)
        return DecodedValues(
            decoded.values,
            np.where(is_named, ids, decoded.schema_ids).astype(np.int32),
            tuple(sorted(errors)),
        )

    def _last(self, headers: pa.Array) -> pa.Array:
        """Return binary[n], the last header of the name that each row has; null if none, or if it is null."""
        pairs, rows = pc.list_flatten(headers), pc.list_parent_indices(headers)
        is_it = pc.equal(pc.struct_field(pairs, "key"), self._header)
        rows = rows.filter(is_it).to_numpy()
        last = np.full(len(headers), -1)
        last[rows] = np.arange(len(rows))  # the last one stays
        values = pc.struct_field(pairs, "value").filter(is_it)
        return values.take(pa.array(last, mask=last < 0))

    def _ids(self, naming: pa.Array, is_valid: Array) -> tuple[Array, Array, dict[int, str]]:
        """Return the ids that bytes name, which of them are GUIDs, and what is wrong with rows of these."""
        spans = strings_of(naming)
        starts, sizes = spans.bounds[:-1], np.diff(spans.bounds)
        ids, reasons = schema_ids_of(spans), dict[int, str]()
        is_guid = is_valid & (sizes >= GUID_SIZE)
        is_guid[is_guid] = spans.data[starts[is_guid]] == GUID_MAGIC
        ids[~is_valid] = NO_SCHEMA_ID
        rows = np.flatnonzero(is_guid)
        guids = pc.binary_slice(naming.take(pa.array(rows)), 1, GUID_SIZE).dictionary_encode()
        found = [self._id_of(str(UUID(bytes=one))) for one in guids.dictionary.to_pylist()]
        known = [NO_SCHEMA_ID if isinstance(one, str) else one for one in found]
        ids[rows] = np.array(known, np.int32)[guids.indices]
        if self._needs_ids:
            bad = rows[ids[rows] == NO_SCHEMA_ID]
            which = guids.indices.to_numpy()[ids[rows] == NO_SCHEMA_ID]
            reasons = {row: str(found[at]) for row, at in zip(bad.tolist(), which, strict=True)}
        return ids, is_guid, reasons
