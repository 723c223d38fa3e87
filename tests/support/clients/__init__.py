"""Kafka clients that others wrote, each behind the same few calls.

    base           what a scenario asks of a client, and a member of a group in a process of its own
    librdkafka     confluent-kafka
    kafka_python   kafka-python
    aio_kafka      aiokafka
    kcat           kcat, Debian's package
    java           Kafka's own tools, from Maven's jars

The first three are also programs: `python -m tests.support.clients.librdkafka ADDRESS GROUP TOPIC
SESSION_TIMEOUT_MS` is one member of a group.
"""
