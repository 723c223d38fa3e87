"""Who wrote what to a log: the last batches of each idempotent producer, open and aborted transactions.

    state              what is known of each producer, and whether its next batch is a duplicate
    manager            the producers of one log, loaded on first use and kept up to date
    replay             rebuild them from the batches themselves
    snapshot           Kafka's `.snapshot` file
    saved              `kbatch.producers`: the same as of a recorded end, larger and faster to read
    transaction_index  Kafka's `.txnindex` file: the aborted transactions of a segment

Source: Kafka storage/.../log/ProducerStateManager.java.
"""
