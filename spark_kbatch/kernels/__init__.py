"""All compiled code: plain loops over flat arrays that numba compiles on first use.

    records         write and read the records of a V2 batch
    routing         choose the batch that each row goes to
    legacy          read and write messages of V0 and V1
    lines           write records as lines of text
    avro            decode Avro values, as programs say that are made of schemas
    avro_encoding   encode them
    json            decode JSON, as a table says that is made of a type
    slots           what kernels share that decode values; gather spans of bytes
    llvm            vector code, each with a plain twin
    jit             compile once per machine, load later

No kernel sees an Arrow object, raises an exception or touches a file.
"""
