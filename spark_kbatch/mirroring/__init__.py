"""Mirrors: topics copied to another cluster, exactly once, with most batches copied without re-encoding.

    source   an embedded cluster, a broker's log dir, or a real cluster       store.source.Source
    target   an embedded cluster or a real one                                target.Target

A mirror has a name. Under it the target keeps how far the source was read, and stores that together with
the records: in the record of a commit, or in a transaction. So a process may die at any moment, and the
next one of the name goes on. Topics keep their names and numbers of partitions, records their order, key,
value, headers and time; offsets are the target's own, unless they are to be kept. What readers of committed records do not see is not
copied: aborted transactions and markers.

    module        contents
    batches       batches of a source -> batches for a target
    progress      how far a source was read, as it is stored
    target        what a target does
    into_path     an embedded cluster as target
    into_bucket   a cluster in a bucket as target
    into_cluster  a real cluster as target
    copying       `spark_kbatch.mirror`: what SOURCE and TARGET are, and the loop: fetch, send, commit
"""
