"""The port to the places where topics are: a folder, a bucket, a broker's logs, a real cluster, memory.

Protocols and values, and what is the same for all places:

    store       a place: its source, its topics to change, its consumer groups, log dirs, upkeep, producers
    catalog     topics of a place of our own: planned, created, found for a producer, listed
    source      topics for readers
    transport   where a producer's batches go
    job         the write of many tasks, committed as one
    commits     what jobs have committed: who, when, how much
    groups      members, offsets and lag of consumer groups
    reports     what places tell of replicas, repairs, garbage
    repetitions which micro-batch is skipped, as it is committed already
    os_errors   OSErrors, translated for callers of the Python API
"""
