"""Third-party Kafka clients, each with the same few calls.

    base           the interface of clients, and members of groups in separate processes
    librdkafka     confluent-kafka
    kafka_python   kafka-python
    aio_kafka      aiokafka
    kcat           kcat, Debian's package
    java           Kafka's own tools, from Maven's jars

The first three are also programs: `python -m tests.support.clients.librdkafka ADDRESS GROUP TOPIC
SESSION_TIMEOUT_MS` is one member of a group.
"""
