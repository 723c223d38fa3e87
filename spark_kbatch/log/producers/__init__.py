"""The producer state of a log: each producer's last batches, and open and aborted transactions.

    state              what is known of each producer, and which batches are duplicates
    manager            the producers of one log, loaded on first use and kept up to date
    replay             rebuild them from the batches
    snapshot           Kafka's `.snapshot` file
    saved              `kbatch.producers`: the same as of any recorded end, with more batches
    transaction_index  Kafka's `.txnindex` file: the aborted transactions of a segment

Source: Kafka storage/.../log/ProducerStateManager.java.
"""
