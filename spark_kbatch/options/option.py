"""The definition of an option, and the matching of the options that a caller gives with the known ones.

An option is stated once, as a field of a frozen dataclass: its key, what it accepts, its default, and its
text in the documentation, whose tables are made of these fields.

    @dataclass(frozen=True)
    class ProducerConfig:
        linger_ms: int = option("linger.ms", kinds.number(0), 0, "How long a batch waits for more records.")

    table_of(ProducerConfig)                           # (Option("linger.ms", ...),)
    fields_of(ProducerConfig, {"linger.ms": 5})        # {"linger_ms": 5}

Keys are Kafka's, or those of Spark's Kafka connector, and match in any case. A key of Kafka's may
have the prefix `kafka.`, as Spark's connector requires. Keys that only concern a remote broker are
accepted with that prefix and ignored; unknown keys are refused, naming the nearest known one, or what
takes them.

Source: Spark connector/kafka-0-10-sql/.../KafkaSourceProvider.scala.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from spark_kbatch.errors import ConfigError
from spark_kbatch.options import arguments, kinds
from spark_kbatch.options.paths import bucket_scheme

MiB, GiB = 1 << 20, 1 << 30
STORE_PREFIX = "store."  # of options of a bucket's store
_ROWS = "options"  # of a field's metadata
_T = TypeVar("_T")


@dataclass(frozen=True)
class Option:
    """The definition of one option, and its row in the documentation's tables of options."""

    key: str
    kind: kinds.OptionKind[Any]
    default: Any  # as its kind parses it, or None
    text: str
    default_words: str = ""  # where the table does not show the default itself

    def parse(self, value: Any) -> Any:
        """Parse a value: text as in a properties file, or the Python value that it stands for.

        Raises:
            ConfigError: the value is not accepted.
        """
        if isinstance(value, bool):
            value = str(value).lower()
        if isinstance(value, (int, str)):
            return self.kind.parse(self.key, str(value))
        raise ConfigError(
            f"option {self.key!r} is {arguments.shown(value)} of type {type(value).__name__}; "
            f"accepted: {self.kind.accepts}"
        )


def option(
    key: str, kind: kinds.OptionKind[_T], default: _T, text: str, default_words: str = ""
) -> _T:
    """Return a field that is one option, for a dataclass of options."""
    row = Option(key, kind, default, text, default_words)
    return dataclasses.field(default=default, metadata={_ROWS: (row,)})


def made_of(*options: Option, default: Any = dataclasses.MISSING) -> Any:
    """Return a field that several options make up, for a dataclass of options; what parses these fills it."""
    return dataclasses.field(default=default, metadata={_ROWS: options})


def table_of(cls: type, taker: str = "") -> tuple[Option, ...]:
    """Return the options that the fields of a dataclass are made of.

    Args:
        cls: the dataclass.
        taker: what takes the options, a read or a write, for the error where something else is given one.
    """
    rows = tuple(row for one in dataclasses.fields(cls) for row in one.metadata.get(_ROWS, ()))
    if taker:
        _takers.update((row.key.lower(), taker) for row in rows if row not in (PATH, BOOTSTRAP))
    return rows


def fields_of(cls: type, given: Given | Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of those fields of a dataclass that are one option each, where it is given.

    Args:
        cls: the dataclass.
        given: the options that are given, by key.

    Raises:
        ConfigError: a value is not accepted.
    """
    rows = {one.name: one.metadata.get(_ROWS, ()) for one in dataclasses.fields(cls)}
    keys = {name: row[0].key for name, row in rows.items() if len(row) == 1}
    return {name: given.get(key) for name, key in keys.items() if key in given}


def repr_of(options: Any) -> str:
    """Return the `repr` of a dataclass of options, of those fields that are not as by default."""
    shown = [
        f"{one.name}={getattr(options, one.name)!r}"
        for one in dataclasses.fields(options)
        if getattr(options, one.name) != one.default
    ]
    return f"{type(options).__name__}({', '.join(shown)})"


# fmt: off
PATH = Option("path", kinds.any_text("a folder, or a bucket's URL"), None, "The cluster's folder, as given to `save`, `load` or `start`. Absolute, or relative to the driver's working directory; may start with `file:`, or with `~` for the home folder of the driver's user. Driver and executors must share it. Or the URL of a [bucket](bucket.md), such as `s3://BUCKET/PREFIX`; or HOST:PORT of a real cluster, as `kafka.bootstrap.servers`.")
BOOTSTRAP = Option("kafka.bootstrap.servers", kinds.any_text("HOST:PORT, more of them separated by commas; or a folder: `/...`, `./...` or `file:...`; or a bucket's URL"), None, "Servers of a real cluster, to ask first: they name all others. A folder, or a bucket's URL, is used as `path` where that is not given, so that a function written for `format(\"kafka\")` runs unchanged.")
# fmt: on

# Options of Kafka's clients without meaning here, by reason; accepted with their prefix, and ignored.
IGNORED_KAFKA_KEYS_BY_REASON = {
    "there is no broker to reach": (
        "allow.auto.create.topics bootstrap.controllers client.dns.lookup client.id client.rack "
        "connections.max.idle.ms default.api.timeout.ms metadata.max.age.ms metadata.max.idle.ms "
        "metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy "
        "partitioner.availability.timeout.ms receive.buffer.bytes reconnect.backoff.max.ms "
        "reconnect.backoff.ms security.protocol security.providers "
        "send.buffer.bytes socket.connection.setup.timeout.max.ms "
        "socket.connection.setup.timeout.ms"
    ),
    "there are no consumer groups": (
        "auto.commit.interval.ms group.id group.instance.id group.protocol group.remote.assignor "
        "heartbeat.interval.ms max.poll.interval.ms partition.assignment.strategy "
        "session.timeout.ms"
    ),
    "a task reads its range in large pieces, and checks every CRC": (
        "check.crcs exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes "
        "max.partition.fetch.bytes max.poll.records"
    ),
    "a job is acknowledged and retried as a whole, and a task waits for no memory but its own": (
        "delivery.timeout.ms enable.idempotence max.block.ms "
        "max.in.flight.requests.per.connection max.request.size "
        "partitioner.adaptive.partitioning.enable retries retry.backoff.max.ms retry.backoff.ms"
    ),
    "nothing collects metrics": (
        "auto.include.jmx.reporter enable.metrics.push metric.reporters metrics.num.samples "
        "metrics.recording.level metrics.sample.window.ms"
    ),
}

IGNORED_KAFKA_KEYS = frozenset(" ".join(IGNORED_KAFKA_KEYS_BY_REASON.values()).split())
IGNORED_KAFKA_PREFIXES = ("sasl.", "ssl.")

# With their prefix these are ignored on the side that does not know them: reads and writes often
# share one set of options.
_KAFKA_KEYS_OF_ONE_SIDE = frozenset(
    "acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type "
    "compression.zstd.level isolation.level linger.ms partitioner.class partitioner.ignore.keys "
    "request.timeout.ms transaction.timeout.ms".split()
)

FORBIDDEN_KAFKA_KEYS = {
    "auto.offset.reset": "give startingOffsets instead",
    "key.deserializer": "the option 'key.format' says what keys are: binary, string, avro or json",
    "value.deserializer": "the option 'value.format' says what values are: binary, string, avro or json",
    "key.serializer": "keys are written as they are, string or binary",
    "value.serializer": "values are written as they are, string or binary",
    "enable.auto.commit": "offsets are given by options, and nothing is committed but with 'commit.group.id'",
    "interceptor.classes": "there is no Java client to intercept",
    "transactional.id": "every job in a folder or a bucket is a transaction, and a stream is "
    "identified by its query; on a real cluster give 'delivery.guarantee' = 'exactly-once' and "
    "'transactional.id.prefix'",
}


# Keys of other programs, or of the other side, for what has another key here.
_MEANT = {
    "topic": ("subscribe",),
    "topics": ("subscribe", "topic"),
    "subscribe": ("topic",),
    "bootstrap.servers": ("path",),
    "servers": ("path",),
}
# What else is to be said of a key where it is unknown.
_INSTEAD = {
    "num.partitions": "a topic gets its partitions when it is created, and more by `kbatch "
    "create-partitions`",
    "replication.factor": "a topic gets its replicas when it is created",
}
_NEAR_ENOUGH = 0.6  # of `difflib`; below that a suggestion misleads
_NAME_MAX = 200  # characters of a name that is compared with others: no known one is nearly as long


_takers: dict[str, str] = {}  # by key, in small letters: "a read" or "a write"


class Given:
    """The options that a caller gives, matched with the known options.

    Iterates over the keys that are known and given. A value is parsed when it is asked for.
    """

    def __init__(self, options: Mapping[str, str], known: tuple[Option, ...]) -> None:
        """Match the given keys with the known options, in any case and with or without the prefix `kafka.`.

        Raises:
            ConfigError: a key is unknown, or is given twice, such as with and without `kafka.`.
        """
        by_key = {option.key.lower(): option for option in known}
        self._known = {option.key: option for option in known}
        self._texts: dict[str, str] = {}
        self._forbidden: list[str] = []
        for given_key, text in options.items():
            key = given_key.lower()
            if key.startswith(STORE_PREFIX):
                continue  # which are checked on their own
            bare = key.removeprefix("kafka.")
            is_kafkas = bare != key and ("." in bare or bare == "acks")
            option = by_key.get(key) or (by_key.get(bare) if is_kafkas else None)
            if option is not None:
                if self._texts.get(option.key, text) != text:
                    raise ConfigError(
                        f"option {option.key!r} is given twice, as {self._texts[option.key]!r} and "
                        f"{text!r}; give it once"
                    )
                self._texts[option.key] = text
            elif key != bare and bare in FORBIDDEN_KAFKA_KEYS:
                self._forbidden.append(given_key)
            elif key == bare or not (
                bare in IGNORED_KAFKA_KEYS | _KAFKA_KEYS_OF_ONE_SIDE
                or bare.startswith(IGNORED_KAFKA_PREFIXES)
            ):
                refuse_unknown(given_key, [option.key for option in known])

    def __contains__(self, key: str) -> bool:
        return key in self._texts

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def text(self, key: str) -> str:
        """Return the value of an option that is given, unparsed."""
        return self._texts[key]

    def get(self, key: str) -> Any:
        """Return the parsed value, or the option's default where it is not given.

        Raises:
            ConfigError: the value is not accepted.
        """
        option = self._known[key]
        return option.kind.parse(key, self._texts[key]) if key in self._texts else option.default

    def ensure_none_forbidden(self) -> None:
        """Check for keys that Spark's connector forbids.

        Raises:
            ConfigError: says what to do instead.
        """
        for key in self._forbidden:
            reason = FORBIDDEN_KAFKA_KEYS[key.lower().removeprefix("kafka.")]
            raise ConfigError(f"option {key!r} is not supported: {reason}")


def parsed_texts(options: Mapping[str, Any], known: tuple[Option, ...]) -> dict[str, Any]:
    """Return the parsed values of options by key, which are given in any case. None is repeated.

    Raises:
        ConfigError: an unknown key, a bad value, or a key that is given twice with different ones.
    """
    rows = {row.key: row for row in known}
    values: dict[str, Any] = {}
    for name, value in options.items():
        key = name.lower()
        if key not in rows:
            refuse_unknown(name, [*rows])
        if not isinstance(value, str):
            raise ConfigError(f"option {key!r} is of type {type(value).__name__}; accepted: text")
        parsed = rows[key].kind.parse(key, value)
        if values.setdefault(key, parsed) != parsed:
            raise ConfigError(f"option {key!r} is given twice, with different values; give it once")
    return values


def refuse_unknown(key: str, known: list[str]) -> NoReturn:
    """Raise for an unknown key; name the key to use instead, what takes it, or the nearest known one."""
    if key.lower() == "paths" and PATH.key in known:  # so does Spark call a list
        raise ConfigError(
            "load takes one path, and several are given: a cluster has all of its topics in one "
            "place; load each of them, and unite what is loaded"
        )
    bare = key.lower().removeprefix("kafka.")
    meant = [name for name in _MEANT.get(key.lower(), ()) if name in known]
    if meant:
        hints = [f"use {meant[0]!r} here"]
    elif bare in _takers and bare not in map(str.lower, known):
        hints = [f"it is an option of {_takers[bare]}"]
        if bare in _KAFKA_KEYS_OF_ONE_SIDE and PATH.key in known:
            hints[0] += f", which is ignored here as 'kafka.{bare}'"
        hints += [_INSTEAD[bare]] if bare in _INSTEAD else []
    else:
        near = nearest(key, known)
        hints = [f"the nearest known one is {near!r}"] if near else []
    shown = "; ".join([*hints, f"known options: {', '.join(known)}"])
    raise ConfigError(f"unknown option {key!r}; {shown}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like a misspelt one, ignoring case; None if none is close."""
    if len(name) > _NAME_MAX:
        return None
    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=_NEAR_ENOUGH)
    return by_lower[near[0]] if near else None


def path_of(given: Given) -> str:
    """Return the cluster's folder, or the URL of its bucket, that the given options name.

    Raises:
        ConfigError: they name none.
    """
    if given.get("path"):
        return str(given.get("path"))
    servers = str(given.get("kafka.bootstrap.servers") or "").strip()
    if not servers:
        raise ConfigError(
            "no path is given: name the cluster's folder in save(PATH), load(PATH) or start(PATH), or "
            "in the option 'kafka.bootstrap.servers'. Catalog tables (saveAsTable, toTable, writeTo) are "
            "not supported, because Spark does not pass their options to data sources written in "
            "Python: use save(PATH) or start(PATH), and CREATE TEMPORARY VIEW in SQL"
        )
    if not (servers.startswith(("/", "./", "../", "file:")) or bucket_scheme(servers)):
        raise ConfigError(
            f"option 'kafka.bootstrap.servers' is {servers!r}; accepted: HOST:PORT, or several separated "
            "by commas, or a cluster's folder, which starts with '/', './' or 'file:', or a bucket's URL"
        )
    return servers
