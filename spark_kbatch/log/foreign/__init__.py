"""Read-only access to logs that a real Kafka broker wrote, which have no `kbatch.state`.

    log_dir      find the partitions of a log dir
    log          read one of them: the files that count, where batches start, where it ends
    missing      what shows that it lacks records which it once had
    check        check all files of a partition

Source: Kafka storage/.../log/LogLoader.java.
"""
