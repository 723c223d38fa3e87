"""Bytes <-> Arrow: Kafka's record batch, format V2. Pure: no files, clocks, threads or logging.

The formats before it, V0 and V1, are told in `legacy`.

A batch is a header of 61 bytes (`header.py` has its table) and the records section, which is one
compressed stream of records where the header names a codec (`compression.py` has the framings).

    record                                      bytes
    length             bytes after this field   varint
    attributes         0                        1
    timestamp delta    to base_timestamp, ms    varlong
    offset delta       to base_offset           varint
    key length         -1 for null              varint
    key
    value length       -1 for null              varint
    value
    headers count                               varint
    each header:  key length, key (UTF-8), value length (-1 for null), value

Varints are zigzag: 0, -1, 1, -2 are written as 0, 1, 2, 3, in groups of 7 bits, low group first,
the top bit of a byte set where another follows. base_timestamp is the first record's, so deltas
may be negative. The writer's offset deltas are 0, 1, 2 ...; after compaction they have gaps, and
records_count differs from last_offset_delta + 1.

The CRC covers everything behind itself, from the attributes to the end. base_offset and
partition_leader_epoch lie before it: so the leader sets both in a finished batch without reading
the records again.

Module by module: `header` the 61 bytes, `columns` Arrow buffers <-> flat views, `builder` an open
batch, `codec` a batch from rows and rows from batches, `compression` the five codecs, `plain` a few
records in pure Python, `control` the markers that end transactions, `legacy` what messages of V0 and
V1 hold and how V2 batches become such.

Source: Kafka clients/.../record/DefaultRecordBatch.java, DefaultRecord.java; KIP-98.
"""
