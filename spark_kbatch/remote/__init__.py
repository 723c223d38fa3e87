"""Client code for real Kafka clusters: brokers over the network, with no JAR and no Java.

Everything here is about one cluster, named by its bootstrap servers. It is loaded only where such a cluster is
named, so that an embedded one pays nothing for it.

    module      contents
    client      requests to whichever broker must answer them, retried; shared by all that use the same options
    metadata    brokers, topics, partitions and leaders, and how long they are cached
    producer    a producer to a cluster, and the topics that it finds
    transport   finished batches to the brokers that lead their partitions, and their answers; producer ids
    offsets     where partitions start and end, and the offsets of times
    fetcher     the batches of one range, fetched ahead; the proof that there are none
    source      the topics of a cluster, to plan and run reads
    job         a Spark job's writes: what is checked, what a task does, what the driver counts
    exactly_once  a Spark job's write in one transaction, through the driver
    transactions  a transactional producer's coordinator, and the offsets of its group
    transactional_producer  a producer whose records become visible a transaction at a time
    batch_producer  its finished batches: the producer's sender, without a thread
    topics      topics and their settings: look them up, create, change, delete
    groups      consumer groups, their members, offsets and lag
    store       a cluster as a store of topics, for the public `Cluster`

A client is leased: it and its connections are used by one thread at a time, and go back to a pool of the
process. So a Spark worker connects once, whatever number of tasks it runs.
"""
