"""The one door of all faces: Spark, the command line and the Python API come in here.

readers          what lies at a path, or at an address, opened for reading
spark_reads      batch and streaming reads of Spark jobs, without Spark
spark_writes     writes of Spark jobs, without Spark
cluster          `Cluster`: a cluster in a folder, as users have it in Python
broker_logs      `BrokerLogs`: a real broker's logs, as users have them in Python
topics_at_path   the part that both share: topics are listed, described and read
"""
