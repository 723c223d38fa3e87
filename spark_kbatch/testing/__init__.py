"""The pytest plugin's fixtures for tests of Kafka applications, with a folder or server instead of a broker.

    servers     a Kafka server for tests, or a real broker; the clusters of a test
    topics      topics with names of their own, created and filled
    rows        records from rows, JSON lines and CSV
    formats     keys and values of Avro
    records     waiting for records
    report      the last records of topics, as text
    tracebacks  errors that end at the test's own line
    sessions    the user's own Spark session
    compiling   kernels, compiled once
    frozen      imports that must come before a test freezes time

The entry point is the module `pytest_kbatch`, which imports this room only in fixtures.
"""

from spark_kbatch.testing.records import Records
from spark_kbatch.testing.servers import KafkaServer
from spark_kbatch.testing.topics import Topics

__all__ = ["KafkaServer", "Records", "Topics"]
