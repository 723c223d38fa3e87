"""The cluster in a folder, and a broker's logs, as users and Spark jobs have them, wired from their parts.

cluster       a cluster, as users have it in Python
parts         the parts of a cluster, wired together
job           one Spark job's data: begin, stage, commit, abort
agreements    offsets on which the tasks of one read agreed
groups        consumer groups: members, committed offsets and lag
metrics       the state of topics, logs and disks, by the names of a broker's metrics
readable      what users can do with any topics: list, describe and read them
broker_logs   logs that a real broker wrote, read only
transports    where a producer's batches go: the logs, or staging
export        a topic, copied into a stopped broker's log dir
"""
