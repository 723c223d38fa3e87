"""A cluster in a folder, and a broker's logs, each as a store of topics.

folder_store     a cluster in a folder, as a store; offsets on which the tasks of one read agreed
parts            what it is wired from: metadata, replica manager, coordinators
catalog          its topics, to create, change and delete
job              one Spark job's data: begin, stage, commit, abort
groups           consumer groups, also in a broker's logs: members, committed offsets and lag
state_log        an internal topic of which the last record of each key counts: loading, appending, rewriting
offsets_store    `__consumer_offsets`
group_records    the formats of its keys and values
record_fields    how such formats are written down
transactions/    transactions of Kafka's clients: `__client_transactions`, and how they are ended
ownership        one server per PATH, and its address in server.json
disks            its log dirs: replicas, garbage, a broker's metrics
upkeep           check and repair of all of it, in an order that loses no commit; topics whose files are lost
foreign_store    logs that a real broker wrote
transports       where a producer's batches go: the logs, or staging
export           a topic, copied into a stopped broker's log dir
"""
