"""Schema registries: schemas by id, and the versions of a subject; Confluent's HTTP API, or a folder in its place.

The bytes of a record name their schema by an id, which a registry gave it when it was registered under a subject.
An id never changes its meaning in the context of a registry, so what is known once is never asked for again.

    module      contents
    schemas     schemas as a registry has them, their form in JSON; what a registry is asked for
    references  the schemas that a schema refers to, found for all of them
    endpoint    requests over HTTP: URLs in turn, retries, bounds, errors
    connections connections whose answers have one time limit; imports urllib3
    client      the five calls of the API
    folder      a registry that is a folder
    cache       schemas that this machine knows
    known       a registry's client that asks for nothing twice; the way in
"""
