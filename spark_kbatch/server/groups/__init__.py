"""The group coordinator: members of consumer groups, their assignments, and the groups' offsets.

It implements all of Kafka's classic protocol: a group has members, which elect a leader that assigns
partitions to all of them. The coordinator does not know which partitions there are; it tells members when to
rebalance, passes data between them, and stores assignments and offsets in `__consumer_offsets`
(`cluster/offsets_store`).

    coordinator    requests, answers and time
    membership     JoinGroup, SyncGroup, Heartbeat, LeaveGroup; time-outs by key
    offsets        OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete; expiry
    group          one group and its members, in memory, and how much of that there may be

Offsets in transactions are checked here, and kept by `server/transactions` until they are decided.

Not here: the consumer group protocol of KIP-848, and share groups.
"""
