"""The `kbatch` command.

    module      contents
    main        the command itself: usage, exit codes, errors
    topics      list, delete and change topics
    records     print records, find offsets, delete the first records
    groups      consumer groups
    upkeep      garbage, history, repair, log dirs, export
    serving     the server
    mirroring   mirrors of topics
    parameters  options that several commands share
    places      what a command works on: a folder, or a real cluster
    properties  Java properties files
    output      tables, JSON and lines on stdout

A command parses its arguments, calls a cluster, and prints: what it knows of logs lies in other rooms.
"""
