"""Topics for tests: created with unique names, filled with records, and deleted."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from spark_kbatch import Cluster
from spark_kbatch.errors import ConfigError, KBatchError
from spark_kbatch.options import arguments
from spark_kbatch.options.paths import StrPath
from spark_kbatch.testing import rows as seeds
from spark_kbatch.testing.formats import formats_of
from spark_kbatch.testing.servers import Clusters, ServerOrCluster
from spark_kbatch.testing.tracebacks import ends_at_caller

_NAME_MAX = 200  # Kafka takes 249; applications add endings


class Topics:
    """The function `kbatch_topic`, which creates a topic for a test, and whose `send` adds records."""

    def __init__(self, clusters: Clusters, *, partitions: int, registry: Callable[[], str]) -> None:
        self._clusters, self._partitions, self._registry = clusters, partitions, registry
        self._remote: list[tuple[Cluster, str]] = []

    @ends_at_caller
    def __call__(
        self,
        name: str = "topic",
        rows: Any = None,
        *,
        json_lines: StrPath | None = None,
        csv: StrPath | None = None,
        key: str | None = None,
        partitions: int | None = None,
        config: Mapping[str, object] | None = None,
        unique: bool = True,
        on: ServerOrCluster | None = None,
        registry: StrPath | Mapping[str, str] | None = None,
        **formats: Any,
    ) -> str:
        """Create a topic, and return its name.

        Args:
            name: what its name starts with.
            rows, json_lines, csv, key, registry, formats: its records, as of `send`; none by default.
            partitions: how many; by default as many as the records name, at least those of
                `--kbatch-partitions`.
            config: its settings, by Kafka's keys: `{"retention.ms": 86_400_000}`.
            unique: whether to add something to the name that no other topic's has.
            on: where: a server, or a cluster. By default the server that the test uses, or else
                `kbatch_cluster`.

        Raises:
            ConfigError: an argument or setting is not accepted, or a record cannot be sent.
            TopicAlreadyExistsError: it exists, and `unique` is false.
        """
        arguments.text("name", name)
        if arguments.boolean("unique", unique):
            name = f"{re.sub('[^a-zA-Z0-9._-]', '-', name)[:_NAME_MAX]}-{uuid.uuid4().hex[:8]}"
        typed = formats_of(name, registry, formats, self._registry)
        seed = seeds.from_one_of(rows, json_lines, csv, key, typed)
        if partitions is None:
            partitions = max(self._partitions, 0 if seed is None else seeds.partitions_count(seed))
        cluster = self._clusters.cluster(on, name)
        cluster.create_topic(name, partitions=partitions, config=config)
        if cluster.is_remote:
            self._remote.append((cluster, name))
        if seed is not None:
            _send(cluster, name, seed)
        return name

    @ends_at_caller
    def send(
        self,
        topic: str,
        rows: Any = None,
        *,
        json_lines: StrPath | None = None,
        csv: StrPath | None = None,
        key: str | None = None,
        on: ServerOrCluster | None = None,
        registry: StrPath | Mapping[str, str] | None = None,
        **formats: Any,
    ) -> None:
        """Send records to a topic, and wait until they can be read.

        Args:
            topic: its name.
            rows: a list in which each row is a value, a pair of key and value, or a dict with any of
                key, value, partition, timestamp (a datetime, ISO text, or ms) and headers; or a table
                with these columns: a DataFrame of Spark, Polars or pandas, anything of Arrow. In a list,
                keys and values that are neither text, bytes nor None are written as JSON.
            json_lines: a file instead. If every line is an object with `value`, and has no other fields
                than a record, as `kbatch consume --json` prints it, the lines are records. Otherwise
                each line is a value.
            csv: a file with a header line instead; the same with columns. A value is then written as a
                JSON object, in which columns of numbers are numbers. An empty field is null.
            key: the field or column of json_lines or csv whose values become the records' keys; each
                line is a value then.
            on: as of the factory.
            registry: of schemas, as for `spark_kbatch.Cluster.read`; by default the test's own,
                `kbatch_registry`.
            formats: what keys and values are encoded as: `value_format="avro"`, `value_schema=...`, the latest of
                the subject by default, `value_subject`, `value_framing`, and the same for keys. Of a record of
                Avro, a row has a dict. A schema that is JSON or a file is registered in a registry that is a folder.

        Raises:
            ConfigError: a record cannot be sent; says which row or line. No record is sent.
            UnknownTopicOrPartitionError: no such topic or partition.
            SchemaRegistryError: the registry does not have a schema.
        """
        arguments.text("topic", topic)
        typed = formats_of(topic, registry, formats, self._registry)
        seed = seeds.from_one_of(rows, json_lines, csv, key, typed)
        if seed is None:
            raise ConfigError("nothing to send: give rows, json_lines or csv")
        _send(self._clusters.cluster(on, topic), topic, seed)

    def delete(self) -> None:
        """Delete the topics that were created on real brokers; others go with their folder."""
        for cluster, name in self._remote:
            # A test may have deleted it, or have lost the broker.
            with contextlib.suppress(KBatchError):
                cluster.delete_topic(name)


def _send(cluster: Cluster, topic: str, seed: Any) -> None:
    options = {"flush": False} if not cluster.is_remote else {}
    with cluster.producer(**options) as producer:
        producer.send_arrow(topic, seed).result()
