"""A cluster in a folder, and a broker's logs, wired from their parts.

parts            the parts of a cluster, wired together
job              one Spark job's data: begin, stage, commit, abort
agreements       offsets on which the tasks of one read agreed
groups           consumer groups: members, committed offsets and lag
metrics          the state of topics, logs and disks, by the names of a broker's metrics
foreign_store   logs that a real broker wrote, as a source of topics
transports       where a producer's batches go: the logs, or staging
export           a topic, copied into a stopped broker's log dir
"""
