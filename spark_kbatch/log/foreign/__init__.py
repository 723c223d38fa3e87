"""Read-only access to logs that a real Kafka broker wrote, which have no `kbatch.state`.

    log_dir      find the partitions of a log dir
    log          read one of them
    positions    where batches start: from its indexes, checked and remembered
    missing      what shows that it lacks records which it once had
    check        check all files of a partition
    swap_files   the files that count after an interrupted compaction, and their names

Source: Kafka storage/.../log/LogLoader.java.
"""
