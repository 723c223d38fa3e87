"""The `kbatch` command.

    module      contents
    main        the command itself: usage, exit codes, errors, old names of commands
    producing   write records
    inputs      the files that records are written from
    topics      list, describe, create and change topics; delete them and records, after a question
    consuming   print records, and how
    dumping     show files of logs
    exporting   copy a topic into a file, or a broker's log dir
    groups      consumer groups; find offsets
    transactions    transactions of Kafka's clients: list, abort, decide
    schemas     what a registry has for a topic; a DDL for a sample of JSON
    demo        the demo, which needs Spark
    upkeep      what there is, what has happened, checks, repair, garbage; log dirs; the store of a
                bucket, its format, and a cluster from an incomplete replica
    serving     the server for Kafka's clients, and the one for browsers; who may look
    mirroring   mirrors of topics
    other_tools what the options of kcat and Kafka's tools are here
    parameters  options that several commands share, and how they are parsed; Java properties files
    paths       what a command works on: a folder, a bucket, or a real cluster
    output      tables, JSON and lines on stdout; questions and progress bars on stderr; signals

A command parses its arguments, calls a cluster, and prints; logs are the business of other rooms.
Only `dumping` reads files of logs itself, through `log.contents`. A table is a title, columns, and
rows as `--json` prints them.
"""
