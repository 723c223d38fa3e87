"""The partitions of a cluster, and who may touch them when.

    PATH/
      cluster.json          cluster id, format version, log dirs with their directory ids, the next
                            producer id
      topics/TOPIC.json     topic id, partition count, settings; a topic exists once this does
      locks/                commit and metadata locks; one file of partition locks per topic
      broker-0/             a plain Kafka log dir: meta.properties, .lock and TOPIC-N directories
      staging-0/            what tasks wrote and nobody has committed
      snapshots/            offsets that the tasks of one Spark action agreed on

A real broker refuses a log dir that holds other sub-directories than TOPIC-N, so everything of ours
lies beside `broker-0`.

Module by module: `metadata` the JSON files, what PATH may be, topic creation; `locks` who waits for
whom; `producer_ids` who is who among idempotent producers; `manager` the logs by topic and
partition: appends, fetches and deletions.
"""
