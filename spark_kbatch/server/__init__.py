"""A Kafka server over an embedded cluster: it answers any Kafka client from the logs in the cluster's folder.

It is one more process on PATH. Spark jobs and producers go on beside it and need not know of it, nor does
the commit protocol. To clients it is one node, with id 1, that leads all partitions.

    a socket is readable     connection     the loop reads one request, and then no more from that client
    the request is whole     dispatch       chooses its handler and pool of threads
    the handler runs         its module     uses the disk and locks; answers at once or later
    the answer is ready      connection     the loop writes it, and reads the client's next request

The loop is a thread that never touches a disk. A client's next request is started after the last one is
answered and the kernel has taken the answer, as Kafka mutes a channel. So answers keep their order,
several idempotent Produces in flight keep theirs, and a client that does not read costs one answer.

    server         the server: start, end, address
    listener       the loop's thread: accepts connections, closes idle ones; file descriptors for them
    connection     one client's connection; metrics of the requests answered
    peers          the work that is done for each peer, and whose next request waits; a limit on warnings
    memory         limits on the memory for requests and answers of all connections
    dispatch       the table of requests: versions, handlers, pools; ApiVersions
    requests       the interface of handlers
    pools          threads for handlers

    refusals       answers that consist of an error
    intercepts     requests that a test refuses, delays or drops
    housekeeping   periodic work

    metadata       Metadata, DescribeCluster, FindCoordinator; creates topics that clients ask for
    produce        Produce, InitProducerId; `appends` has a queue for each partition, `unwritten_batches` keeps the order of producers
    fetch          Fetch
    offsets        ListOffsets, OffsetForLeaderEpoch
    groups/        groups of consumers, and their offsets
    transactions/  transactions of clients, and who has written to a partition
    topics         CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords
    configs        DescribeConfigs, AlterConfigs, IncrementalAlterConfigs
    log_dirs       DescribeLogDirs
    settings       the settings of topics and of the server, as admin clients see them
    outcomes       errors, as answers have them for each topic or resource; what is refused, in the log

The cluster that it serves is `cluster/parts`; `cluster/ownership` sees to it that one server does. Other
rooms import `server` and `intercepts`.

Source: Kafka core/.../network/SocketServer.scala, server/KafkaApis.scala.
"""
