"""Kafka's protocol, whoever speaks it: messages as bytes, frames on a socket, a client's connections.

    size        int32   bytes that follow: one frame
    header      request: api key, version, correlation id, client id; response: correlation id
    body        fields of the message, as its version has them

A version is flexible or not. Flexible ones write lengths and counts as varints, increased by one, with
0 for null, and end each structure with tagged fields, which a reader may not know and skips. A peer
answers in the order of requests, and echoes the correlation id of each.

Most messages are kafka-python's, whose schemas are Kafka's own. Produce and Fetch carry nearly all bytes:
these are read and written here, without a copy of their records. All are decoded here, because a peer's
lengths and counts are claims: each is bounded by the bytes that are there before anything is allocated.

    module        what it holds
    protocol      requests and responses <-> bytes; versions; the only module that imports kafka-python
    primitives    bounds-checked reads and writes of the protocol's types
    schemas       decoders for kafka-python's messages, made from their schemas
    produce       bodies of Produce
    fetch         bodies of Fetch
    leaders       the tagged fields that both have
    errors        error codes <-> exceptions
    framing       one frame on its way out, and frames on their way in
    channel       a connected socket that carries frames
    in_flight     the requests of one connection that are not answered
    connection    a client's side of one connection: versions, requests, answers
    connections   a client's connections to all servers, on one selector
    backoff       pauses that double with each attempt

Source: Kafka clients/.../common/protocol; KIP-482 (flexible versions), KIP-511 (ApiVersions).
"""
