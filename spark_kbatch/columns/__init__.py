"""Keys and values as columns of any type: over `values`, which knows bytes and types, and `registry`, which has schemas.

    reading    what a read decides about keys and values once, and what its tasks decode with
    writing    the columns that a write encodes
    functions  columns of any origin: functions of Spark, and Arrow arrays without a topic
    schemas    which schema a column has, and which ones wrote what is read
    avro       a column of Avro, with the registry that knows what its decoder does not
    headers    a column whose schemas are named in headers of the records, or by GUIDs in front of the values
    as_json    keys and values as JSON text on one line: what people look at

A schema is chosen once, on the driver: when a read is loaded, a write begins, or a function is called. It goes with the
plan, or the job, to the tasks, and so do the schemas that may have written what is read. A task asks the registry for
those ids alone that are registered later; a stream looks for them itself.

A format of values is a class in `reading`, chosen in one place by its option's value. It has the type of a column, and
its decoder, which returns `values.decoded.DecodedValues`.

Values of JSON are read as a type, of a DDL or a JSON Schema; which schema wrote one is nothing that a decoder needs.

Most jobs have no format: `reading` and `writing` load the kernels and the client of registries only for one.
"""
