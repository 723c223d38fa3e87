"""Kafka's protocol, for clients and servers: messages as bytes, frames on a socket, a client's connections.

    size        int32   bytes that follow: one frame
    header      request: api key, version, correlation id, client id; response: correlation id
    body        fields of the message, in the format of its version

A version is flexible or not. Flexible versions write lengths and counts as varints, increased by one, with
0 for null, and end each structure with tagged fields, of which a reader skips those it does not know. A
server answers requests in their order, and returns the correlation id of each.

All messages are entries of one table, from which one codec reads and writes them, without copying the records of
Produce and Fetch. A peer's lengths and counts cannot be trusted: each is checked against the bytes that are there
before anything is allocated.

    module        contents
    protocol      requests and responses <-> bytes, with their headers; the classes of all messages
    messages      the table: each request's number, versions and fields
    codec         values of the table's messages, bounds-checked decoders, encoders
    records       the requests that write and read records
    errors        error codes <-> exceptions
    framing       outgoing and incoming frames
    channel       a connected socket that carries frames
    addresses     look-up of host names
    tls           a client's TLS, from Kafka's `ssl.*` options
    sasl          a client's authentication; imports kafka-python's mechanisms
    oauth         tokens for it
    connection    a client's side of one connection: versions, authentication, requests, answers
    connections   a client's connections to all servers, on one selector
    backoff       pauses that double with each attempt

Source: Kafka clients/.../common/protocol; KIP-482 (flexible versions), KIP-511 (ApiVersions).
"""
