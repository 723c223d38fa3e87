"""The producer: rows become record batches, which a sender hands to a transport.

    rows -> partitioner -> accumulator (open batches in pooled buffers) -> sender -> Transport

Module by module, as rows go:

    producer        send, send_arrow, flush, close: the parts put together; the topics as last seen
    transactional   a producer whose records become visible a transaction at a time
    staged_transactions  a folder's and a bucket's, each of which is a job
    task_producer   the producer of a Spark task, which stages what a job commits
    partitioner     which partition a row goes to
    accumulator     a queue of batches per partition; which batches may be sent, and when
    table_append    appends the rows of a table to all their queues, in one pass
    batch           one batch, its final state, its split
    memory          buffer.memory, the threads that wait for it, and new batches in it
    sender          drained batches to a transport, node by node; answers, retries, timeouts; `OneNode`
    idempotence     sequence numbers of an idempotent producer
    futures         where records went, for the caller that sent them
    metrics         counts, rates and averages, by the names of Kafka's producer metrics
"""
