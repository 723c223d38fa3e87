"""Keys and values as columns of any type: over `values`, which knows bytes and schemas, and `registry`, which has these.

    reading    what a read decides about keys and values once, and what its tasks decode with
    writing    the columns that a write encodes, with schemas that the driver looks up once
    functions  columns of any origin, for functions of Spark
    arrays     Arrow arrays, decoded and encoded without a topic
    avro       a column of Avro, with the registry that knows what the decoder does not
    schemas    the schemas that wrote values, by their ids

A schema is chosen, and its registry asked, once: on the driver, when a read is loaded, a write begins, or a function
is called. What is found goes with the plan or the job to the tasks, which ask only for ids that no one knew then.
`reading` and `writing` load neither kernels nor a registry's client: most jobs have no format.
"""
