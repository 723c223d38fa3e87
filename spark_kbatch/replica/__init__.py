"""The partitions of a cluster and their replicas: what they agree on, and which process may touch them when.

There is no server: each process that appends does what is due for the partitions that it appends to.
`partition` has the rules by which replicas agree, and what survives.

    locks             the locks, and the order in which they are taken
    view              a partition for readers: which replica to read, and up to where
    partition         a partition for writers: leader, in-sync replicas, high watermark
    elections         how leader and in-sync replicas change
    followers         how a follower becomes equal to its leader
    purgatory         operations that wait; appends that wait for in-sync replicas
    delayed_fetch     fetches that wait, and which partitions may have changed, found with few reads
    manager           appends, fetches and deletions of records
    administration    creating, growing, altering and deleting topics; replicas and log dirs, and what is lost
                      without those in sync
    cluster_creation  creating a cluster, and restoring one from its log dirs

Which topics and partitions there are is `catalog/`'s.
"""
