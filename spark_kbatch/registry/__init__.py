"""Schema registries: schemas by id, and the versions of a subject; Confluent's HTTP API, or a folder in its place.

The bytes of a record name their schema by an id, which a registry gave it when it was registered under a subject.
An id never changes its meaning in the context of a registry, so what is known once is never asked for again.

    module      contents
    schemas     schemas as a registry has them, with those they refer to; what a registry is asked for
    endpoint    the calls of the API, and requests over HTTP: URLs in turn, retries, bounds, errors
    connections connections whose answers have one time limit; imports urllib3
    folder      a registry that is a folder
    known       a registry's client that asks for nothing twice, and the machine's cache; the way in
"""
