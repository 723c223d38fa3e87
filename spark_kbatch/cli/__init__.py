"""The `kbatch` command.

    module      contents
    main        the command itself: usage, exit codes, errors
    producing   write records
    inputs      the files that records are written from
    topics      list, describe, create and change topics
    deleting    delete topics and records, after a question
    consuming   print records
    dumping     show files of logs
    exporting   copy a topic into a file, or a broker's log dir
    formats     how a record is printed
    offsets     find offsets
    groups      consumer groups
    schemas     what a registry has for a topic
    demo        the demo, which needs Spark
    upkeep      garbage, history, checks, repair, log dirs
    buckets     what a bucket's store lets one do, and what has happened in it
    maintaining merging, retention and garbage of a bucket, and what is in it
    recovering  a cluster from an incomplete replica of a bucket
    serving     the server
    mirroring   mirrors of topics
    confirming  the question before something is lost
    other_tools what the options of kcat and Kafka's tools are here
    parameters  options that several commands share
    paths       what a command works on: a folder, or a real cluster
    properties  Java properties files
    stopping    signals that end a command
    progress    progress bars on stderr
    output      tables, JSON and lines on stdout

A command parses its arguments, calls a cluster, and prints; logs are the business of other rooms. Only `dumping`
reads files of logs itself, through `log.contents`.
"""
