"""Leaders and their addresses, in tagged fields of answers to Produce and Fetch.

Source: KIP-951.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from spark_kbatch.wire.primitives import Reader, Writer

# Name and decoder of a field, by tag.
TaggedReaders: TypeAlias = Mapping[int, tuple[str, Callable[[Reader], Any]]]

_LEADER = struct.Struct(">ii")
_ENDPOINT_MIN_SIZE = 11


class CurrentLeader(NamedTuple):
    """A partition's leader in a Produce or Fetch response; -1 if the broker knows none."""

    leader_id: int = -1
    leader_epoch: int = -1


class NodeEndpoint(NamedTuple):
    """The address, in a Produce response, of a broker that leads one of its partitions."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def read_leader(reader: Reader) -> CurrentLeader:
    """Decode the tagged field `current_leader`."""
    leader = CurrentLeader(*reader.unpack(_LEADER, "current_leader"))
    reader.tagged_fields("current_leader")
    return leader


def encoded_leader(leader: CurrentLeader) -> bytes:
    """Return the encoded value of the tagged field `current_leader`."""
    return _LEADER.pack(*leader) + b"\0"


def read_endpoints(reader: Reader) -> list[NodeEndpoint]:
    """Decode the tagged field `node_endpoints`."""
    return reader.array(_read_endpoint, _ENDPOINT_MIN_SIZE, "node_endpoints")


def encoded_endpoints(endpoints: list[NodeEndpoint]) -> bytes:
    """Return the encoded value of the tagged field `node_endpoints`."""
    writer = Writer(flexible=True)
    writer.array_length(len(endpoints))
    for one in endpoints:
        writer.int32(one.node_id)
        writer.string(one.host)
        writer.int32(one.port)
        writer.string(one.rack)
        writer.tagged_fields()
    return b"".join(writer.pieces())


def _read_endpoint(reader: Reader) -> NodeEndpoint:
    node_id = reader.int32("node_endpoints.node_id")
    host = reader.string("node_endpoints.host")
    port = reader.int32("node_endpoints.port")
    rack = reader.nullable_string("node_endpoints.rack")
    reader.tagged_fields("node_endpoints")
    return NodeEndpoint(node_id, host, port, rack)
