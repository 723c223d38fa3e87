"""What lies at a path, as one object that wires the rooms below.

cluster       a cluster: topics, producers, reads, jobs
broker_logs   logs that a real broker wrote, read only
transports    where a producer's batches go: the logs, or staging
export        a topic, placed in a stopped broker's log dir
"""
