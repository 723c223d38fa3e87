"""The one door of Spark and the command line, and the public classes for what lies in a folder.

stores           the store at a path or an address
readers          what reads are opened with
writes           a Spark job's write; imports no pyspark
cluster          the public class `Cluster`
places           what `spark_kbatch.open` does
values           keys and values that a read decodes; `writers_schemas` has what wrote them
avro_columns     a column of Avro
encoded_columns  keys and values that a write encodes
column_functions columns of any origin, for functions of Spark
value_arrays     Arrow arrays, decoded and encoded without a topic
"""
