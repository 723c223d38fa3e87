"""The partitions of a cluster and their replicas: what they agree on, and which process may touch them when.

    PATH/
      cluster.json          cluster id, format version, log dirs with their directory ids, the next
                            producer id
      topics/TOPIC.json     topic id, partition count, settings; a topic exists once this file does
      partitions/TOPIC/P.json
                            a partition's leader and in-sync replicas, once they have changed
      deleted/ID.json       a deleted topic, by its id, while something of it is left
      locks/                commit and metadata locks; one file of partition locks per topic
      broker-0/             node 0's log dir, a plain Kafka log dir: meta.properties, .lock and
                            TOPIC-P directories
      staging-0/            beside it: what tasks wrote and no one has committed
      broker-1/ ...         log dirs for further replicas, here or on other disks
      snapshots/            offsets that the tasks of one Spark action agreed on
      transactions/         the last transaction of each transactional id

A real broker refuses a log dir that holds other sub-directories than TOPIC-N, so everything of ours lies
beside broker-N. A log dir on another disk has a mirror-N beside it, with copies of the JSON files.

There is no server: each process that appends does what is due for the partitions that it appends to.
`partition` has the rules by which replicas agree, and what survives.

    paths             where the files lie
    json_files        reading and writing PATH's JSON files, and their copies in mirrors
    cluster_file      cluster.json
    topic_files       topics/
    partition_states  partitions/
    deletions         deleted/, and the steps of deleting a topic
    metadata          one object that holds those parts
    locks             the locks, and the order in which they are taken
    log_dirs          which disks can be used
    view              a partition for readers: which replica to read, and up to where
    partition         a partition for writers: leader, in-sync replicas, high watermark
    followers         how a follower becomes equal to its leader
    purgatory         operations that wait: `delayed_produce`, `delayed_fetch`
    watched_logs      which partitions may have changed, found with few reads
    producer_ids      ids for idempotent producers
    manager           appends, fetches and deletions of records
    given_up          what is lost without the in-sync replicas of a partition
    administration    creating, growing, altering and deleting topics; replicas and log dirs
    creation          creating a cluster
    lost_topics       recreating a topic's lost file

Other rooms import `manager`, `view`, `partition`, `metadata`, `administration`, `creation`, `given_up`,
`delayed_fetch` and `lost_topics`.
"""
