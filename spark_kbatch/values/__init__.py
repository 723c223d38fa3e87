"""Values as columns: Avro and JSON <-> Arrow.

Pure, as `record/` is: no files, clocks, threads or logging, and nothing of Spark or of a registry, which hands
in the schemas that it has.

    avro_schema    JSON text -> a graph of types; how many bytes their values take
    layout         the Arrow type of each Avro type, its times' units; columns and slots of a reader's
                   schema, the part of it that is wanted; a schema for a column without one
    resolution     a writer's schema against the reader's -> a program
    defaults       default values of fields
    framing        Confluent's magic byte and schema id
    avro_decoder   bytes -> an Arrow array, with an error for each bad row
    slots          what kernels store numbers in -> an Arrow array
    json_decoder   JSON -> an Arrow array of a type, with an error for each bad row
    avro_encoder   an Arrow array -> bytes, with an error for each bad row
    sources        the columns that the encoder reads
    json_encoder   an Arrow array -> JSON, with an error for each bad row
    encoded        what encoding makes of rows, in as few pieces as fit into arrays
    decoded        what decoding makes of rows, and what is wrong with one; UTF-8 -> strings;
                   columns as Python objects, for JSON
    types          a DDL in Spark's syntax -> the Arrow type that JSON is read as; its wanted part
    json_schema    JSON Schema -> the Arrow type that its values are read as; and back
    inference      a DDL for a sample of JSON, and what the sample leaves in doubt
    flat           Arrow arrays as flat arrays, and back

A value is decoded in two steps. The kernel (`kernels/avro`) walks through the bytes of each row as the program
of its writer's schema says, and stores numbers in slots; then each column is made of its slots. That of JSON
(`kernels/json`) follows a table that is made of the type.
Encoding is the same the other way: columns are read into slots, and the kernel (`kernels/avro_encoding`) writes
the bytes of each row. JSON is joined of texts by Arrow's own functions, column by column.
"""
