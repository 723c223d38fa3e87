"""The fixture `kbatch_records`, which waits for records of a topic."""

from __future__ import annotations

import datetime
import time
import zoneinfo
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from spark_kbatch import Cluster
from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import ConfigError, UnknownTopicOrPartitionError
from spark_kbatch.kernels import jit
from spark_kbatch.options import arguments
from spark_kbatch.options.paths import StrPath
from spark_kbatch.testing.formats import Formats, formats_of
from spark_kbatch.testing.servers import Clusters, ServerOrCluster
from spark_kbatch.testing.tracebacks import ends_at_caller

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC"))
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.1


class Records:
    """The function `kbatch_records`, which waits until a topic has enough records."""

    def __init__(self, clusters: Clusters, *, timeout: float, registry: Callable[[], str]) -> None:
        self._clusters, self._timeout, self._registry = clusters, timeout, registry

    @ends_at_caller
    def __call__(
        self,
        topic: str,
        count: int = 1,
        *,
        timeout: float | None = None,
        key: Callable[[bytes], Any] = bytes.decode,
        value: Callable[[bytes], Any] = bytes.decode,
        on: ServerOrCluster | None = None,
        registry: StrPath | Mapping[str, str] | None = None,
        **formats: Any,
    ) -> list[dict[str, Any]]:
        """Wait until a topic has `count` records, and return all that it has then.

        The test fails if they are not there in time. More may be there: compare the whole list, and
        a record that is written twice is found.

        Args:
            topic: its name; it may be created while this waits.
            count: how many to wait for; 0 does not wait, and the test fails at once if there is no such
                topic: its name may be misspelt.
            timeout: in seconds; that of `--kbatch-timeout` by default.
            key: what makes a key of a record's bytes: text of UTF-8 by default, `bytes` leaves them.
            value: the same for a value, such as `json.loads`.
            on: where: a server, or a cluster. By default the server that the test uses, or else
                `kbatch_cluster`.
            registry: of schemas, as for `spark_kbatch.Cluster.read`; by default the test's own,
                `kbatch_registry`.
            formats: what keys and values are decoded from: `value_format="avro"`, and more, as for
                `spark_kbatch.Cluster.read`. A record of Avro, or an object of JSON, becomes a dict.

        Returns:
            A dict for each record, with key, value, topic, partition, offset, timestamp (a datetime in
            UTC), timestampType and headers (pairs of name and bytes), by partition and offset. A null
            key or value is None. `formats` may add more.

        Raises:
            ConfigError: an argument is not accepted, or `key` or `value` cannot take what is there.
            RecordDeserializationError: a key or a value is not of its schema.
            SchemaRegistryError: the registry does not have a schema.
        """
        __tracebackhide__ = True
        cluster = self._clusters.cluster(on, arguments.text("topic", topic))
        count = arguments.whole_number("count", count, 0)
        patience = arguments.seconds("timeout", self._timeout if timeout is None else timeout)
        deadline, pause_s = monotonic_s() + patience, _FIRST_PAUSE_S
        typed = formats_of(topic, registry, formats, self._registry)
        made = {"key": key, "value": value}
        for name in ("key", "value"):
            if typed.options.typed and getattr(typed.options, name).format != "binary":
                if made.pop(name) is not bytes.decode:
                    raise ConfigError(f"{name} and {name}_format are given; accepted: one of them")
        compiled_s = jit.compiling_s()
        looked = _Look(cluster, topic, typed)
        while (table := looked.again(count)) is None:
            if count == 0:
                pytest.fail(looked.found(count))
            # Compiling takes seconds, once on a machine, and is not what the test waits for.
            if monotonic_s() >= deadline + jit.compiling_s() - compiled_s:
                pytest.fail(f"after {patience:g} s {looked.found(count)}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        # As numbers, since pyarrow imports pandas for times.
        at = table.schema.get_field_index("timestamp")
        table = table.set_column(at, "timestamp", table.column(at).cast(pa.int64()))
        return [_record(row, made) for row in typed.decoded(table)]


class _Look:
    """Repeated look at one topic, which reads its records only if the offsets have changed."""

    def __init__(self, cluster: Cluster, topic: str, typed: Formats) -> None:
        self._cluster, self._topic, self._typed = cluster, topic, typed
        self._ends: list[int] | None = None

    def again(self, count: int) -> pa.Table | None:
        """Return the topic's records if they are new and at least `count`, or else None."""
        try:
            offsets = [info.offsets for info in self._cluster.describe([self._topic])]
            ends = [one.last_stable_offset for one in offsets]
            most = sum(one.last_stable_offset - one.log_start_offset for one in offsets)
            # Offsets are also taken by markers of transactions: records are counted when read.
            if most < count or ends == self._ends:
                return None
            table = self._cluster.read(self._topic, **self._typed.of_read).read_all()
        except UnknownTopicOrPartitionError:
            return None
        self._ends = ends
        return table if table.num_rows >= count else None

    def found(self, expected: int) -> str:
        """Return a sentence about what the topic has, for a failed test."""
        try:
            count = self._cluster.read(self._topic, columns=["offset"]).read_all().num_rows
        except UnknownTopicOrPartitionError:
            others = ", ".join(self._cluster.topic_names()) or "none"
            return (
                f"there is no topic {self._topic!r}; expected: {_records(expected)} in it. "
                f"Topics that exist: {others}"
            )
        return f"topic {self._topic!r} has {_records(count)}; expected: {expected}"


def _records(count: int) -> str:
    return f"{count} record{'s' * (count != 1)}"


def _record(row: dict[str, Any], made: Mapping[str, Callable[[bytes], Any]]) -> dict[str, Any]:
    headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
    fields = {name: _made(row, name, by) for name, by in made.items()}
    if (time_us := row["timestamp"]) is not None:
        fields["timestamp"] = _EPOCH + datetime.timedelta(microseconds=time_us)
    return row | fields | {"headers": headers}


def _made(row: dict[str, Any], name: str, by: Callable[[bytes], Any]) -> Any:
    data = row[name]
    try:
        return None if data is None else by(data)
    except Exception as error:
        raise ConfigError(
            f"the {name} at offset {row['offset']} of {row['topic']}-{row['partition']} is {data[:60]!r}, which "
            f"{getattr(by, '__qualname__', by)} does not take ({error}); {name}=bytes leaves it as it is"
        ) from error
