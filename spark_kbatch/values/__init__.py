"""Values as columns: Avro <-> Arrow.

Pure, as `record/` is: no files, clocks, threads or logging, and nothing of Spark or of a registry, which hands
in the schemas that it has.

    avro_schema    JSON text -> a graph of types; how many bytes their values take
    layout         the Arrow type of each Avro type, its times' units; columns and slots of a reader's schema
    projection     the part of a reader's schema that is wanted
    resolution     a writer's schema against the reader's -> a program
    defaults       default values of fields
    derivation     a schema for a column that none is given for
    framing        Confluent's magic byte and schema id
    avro_decoder   bytes -> an Arrow array, with an error for each bad row
    avro_encoder   an Arrow array -> bytes, with an error for each bad row
    sources        the columns that the encoder reads
    text_decoder   UTF-8 -> an Arrow array of strings
    plain          decoded columns as Python objects, for JSON
    decoded        what decoding makes of rows, and what is wrong with one
    flat           Arrow arrays as flat arrays, and back

A value is decoded in two steps. The kernel (`kernels/avro`) walks through the bytes of each row as the program
of its writer's schema says, and stores numbers in slots; then each column is made of its slots.
Encoding is the same the other way: columns are read into slots, and the kernel (`kernels/avro_encoding`) writes
the bytes of each row.
"""
