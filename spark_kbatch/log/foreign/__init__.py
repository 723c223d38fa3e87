"""Logs that a real broker wrote, read only. They have no `kbatch.state`.

    log_dir      find the partitions of a log dir
    log          read one of them
    positions    where batches begin: tried, then remembered
    swap_files   which files a broker keeps when it starts, and under which names

Source: Kafka storage/.../log/LogLoader.java.
"""
