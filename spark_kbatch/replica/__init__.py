"""The partitions of a cluster, and who may touch them when.

    PATH/
      cluster.json          cluster id, format version, log dirs with their directory ids, the next
                            producer id
      topics/TOPIC.json     topic id, partition count, settings; a topic exists once this does
      deleted/ID.json       a topic that was deleted, by its id, while something of it is left
      locks/                commit and metadata locks; one file of partition locks per topic
      partitions/TOPIC/P.json
                            who leads a partition and who is in sync, once that has changed
      broker-0/             a plain Kafka log dir: meta.properties, .lock and TOPIC-N directories;
                            broker-1 and so on, for further replicas, here or on other disks
      staging-0/            what tasks wrote and nobody has committed
      snapshots/            offsets that the tasks of one Spark action agreed on

A real broker refuses a log dir that holds other sub-directories than TOPIC-N, so everything of ours
lies beside `broker-0`.

There is no server: each process that appends does what is due for the partitions that it appends to.
`partition` tells how replicas agree, and what survives.

Module by module: `metadata` the JSON files, what PATH may be; `locks` who waits for whom; `mirrors`
copies of the JSON files on other disks; `log_dirs` which disks can be used; `producer_ids` who is
who among idempotent producers; `partition` leader, in-sync replicas and high watermark,
`partition_view` the same for readers, `replica_fetcher` what a follower takes from its leader;
`partitions` all of them, and new topics; `purgatory` what waits for an answer, `producing` appends
that do and `fetching` fetches; `manager` appends, fetches and deletions of records;
`administration` topics that are deleted, grown or altered, and `deletions` what becomes of their files;
`lost_topics` topics whose file is lost; `overview` what an operator sees and does.
"""
