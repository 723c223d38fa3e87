"""A cluster in a folder, and a broker's logs, each as a store of topics.

folder_store     a cluster in a folder, as a store
parts            what it is wired from: metadata, replica manager, coordinators
catalog          its topics, to create, change and delete
job              one Spark job's data: begin, stage, commit, abort
agreements       offsets on which the tasks of one read agreed
groups           consumer groups: members, committed offsets and lag
offsets_store    `__consumer_offsets`: loading, appending, rewriting; reading it without a server
group_records    the formats of its keys and values
ownership        one server per PATH, and its address in server.json
disks            its log dirs: replicas, garbage, a broker's metrics
upkeep           check and repair of all of it
foreign_store    logs that a real broker wrote
transports       where a producer's batches go: the logs, or staging
export           a topic, copied into a stopped broker's log dir
"""
