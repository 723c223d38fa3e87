"""Confluent's framing of values: which schema wrote each, and where it starts.

    bytes   field
    1       0, the magic byte
    4       schema id, int32, big-endian
            the value; of a schema that is bytes and no decimal all that is left, without its length

A GUID stands in for the id as 1, and 16 bytes. Either may be in a header of the record in place of the value, whose
own bytes are all of the value then. The last header of the name counts.

Source: Confluent's documentation "Formats, Serializers, and Deserializers", "Wire format"; schema-registry
avro-serializer/.../AbstractKafkaAvroSerializer.java, schema-serializer/.../schema/id/SchemaId.java,
DualSchemaIdDeserializer.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from spark_kbatch.kernels import slots as kernels
from spark_kbatch.values.flat import Array, ByteStrings, frozen

HEADER_SIZE = 5
GUID_SIZE, GUID_MAGIC = 17, 1
IN_HEADER = "__{}_schema_id"  # of keys, or of values
NO_SCHEMA_ID = -1
_MAGIC, _SINGLE_OBJECT, _AVRO_FILE = 0, b"\xc3\x01", b"Obj\x01"
FRAMED_OTHERWISE = (_SINGLE_OBJECT, _AVRO_FILE)  # starts that values without framing hardly have


def schema_ids_of(rows: ByteStrings) -> Array:
    """Return int32[n]: the schema id of each row, whose value starts HEADER_SIZE bytes later.

    NO_SCHEMA_ID for a row without the framing, and for null.
    """
    ids = np.empty(len(rows.valid), np.int32)
    kernels.schema_ids(rows.data, frozen(rows.bounds[:]), frozen(rows.valid[:]), ids)
    return ids


def header(schema_id: int) -> bytes:
    """Return the bytes in front of a value that a schema wrote."""
    return bytes([_MAGIC]) + schema_id.to_bytes(HEADER_SIZE - 1, "big")


def unknown(schema_id: int, value: bytes) -> str:
    """Return what to say of a framed value whose schema no one has."""
    if schema_id == 0 and len(value) >= 1 + 8:
        return "the schema is not known: with an id of 0 it looks like Apicurio's framing, with ids of 8 bytes"
    return "the schema is not known"


def described(value: bytes) -> str:
    """Return what bytes look like that are not in Confluent's framing, for an error."""
    if not value:
        return "it is empty"
    if value[0] == _MAGIC and len(value) >= HEADER_SIZE:
        return "its schema id is negative"
    if value[0] == _MAGIC:
        return f"it has only {len(value)} of the {HEADER_SIZE} bytes"
    if value[0] in b"{[":
        return "it looks like JSON"
    if value.startswith(_SINGLE_OBJECT):
        return "it looks like Avro's single-object encoding"
    if value.startswith(_AVRO_FILE):
        return "it looks like an Avro file"
    if len(value) >= 18 and value[0] == 3 and value[1] in (0, 5):
        return "it looks like the framing of AWS Glue"
    if len(value) >= GUID_SIZE and value[0] == GUID_MAGIC:
        return (
            "it looks like a GUID of Confluent in place of an id, which a framing of header reads"
        )
    return f"its first byte is {value[0]:#04x}"


def named_in_header(column: str, headers: Iterable[Mapping[str, Any]] | None) -> str:
    """Return what to say of a key or a value whose schema a header of its record names; empty if none does."""
    name = IN_HEADER.format(column)
    if not any(one["key"] == name for one in headers or ()):
        return ""
    return (
        f"its schema is named in the header {name}, and not in front of the {column}: read it with the framing "
        f"header, {column}.framing in Spark"
    )
