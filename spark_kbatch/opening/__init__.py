"""The one door of Spark and the command line, and the public classes for what lies in a folder.

readers          a path or an address, opened for reading
writes           a Spark job's write; imports no pyspark
cluster          the public class `Cluster`
listing          lists of topics while some are damaged, or are deleted meanwhile
"""
