"""The one door of Spark and the command line, and the public classes for what lies in a folder.

stores   the store at a path or an address
readers  what reads are opened with
writes   a Spark job's write; imports no pyspark
cluster  the public class `Cluster`
places   what `spark_kbatch.open` does
"""
