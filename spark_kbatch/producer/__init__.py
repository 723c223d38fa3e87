"""Rows -> batches.

    rows -> partitioner -> accumulator (open batches in pooled buffers) -> sender -> Transport

Module by module: `partitioner` which partition a row goes to, `buffer_pool` the memory of open
batches, `accumulator` fills and cuts them, `sender` closes them and hands them on.
"""
