"""The topics of a cluster's folder, PATH: who leads their partitions, its log dirs, and deletions.

docs/format.md draws PATH. A real broker refuses a log dir that holds other sub-directories than TOPIC-N, so
everything of ours lies beside broker-N. A log dir on another disk has a mirror-N beside it, with copies of the
JSON files.

    paths             where the files lie
    json_files        reading and writing PATH's JSON files, and their copies in mirrors
    cluster_file      cluster.json
    topic_files       topics/
    partition_states  partitions/
    deletions         deleted/, and the steps of deleting a topic
    log_dirs          which disks can be used
    folder_clock      the time of day for the folder, also on a network disk
    metadata          one object that holds those parts

Who changes topics holds the metadata lock: `replica/administration`.
"""
