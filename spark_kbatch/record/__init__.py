"""Encoding and decoding of Kafka's record batches, format V2: bytes <-> Arrow.

Pure: no files, clocks, threads or logging. A batch is a header of 61 bytes (`header` has its table) and
the records section, which is one compressed stream if the header names a codec (`compression` has the
framings). The older formats, V0 and V1, are described in `legacy`.

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
with the top bit of a byte set if another follows. base_timestamp is the first record's, so deltas
may be negative. The writer's offset deltas are 0, 1, 2 ...; after compaction they have gaps, and
records_count differs from last_offset_delta + 1.

The CRC covers everything after itself, from the attributes to the end. base_offset and
partition_leader_epoch lie before it, so that the leader can set both in a finished batch without
reading the records again.

    header       the 61 bytes; walking over batches
    columns      Arrow arrays <-> flat views
    builder      an open batch
    codec        batches -> rows; a look at every record of a batch that is to be stored
    compression  the five codecs
    scalar       a few records in pure Python; offset and time of each record of a batch
    control      markers that end transactions
    legacy       messages of V0 and V1; `down_conversion` writes them
    lines        records as lines of text
    checksums    CRC-32C and CRC-32

Source: Kafka clients/.../record/DefaultRecordBatch.java, DefaultRecord.java; KIP-98.
"""
