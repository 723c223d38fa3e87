"""A cluster in a bucket of an object store, for any number of processes, with nothing that runs beside them.

A bucket holds objects that never change, and one ledger: a dense sequence of small objects, its
entries, whose format and fold are in `ledger/`. To create an object unless it exists is all that
a store has to do for that: whoever creates entry n + 1 has committed. There is no lock, no
rename, no append, and no object that is changed by comparing it first.

    bottom up
    objects       the interface of a store, and a store in memory
    real_objects  a real store, by its URL; credentials for it from a function of the user's
    checkpoints   states that are stored, so that not all entries are read
    place         which cluster lies at a place
    ledger        reading to the end, and the loop that commits
    shared_ledger the ledger for the threads of one process; what this machine knows of it
    staging       batches in objects before a commit
    placement     where the batches of a partition are, with what indexes list
    batch_stream  batches of extents: few requests, read ahead
    gathering     several partitions, read object by object
    reading       views of partitions at one moment, fetches
    topics        topics, looked up and changed
    agreements    what the tasks of an action agree on
    transport     a plain producer: one object and one entry for a request
    job           a Spark job
    groups        the offsets of consumer groups
    merging       small extents become segments
    garbage       what nothing refers to is deleted
    urls          the objects at a URL
    probe         whether a store does what is asked of it, and what it lets a process do
    trial         a trial of a store for some minutes, with a bounded number of requests; its report
    history       the commits of jobs and mirrors, and all that has happened there, entry by entry
    maintenance   retention, merging and garbage, in a round; what there is in the bucket
    remains       what can be read of a ledger that is damaged, and whether every batch is whole
    mending       repair, as far as nothing is lost by it
    recovery      a new cluster of what a replica has whole
    store         the cluster as a store of the port, and how often a stream asks for news

What a job writes before it commits lies under names that say which entry was the last when it began. An entry
`horizon` ends the time in which such a job may commit: what is named below it, and no entry refers to, can be
deleted then, by any number of collectors that know nothing of each other.
"""
