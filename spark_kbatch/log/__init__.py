"""One replica of one partition on disk: Kafka's files, and a state file of ours that is authoritative.

    events-0/                          file of   content
      00000000000000000000.log         Kafka     record batches, back to back; named by its base offset
      00000000000000000000.index       Kafka     8 bytes an entry: a batch's last offset, its position
      00000000000000000000.timeindex   Kafka     12 bytes an entry: the largest timestamp so far, an offset
      00000000000000000000.txnindex    Kafka     34 bytes per aborted transaction; only if there is one
      00000000000000000042.snapshot    Kafka     the producers as of the offset in the name
      leader-epoch-checkpoint          Kafka     text: the offset at which each leader epoch started
      partition.metadata               Kafka     text: the topic's id
      kbatch.state                     ours      the offsets, and the sizes of the active segment's files
      kbatch.producers                 ours      the producers as of an end, so that fewer batches are read
      kbatch.overwritten               ours      which offsets commits have overwritten

`kbatch.state` is the authority on all the others. Bytes past a recorded size, and segments past the
active one, do not exist, whatever they look like: a writer that died left them, and the next writer
discards them. So new data is put where readers will look for it, but past every recorded end, and one
write of the state makes it visible. Segments before the active one are never written again; their sizes
are the sizes of their files.

    module          what it holds
    state           the two slots of `kbatch.state`
    segment         one segment's files, and the entries of its indexes; the segments of a log
    batch_headers   the batches of one file: walked, or found through the index
    segment_scan    where the whole valid batches of a file end, whatever its index says
    checkpoints     the small text files
    epochs          leader epochs and where they started
    partition_log   one log: its state, reading, looking up
    append          appending as a leader, as a follower, or for a commit
    validator       what a leader checks in a batch
    lookup          from timestamps to offsets; where to split a range
    retention       deleting from the start of a log
    steps           by which time things expire after the clock was set
    truncation      removing from its end
    overwritten     `kbatch.overwritten`
    recovery        what happens when files are not as the state says
    contents        what is in a file, damaged or not
    repair          making a log readable that is not
    producers/      which producer wrote what: duplicates, open and aborted transactions
    foreign/        logs that a real broker wrote, which have no `kbatch.state`: read only

Source: Kafka storage/.../log/LogSegment.java, OffsetIndex.java, TimeIndex.java, LocalLog.java.
"""
