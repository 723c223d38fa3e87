"""The options of a read, batch or stream: those of Spark's Kafka source, with its precedence.

    the first one given    startingTimestamp > startingOffsetsByTimestamp > startingOffsets
    decides                endingTimestamp > endingOffsetsByTimestamp > endingOffsets

An option that loses is not looked at. Unknown keys are refused first. Then values are checked in the
order of Spark's connector: the starting side, the ending side, what is read, how it is split, forbidden
keys, the path, limits of a trigger, and last whether both sides fit together.

Source: Spark connector/kafka-0-10-sql/.../KafkaSourceProvider.scala, JsonUtils.scala.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from spark_kbatch.errors import ConfigError
from spark_kbatch.model import EARLIEST, INT_MAX, LATEST, LONG_MAX, IsolationLevel, TopicPartition
from spark_kbatch.options import kinds
from spark_kbatch.options.object_store import NO_STORE_OPTIONS, StoreOptions, parse_store_options
from spark_kbatch.options.option import (
    BOOTSTRAP,
    PATH,
    Given,
    Option,
    fields_of,
    made_of,
    option,
    table_of,
)
from spark_kbatch.options.remote import ClusterOptions, path_or_cluster_of
from spark_kbatch.options.topic import ensure_valid_topic
from spark_kbatch.options.values import (
    NO_VALUE_OPTIONS,
    VALUE_OPTIONS,
    ValueOptions,
    parse_value_options,
    without_registry,
)
from spark_kbatch.options.write import (
    FOREIGN_ENDS,
    MAX_DECOMPRESSED_BATCH_BYTES,
    parse_isolation_level,
)

logger = logging.getLogger(__name__)

ByPartition: TypeAlias = Mapping[TopicPartition, int]
NoMatch: TypeAlias = Literal["error", "latest"]

_BATCH_ONLY = ("endingOffsets", "endingOffsetsByTimestamp")
_OURS = "@"  # starts a key beside the topics in a stream's offsets; no topic's name has it
_GROUP_ID_BYTES_MAX = 2**15 - 1  # in Kafka's protocol
_TIME = re.compile(r"(-?[0-9]{1,19}) *(us|ms|s|m|min|h|d)?")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class Subscribe:
    """The selection of all partitions of the given topics (`subscribe`)."""

    topics: tuple[str, ...]


@dataclass(frozen=True)
class SubscribePattern:
    """The selection of all topics whose name matches a regular expression, except internal topics.

    The expression may match anywhere in the name.
    """

    pattern: str


@dataclass(frozen=True)
class Assign:
    """The selection of the given partitions (`assign`), without those that do not exist."""

    partitions: tuple[TopicPartition, ...]


Selection: TypeAlias = Subscribe | SubscribePattern | Assign


@dataclass(frozen=True)
class Offsets:
    """The start or end of a read: an offset for each partition, or EARLIEST or LATEST for all.

    Topics may also be given as a whole, beside partitions of others, with EARLIEST or LATEST.
    """

    option: str
    offsets: int | ByPartition
    topics: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Timestamps:
    """The start or end of a read: a time in ms for each partition, or one for all."""

    option: str
    timestamps: int | ByPartition


Bound: TypeAlias = Offsets | Timestamps


class Patience(NamedTuple):
    """Waiting times and retries of a read from a real Kafka cluster."""

    poll_timeout_ms: int | None = None  # of one fetch; None for default.api.timeout.ms
    look_ups_repeated: int = 0  # how often a look-up that timed out is repeated
    pause_ms: int = 1000  # before that


DEFAULT_PATIENCE = Patience()


def _subscribe(key: str, value: str) -> Subscribe:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names:
        kinds.refuse(key, value, "one or more topics, separated by commas")
    return Subscribe(tuple(ensure_valid_topic(name) for name in names))


def _subscribe_pattern(key: str, value: str) -> SubscribePattern:
    pattern = value.strip()
    if not pattern:
        kinds.refuse(key, value, "a regular expression that is not empty")
    try:
        re.compile(pattern)
    except re.error as error:
        kinds.refuse(key, value, f"a regular expression in Python's syntax; found: {error}")
    return SubscribePattern(pattern)


def _assign(key: str, value: str) -> Assign:
    accepts = 'partitions by topic as JSON, such as {"events":[0,1]}'
    found = set()
    for topic, partitions in _json_object(key, value, accepts).items():
        ensure_valid_topic(topic)
        if not isinstance(partitions, list):
            kinds.refuse(key, value, accepts)
        for number in partitions:
            partition = _partition_number(key, value, number, accepts)
            found.add(TopicPartition(topic, partition))
    return Assign(tuple(sorted(found)))


def _json_object(key: str, value: str, accepts: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value, object_pairs_hook=_each_name_once)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        kinds.refuse(key, value, accepts)
    return parsed


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError(pairs)
    return dict(pairs)


def _partition_number(key: str, value: str, number: Any, accepts: str) -> int:
    text = str(number)
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) > INT_MAX:
        kinds.refuse(key, value, accepts)
    return int(text)


def _by_partition(
    key: str, value: str, accepts: str, words: Mapping[str, int]
) -> tuple[dict[TopicPartition, int], dict[str, int]]:
    """Parse JSON that has a number for each partition of a topic, or a word for all of them.

    The keys beside topics in a stream's offsets are ignored.

    Args:
        words: those that are accepted, with the numbers below 0 that mean the same.

    Returns:
        Numbers by partition, and by topic for those that have a word.
    """
    numbers: dict[TopicPartition, int] = {}
    topics: dict[str, int] = {}
    for topic, found in _json_object(key, value, accepts).items():
        if topic.startswith(_OURS):
            continue
        ensure_valid_topic(topic)
        if isinstance(found, str) and found.lower() in words:
            topics[topic] = words[found.lower()]
            continue
        if not isinstance(found, dict):
            kinds.refuse(key, value, f"{accepts}; topic {topic!r} has {json.dumps(found)}")
        for partition, number in found.items():
            topic_partition = TopicPartition(
                topic, _partition_number(key, value, partition, accepts)
            )
            is_integer = isinstance(number, int) and not isinstance(number, bool)
            if not is_integer or not (number in words.values() or 0 <= number <= LONG_MAX):
                kinds.refuse(key, value, f"{accepts}; {topic_partition} has {json.dumps(number)}")
            # "0" and "00" are one partition, as in Spark's connector.
            if topic_partition in numbers:
                kinds.refuse(key, value, f"{accepts}; each partition only once")
            numbers[topic_partition] = number
    return numbers, topics


def _offsets(*, hint: str = "", **words: int) -> Callable[[str, str], Offsets]:
    """Return a parser of offsets: a word such as `latest` for all partitions, or JSON by topic.

    Args:
        hint: added to the error for a value that is refused.
    """
    names = " or ".join(repr(word) for word in words)
    meaning = " and ".join(f"{number} is {word}" for word, number in words.items())
    word, number = next(iter(words.items()))
    accepts = (
        f"{names}, or offsets by topic and partition as JSON, such as "
        f'{{"events":{{"0":23,"1":{number}}},"clicks":"{word}"}}, where {meaning}{hint}'
    )

    def parse(key: str, value: str) -> Offsets:
        text = value.strip()
        number = words.get(text.lower())
        if number is not None:
            return Offsets(key, number)
        return Offsets(key, *_by_partition(key, value, accepts, words))

    return parse


def _timestamp(key: str, value: str) -> Timestamps:
    return Timestamps(key, kinds.number(0, LONG_MAX).parse(key, value))


def _timestamps(key: str, value: str) -> Timestamps:
    accepts = (
        "times in ms by topic and partition as JSON, such as "
        '{"events":{"0":1735689600000,"1":1735689600000}}'
    )
    return Timestamps(key, _by_partition(key, value, accepts, {})[0])


def _group_id(key: str, value: str) -> str:
    if not 0 < len(value.strip().encode()) <= _GROUP_ID_BYTES_MAX:
        kinds.refuse(key, value, f"a name of 1 to {_GROUP_ID_BYTES_MAX} bytes")
    return value.strip()


def _time_ms(key: str, value: str) -> int:
    """Parse a duration in Spark's notation; a bare number is in milliseconds."""
    found = _TIME.fullmatch(value.strip().lower())
    if found is None or int(found[1]) < 0:
        kinds.refuse(
            key, value, "a time such as 500ms, 30s, 15m, 1h or 1d; a number without a unit is in ms"
        )
    number = int(found[1])
    return number // 1000 if found[2] == "us" else number * _UNIT_MS[found[2] or "ms"]


def _where(key: str, value: str) -> str:
    """Check the grammar of a condition; names and types are checked where columns are known."""
    from spark_kbatch.condition.text import parse  # noqa: PLC0415  for reads that have one

    parse(value, f"option {key!r}")
    return value


_BATCH_STARTING_OFFSETS = _offsets(
    earliest=EARLIEST, hint="; only a stream may start at 'latest', or -1"
)

_STREAM_STARTING_OFFSETS = _offsets(
    earliest=EARLIEST, latest=LATEST, hint="; a batch starts at neither 'latest' nor -1"
)


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The parsed options of `spark.read` or `spark.readStream`; a stream ignores `ending`."""

    # fmt: off
    path: str = made_of(PATH, BOOTSTRAP)  # empty for a real cluster
    selection: Selection = made_of(
        Option("subscribe", kinds.OptionKind(_subscribe, "topic names, separated by commas"), None, "Topics to read. Exactly one of `subscribe`, `subscribePattern` and `assign` is required."),
        Option("subscribePattern", kinds.OptionKind(_subscribe_pattern, "a regular expression"), None, "Pattern of the topics to read, in Python's syntax. It may match anywhere in the name: `orders` selects `orders-eu`, `^orders$` does not. Internal topics are never selected."),
        Option("assign", kinds.OptionKind(_assign, 'JSON: `{"events":[0,1]}`'), None, "Partitions to read. Those that do not exist are left out."),
    )
    starting: Bound = made_of(
        Option("startingOffsets", kinds.OptionKind(_BATCH_STARTING_OFFSETS, 'earliest, or JSON: `{"events":{"0":23,"1":-2},"clicks":"earliest"}`; a stream also: latest, -1'), None, "Where to start, inclusive; -2 means earliest, -1 latest, and a word in place of a topic's partitions stands for all of them. JSON must cover every partition that is read. Used only when a stream starts for the first time: later it resumes from its checkpoint.", "earliest; for a stream: latest"),
        Option("startingOffsetsByTimestamp", kinds.OptionKind(_timestamps, 'JSON: `{"events":{"0":1735689600000}}`'), None, "Where to start: in each partition, at the first record with the given time (in ms) or a later one. JSON must name every partition that is read. Takes precedence over startingOffsets."),
        Option("startingTimestamp", kinds.OptionKind(_timestamp, "a time in ms"), None, "The same, with one time for all partitions. Takes precedence over startingOffsetsByTimestamp."),
    )
    no_match: NoMatch = option("startingOffsetsByTimestampStrategy", kinds.one_of("error", "latest"), "error", "What to do if a partition has no record with the given starting time or a later one: fail, or start at its end.")
    ending: Bound = made_of(
        Option("endingOffsets", kinds.OptionKind(_offsets(latest=LATEST), 'latest, or JSON: `{"events":{"0":50,"1":-1},"clicks":"latest"}`'), Offsets("endingOffsets", LATEST), "Where to end, exclusive; -1 means latest. JSON must cover every partition that is read. Batch only.", "latest"),
        Option("endingOffsetsByTimestamp", kinds.OptionKind(_timestamps, 'JSON: `{"events":{"0":1735776000000}}`'), None, "Where to end: in each partition, before the first record with the given time (in ms) or a later one; at its end if it has none. Takes precedence over endingOffsets. Batch only."),
        Option("endingTimestamp", kinds.OptionKind(_timestamp, "a time in ms"), None, "The same, with one time for all partitions. Takes precedence over endingOffsetsByTimestamp. Batch only."),
    )
    fail_on_data_loss: bool = option("failOnDataLoss", kinds.BOOLEAN, True, "Whether to fail when requested offsets are gone, or do not exist yet. With false, the offsets that are left are read, and a warning is logged.")
    include_headers: bool = option("includeHeaders", kinds.BOOLEAN, False, "Whether to include the record headers, as the column `headers`.")
    min_partitions: int | None = option("minPartitions", kinds.number(1), None, "Desired minimum number of Spark partitions; large topic partitions are split to reach about that number.")
    max_records_per_partition: int | None = option("maxRecordsPerPartition", kinds.number(1, LONG_MAX), None, "Maximum number of offsets in one Spark partition; larger ranges are split, where both ends are given as offsets. Without this and minPartitions, a range of more than 128 MiB of log is split into pieces of about that size; in a real cluster, which does not tell sizes, none is split. Small ranges share a Spark partition: see shareTasks.")
    share_tasks: bool = option("shareTasks", kinds.BOOLEAN, True, "With false, each range of a topic partition is a Spark partition of its own, however small: give it where a costly call for each row needs more tasks than small ranges make. With true, a read or micro-batch of more than 16 ranges reads several small ones in one task, each in the order of its offsets. Small is at most 4 MiB of log, or in a real cluster, which does not tell sizes, at most 1,000 offsets; a task has at most 32 ranges, and there are at least 16 tasks. minPartitions and maxRecordsPerPartition rule it out.")
    max_offsets_per_trigger: int | None = option("maxOffsetsPerTrigger", kinds.number(1, LONG_MAX), None, "About the maximum number of offsets per micro-batch, divided among the partitions in proportion to what each has. Where transactions or compaction leave gaps there are fewer rows, or none. Ignored in a batch.")
    min_offsets_per_trigger: int | None = option("minOffsetsPerTrigger", kinds.number(0, LONG_MAX), None, "Minimum number of new offsets for a micro-batch to start, unless maxTriggerDelay passes first. Ignored in a batch.")
    max_trigger_delay_ms: int = option("maxTriggerDelay", kinds.OptionKind(_time_ms, "`500ms`, `30s`, `15m`, `1h`; ms without a unit"), 15 * 60_000, "How long minOffsetsPerTrigger may delay a micro-batch. Ignored in a batch.", "15m")
    isolation_level: IsolationLevel = option("isolation.level", kinds.OptionKind(parse_isolation_level, "read_committed, read_uncommitted"), IsolationLevel.READ_COMMITTED, "How to read records of transactions. With read_committed, those of aborted transactions are left out, and `latest` is the last stable offset, where the first open transaction starts; with read_uncommitted, all records up to the high watermark are read. Control records are never rows. Such transactions are those of Kafka's clients. The data of a kbatch job is not in the log before its commit; in a partition with an open transaction it is committed once that ends.")
    foreign_end: str | None = option("foreign.end", kinds.one_of(*FOREIGN_ENDS), None, "Where to end in a real broker's log directory: with `log` after the last valid batch of each log, with `checkpoint` at the high watermark that the broker last wrote to its checkpoint. Without it a read ends as with `log`, but fails once it comes to records that are missing, as the broker's own files show; with `log` these are left out.")
    max_decompressed_batch_bytes: int = option("max.decompressed.batch.bytes", kinds.number(1), MAX_DECOMPRESSED_BATCH_BYTES, "Largest size, in bytes, that one compressed batch may expand to; a larger one is an error. A task holds one such batch in memory, and a few KB of a damaged or hostile log can expand to gigabytes.", "1073741824 (1 GiB)")
    where: str | None = option("where", kinds.OptionKind(_where, "a condition, such as `key = 'a' AND timestamp >= TIMESTAMP '2026-01-31 00:00:00Z'`"), None, "Only the rows that this condition is true for, in Spark's own spelling: see [only some rows](where.md). What cannot match is not sent to Spark, and much of it is not read.")
    poll_ms: int = option("poll.ms", kinds.number(0), 500, "In a bucket: how long a stream that found nothing new waits before it asks the store again; up to ten times as long after a while without news. What is committed in that time is seen late: `processAllAvailable()` may return without it. Each time costs a request; with 0, the store is asked whenever Spark asks. Ignored elsewhere, and in a batch.")
    commit_group_id: str | None = option("commit.group.id", kinds.OptionKind(_group_id, "a name"), None, "Consumer group as whose offsets a stream commits how far it has read, for what [shows the lag of groups](streams.md#lag). The group must have no members, and no query starts from it. A broker's log directory keeps no groups, and refuses it. Ignored in a batch.", "not set")
    patience: Patience = made_of(
        Option("groupIdPrefix", kinds.stripped("any"), None, "Ignored: there are no consumer groups."),
        Option("kafkaConsumer.pollTimeoutMs", kinds.number(0, LONG_MAX), None, "How long a task waits for the next records of a real cluster, in spite of lost connections and leaders that move. Ignored with a folder, which is read without waiting.", "kafka.default.api.timeout.ms, 1 minute"),
        Option("fetchOffset.numRetries", kinds.number(0), 0, "How often topics, partitions and offsets of a real cluster are looked up again after kafka.default.api.timeout.ms have passed without an answer; until then, transient errors are retried anyway. Ignored with a folder."),
        Option("fetchOffset.retryIntervalMs", kinds.number(0, LONG_MAX), 1000, "Pause before such a look-up is repeated. Ignored with a folder."),
        default=DEFAULT_PATIENCE,
    )  # with the real cluster
    values: ValueOptions = made_of(*VALUE_OPTIONS, default=NO_VALUE_OPTIONS)
    # fmt: on
    cluster: ClusterOptions | None = None  # a real one, which is read in place of `path`
    store: StoreOptions = NO_STORE_OPTIONS  # of the bucket


READ_OPTIONS = table_of(ReadOptions, "a read")


def parse_read_options(options: Mapping[str, str], *, warn: bool = True) -> ReadOptions:
    """Parse and check every option of a batch read.

    Args:
        warn: whether to log which options are ignored.

    Raises:
        ConfigError: an unknown or forbidden key, a bad value, no path, not exactly one selection, or
            a start and an end that do not fit together; names the keys and what is accepted.
    """
    given = Given(without_registry(options), READ_OPTIONS)
    no_match: NoMatch = given.get("startingOffsetsByTimestampStrategy")
    starting = _bound(given, "starting") or Offsets("startingOffsets", EARLIEST)
    ending: Bound = _bound(given, "ending") or given.get("endingOffsets")
    parsed = _general(options, given, starting, ending, no_match)
    _ensure_ordered(starting, ending)
    for key in (
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "commit.group.id",
    ):
        if warn and key in given:
            logger.warning("option %r is ignored in a batch read", key)
    return parsed


def parse_stream_read_options(options: Mapping[str, str], *, warn: bool = True) -> ReadOptions:
    """Parse and check every option of a streaming read.

    Args:
        warn: whether to log which options are ignored.

    Raises:
        ConfigError: as `parse_read_options`; also an option that says where a batch ends.
    """
    given = Given(without_registry(options), READ_OPTIONS)
    for key in _BATCH_ONLY:
        if key in given:
            raise ConfigError(
                f"option {key!r} is for batch reads: a stream has no end; leave it out"
            )
    if warn and "endingTimestamp" in given:
        logger.warning("option 'endingTimestamp' is ignored in a stream, which has no end")
    no_match: NoMatch = given.get("startingOffsetsByTimestampStrategy")
    starting = _bound(given, "starting", parse_offsets=_STREAM_STARTING_OFFSETS)
    return _general(
        options,
        given,
        starting or Offsets("startingOffsets", LATEST),
        given.get("endingOffsets"),
        no_match,
    )


def parse_batch_or_stream_options(options: Mapping[str, str]) -> tuple[ReadOptions, bool]:
    """Parse the options of a read, batch or stream; return also whether they fit a batch only.

    Raises:
        ConfigError: they fit neither; says why not a batch if they say where one ends, else why not a
            stream, which takes every start that a batch takes.
    """
    try:
        parsed = parse_read_options(options, warn=False)
    except ConfigError:
        with_an_end = Given(without_registry(options), READ_OPTIONS)
        if any(key in with_an_end for key in _BATCH_ONLY):
            raise
        return parse_stream_read_options(options, warn=False), False
    try:
        parse_stream_read_options(options, warn=False)
    except ConfigError:
        return parsed, True
    return parsed, False


def _bound(
    given: Given, side: str, *, parse_offsets: Callable[[str, str], Offsets] | None = None
) -> Bound | None:
    """Return the start or end of a read, from the option that takes precedence; None if none is given."""
    for key in (f"{side}Timestamp", f"{side}OffsetsByTimestamp"):
        if key in given:
            by_time: Timestamps = given.get(key)
            return by_time
    key = f"{side}Offsets"
    if key in given and parse_offsets is not None:
        return parse_offsets(key, given.text(key))
    by_offset: Offsets | None = given.get(key) if key in given else None
    return by_offset


def _general(
    options: Mapping[str, str], given: Given, starting: Bound, ending: Bound, no_match: NoMatch
) -> ReadOptions:
    selection = _selection(given)
    for key in ("minPartitions", "maxRecordsPerPartition"):
        given.get(key)  # which refuses a bad value before what follows
    given.ensure_none_forbidden()
    path, cluster = path_or_cluster_of(given, options)
    least, most = given.get("minOffsetsPerTrigger"), given.get("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"option 'minOffsetsPerTrigger' is {least}, higher than 'maxOffsetsPerTrigger', {most}"
        )
    patience = Patience(
        given.get("kafkaConsumer.pollTimeoutMs"),
        given.get("fetchOffset.numRetries"),
        given.get("fetchOffset.retryIntervalMs"),
    )
    return ReadOptions(
        path=path,
        cluster=cluster,
        store=parse_store_options(options, cluster or path),
        selection=selection,
        starting=starting,
        ending=ending,
        patience=DEFAULT_PATIENCE if cluster is None else patience,
        values=parse_value_options(given, options, _topics(selection)),
        **fields_of(ReadOptions, given),
    )


def _topics(selection: Selection) -> list[str]:
    """Return the topics that a selection names; none where a pattern chooses them."""
    match selection:
        case Subscribe(topics):
            return list(topics)
        case Assign(partitions):
            return list(dict.fromkeys(one.topic for one in partitions))
    return []


def _selection(given: Given) -> Selection:
    keys = ("subscribe", "subscribePattern", "assign")
    named = [key for key in keys if key in given]
    if len(named) != 1:
        found = f"{' and '.join(map(repr, named))} were" if named else "none was"
        raise ConfigError(
            "exactly one of the options 'subscribe', 'subscribePattern' and 'assign' is required; "
            f"{found} given"
        )
    selection: Selection = given.get(named[0])
    return selection


def _ensure_ordered(starting: Bound, ending: Bound) -> None:
    """Check that a start and an end by partition name the same partitions, no end before its start.

    A topic that one of them gives as a whole may be given either way by the other.
    """
    whole: set[str] = set()
    match starting, ending:
        case Offsets(_, Mapping() as start, first), Offsets(_, Mapping() as end, last):
            whole = first.keys() | last.keys()
            found = [
                {tp.topic for tp in by_partition} | topics.keys()
                for by_partition, topics in ((start, first), (end, last))
            ]
            one_sided = [topic for topic in sorted(whole) if any(topic not in one for one in found)]
        case Timestamps(timestamps=Mapping() as start), Timestamps(timestamps=Mapping() as end):
            one_sided = []
        case _:
            return
    one_sided += [str(tp) for tp in sorted(start.keys() ^ end.keys()) if tp.topic not in whole]
    if one_sided:
        raise ConfigError(
            f"options {starting.option!r} and {ending.option!r} should have the same "
            f"topic-partitions; only one of them names {', '.join(one_sided)}"
        )
    for topic_partition in start.keys() & end.keys():
        if 0 <= end[topic_partition] < start[topic_partition]:
            raise ConfigError(
                f"option {starting.option!r} of {topic_partition} is {start[topic_partition]}, greater "
                f"than {end[topic_partition]} in {ending.option!r}"
            )
