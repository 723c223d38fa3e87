"""The port to the places where topics are: a folder, a bucket, a broker's logs, a real cluster, memory.

Protocols and values, and one rule:

    store       a place: its source, its topics to change, its consumer groups, producers
    source      topics for readers
    transport   where a producer's batches go
    job         the write of many tasks, committed as one
    commits     what jobs have committed: who, when, how much
    repetitions which micro-batch is skipped, as it is committed already
"""
