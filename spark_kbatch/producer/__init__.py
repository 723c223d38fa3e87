"""Rows -> batches -> a transport.

    rows -> partitioner -> accumulator (open batches in pooled buffers) -> sender -> Transport

Module by module, as rows go:

    producer        send, send_arrow, flush, close: the parts put together
    partitioner     which partition a row goes to
    accumulator     a queue of batches per partition; which may go, and when
    table_append    the rows of a table into all their queues, in one pass
    batch           one batch, its final state, its split
    batch_memory    room for new batches
    buffer_pool     buffer.memory, and who waits for it
    sender          drained batches to a transport; answers, retries, time-outs
    sequences       the numbers of an idempotent producer
    futures         where records went, for who sent them
"""
