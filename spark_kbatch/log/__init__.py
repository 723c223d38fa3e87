"""One replica of one partition on disk: Kafka's files, and one of ours that says what counts.

    events-0/
      00000000000000000000.log         record batches, back to back; the stem is the base offset
      00000000000000000000.index       8 bytes an entry: last offset of a batch - base, its position
      00000000000000000000.timeindex   12 bytes: largest timestamp so far, offset as in .index
      00000000000000000000.txnindex    34 bytes for each aborted transaction; made with the first
      00000000000000000042.snapshot    the producers as of the offset in the name
      leader-epoch-checkpoint          text: which leader epoch began at which offset
      partition.metadata               text: the topic's id
      kbatch.producers                 ours: the producers as of an end, read in place of batches
      kbatch.state                     ours: the authority on all of the above

`kbatch.state` (`state.py`) records the offsets and the sizes of the active segment's files. Bytes
past a recorded size, and segments past the active one, do not exist, whatever they look like: a
writer that died left them, and the next writer cuts them. So new data is put where it will be read
but past every recorded end, and one write of the state makes it visible. Segments before the active
one are never written again; their sizes are those of their files.

Module by module: `files` all I/O and file locks, `state` the two slots, `segment` index entries,
`headers` a file's batches, walked and found through its index, `checkpoints` the small text files,
`leader_epochs` which epoch began where, `appender` what is put behind the end and shown later,
`validator` which batches a leader takes, `producer_state` which it has taken before and which
transactions are open, `log_producers` that of one log, `producer_snapshot` and `saved_producers` that as files,
`transaction_index` what was aborted, `replay` both from the batches themselves, `partition_log`
segments in order: read, look up, cut, `appending` what leaders and followers append, `retention` what
is deleted from a log's begin, `truncation` what is cut off its end, `time_lookup` from times to
offsets, `cuts` a range in pieces of equal size, `recovery` what is done with a log that is not as its
state says, `repair` with one that nobody can read.

A directory that a real broker wrote has no `kbatch.state`, and is only read: `broker_log_dir` finds
its partitions, `broker_log` reads one, `segment_scan` finds where a file's batches end, `positions`
where they begin, `leftovers` which files count.

Source: Kafka storage/.../log/LogSegment.java, OffsetIndex.java, TimeIndex.java, LocalLog.java.
"""
