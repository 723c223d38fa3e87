"""The group coordinator: who consumes what together, and how far each group has come.

Kafka's classic protocol, whole: a group has members, which elect a leader that assigns partitions to all
of them. The coordinator knows nothing of partitions; it tells members when to come together, passes their
words between them, and remembers what was assigned and committed, in `__consumer_offsets`.

    coordinator    requests in, answers out, and time
    membership     JoinGroup, SyncGroup, Heartbeat, LeaveGroup
    offsets        OffsetCommit, OffsetFetch, OffsetDelete; what expires when
    group          one group and its members, in memory
    store          `__consumer_offsets`: loading, appending, rewriting; reading it without a server
    records        the formats of its keys and values
    subscription   the topics in a consumer's subscription
    assignment     the partitions that a consumer was assigned
    timers         what is to be done when

Not here: the consumer group protocol of KIP-848, share groups, and offsets in transactions.
"""
