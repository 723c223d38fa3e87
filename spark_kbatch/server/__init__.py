"""A Kafka server over an embedded cluster: what any Kafka client asks of a broker, answered from PATH.

It is one more process on PATH. Spark jobs and producers go on beside it without knowing of it, and
nothing in the commit knows of it either. To clients it is one node, with id 1, that leads everything.

    a socket is readable     connection     the loop reads one request, and then no more of that client
    the request is whole     dispatch       which handler, in which pool of threads
    the handler runs         its module     with the disk, and locks; answers at once or later
    the answer is there      connection     the loop writes it, and reads the client's next request

The loop is a thread that never touches a disk. A client's next request is begun once its last one is
answered and the answer is taken by the kernel, as Kafka mutes its channel: so answers keep their order,
several idempotent Produces in flight do, too, and a client that does not read costs one answer.

    server         the server: starts, stops, its address
    ownership      one server per PATH, and where it listens: server.json
    listener       the loop's thread: accepts connections, closes idle ones
    connection     one client's connection
    memory         what requests and answers of all connections may take
    dispatch       the table of requests: versions, handlers, pools
    requests       what a handler is given, and how it answers
    pools          threads for handlers
    backend        what the server needs of the cluster that it serves

    refusals       answers that only say what is wrong
    intercepts     requests that a test wants to refuse, delay or drop
    housekeeping   what is due from time to time

    api_versions   ApiVersions
    metadata       Metadata, DescribeCluster, FindCoordinator; topics made when clients ask for them
    produce        Produce; `appends` has a queue for each partition
    fetch          Fetch
    offsets        ListOffsets, OffsetForLeaderEpoch
    producer_ids   InitProducerId
    groups/        groups of consumers, and their offsets
    topics         CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords
    configs        DescribeConfigs, IncrementalAlterConfigs
    settings       the settings of topics and of the server, as admin clients see them
    outcomes       what an answer says of each thing that was asked for

Other rooms import `server`; those who only look, `ownership`, `groups.store` and `groups.assignment`.

Source: Kafka core/.../network/SocketServer.scala, server/KafkaApis.scala.
"""
