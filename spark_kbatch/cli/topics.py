"""Commands on topics: list, describe, create, grow, change and delete them or their records."""

from __future__ import annotations

import contextlib
import logging
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import click

from spark_kbatch import Cluster
from spark_kbatch.cli.output import (
    LOOK,
    Row,
    TableColumn,
    confirm,
    delete_each,
    is_json,
    json_option,
    look_option,
    number,
    show,
    tell,
    text,
    text_of,
    warn,
    yes_option,
)
from spark_kbatch.cli.parameters import config_option, examples, foreign_end_option, parsed
from spark_kbatch.cli.paths import (
    Place,
    client_options,
    complete_topic,
    place_argument,
    topic_argument,
)
from spark_kbatch.errors import (
    ConfigError,
    CorruptRecordError,
    KafkaStorageError,
    KBatchError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import LogOffsets, PartitionInfo, TopicPartition
from spark_kbatch.options.topic import (
    PARTITIONS_MAX,
    REPLICATION_FACTOR_MAX,
    TRANSACTION_STATE_TOPIC,
    Topic,
    TopicConfig,
    ensure_not_internal,
    partitions_of,
    topic_key,
)
from spark_kbatch.store.catalog import damaged_topics, skipping_deleted
from spark_kbatch.terminal import counted

if TYPE_CHECKING:
    from spark_kbatch import RemoteTopic
    from spark_kbatch.store.reports import ReplicaInfo


logger = logging.getLogger(__name__)

_KEYS_NOTE = """\
Existing records stay where they are. New records are spread over all partitions, so that
records with equal keys may lie in two partitions: those from before in another one."""

_names_argument = click.argument(
    "names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic
)


@click.command(
    epilog=examples("kbatch topics my-cluster", "kbatch topics broker:9092 readings --json")
)
@place_argument()
@click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topic)
@click.option(
    "--internal", is_flag=True, help="Include internal topics, such as __consumer_offsets."
)
@click.option("--verbose", "-v", is_flag=True, help="Show a row for each partition, as for a named TOPIC.")  # fmt: skip
@foreign_end_option
@client_options
@json_option
def topics(place: Place, names: Sequence[str], internal: bool, verbose: bool) -> None:
    """List topics, with their total offsets and bytes.

    There are as many records as offsets, or fewer: markers and aborted records of transactions take offsets, too.
    Bytes are all that take room, also of records that were overwritten or deleted and whose files are kept for now:
    `kbatch gc --dry-run` shows these, and until when. If a transaction is open, readers of committed records do not
    see yet what is held back: see `kbatch transactions`.

    With the name of a TOPIC, or with --verbose, show offsets, sizes and replicas by partition; --json always does.

    PATH is a cluster, a real broker's log dir, or HOST:PORT of a real cluster, which reports no sizes.
    The exit code is 1 if a partition cannot be read.
    """
    cluster = place.open()
    listed_in = _listed_remotely if cluster.is_remote else _listed_at_path
    chosen, rows, damaged = listed_in(cluster, names, internal)
    partitions: dict[str, list[Row]] = {}
    for tp, row in rows.items():
        partitions.setdefault(tp.topic, []).append({"partition": tp.partition, **row})
    listed: list[Row] = [
        {"topic": one.name, "topic_id": one.topic_id, "partitions": partitions.get(one.name, [])}
        for one in chosen
    ]
    title, columns, shown = "Topics", _TOPICS, listed
    if (names or verbose) and not is_json():
        title, columns = "Partitions", _PARTITIONS
        shown = [{"topic": one["topic"], **row} for one in listed for row in one["partitions"]]
    if listed or not damaged:
        where = cluster.address
        show(f"{title} of {where}", columns, shown, f"{where} has no topics yet.")
    unreadable = {tp: row["error"] for tp, row in rows.items() if "error" in row}
    for topic_partition, why in unreadable.items():
        warn(f"kbatch: {topic_partition} cannot be read: {why}")
    for damage in damaged.values():  # of topics that were left out; the first says enough
        raise damage
    if unreadable:
        sys.exit(1)


# Topics, the rows of their partitions as JSON has them, and damaged topics that are left out.
_Listing = tuple[Sequence["Topic"], Mapping[TopicPartition, Row], Mapping[str, KafkaStorageError]]


def _listed_at_path(cluster: Cluster, names: Sequence[str], internal: bool) -> _Listing:
    def look(
        names: Sequence[str],
    ) -> tuple[list[Topic], list[PartitionInfo], Mapping[TopicPartition, Sequence[ReplicaInfo]]]:
        topics = [cluster.topic(name) for name in names]
        return topics, cluster.describe(names), _replicas(cluster, topics)

    damaged: Mapping[str, KafkaStorageError] = {}
    if names:
        chosen, partitions, replicas = look(names)
    else:
        every = cluster.topic_names(internal=internal)
        damaged = damaged_topics(cluster.topic, every)
        sound = [name for name in every if name not in damaged]
        chosen, partitions, replicas = skipping_deleted(cluster.topic, sound, look)
    groups = _groups_by_partition(cluster)
    rows = {}
    for tp, offsets, size_in_bytes, error in partitions:
        is_known = offsets.log_end_offset >= 0
        rows[tp] = {
            **_offsets_as_json(offsets if is_known else None),
            "size_in_bytes": size_in_bytes if is_known else None,
            **_replication(replicas.get(tp)),
            **({"groups": groups[tp]} if tp in groups else {}),
            **({"error": error} if error else {}),
        }
    return chosen, rows, damaged


def _listed_remotely(cluster: Cluster, names: Sequence[str], internal: bool) -> _Listing:
    if names or internal:
        chosen = [cluster.topic(name) for name in names or cluster.topic_names(internal=True)]
    else:
        chosen = cluster.topics()  # asks once for all
    edges = _led_offsets(cluster, chosen)
    rows = {
        tp: {
            **_offsets_as_json(edges.get(tp)),
            "size_in_bytes": None,
            "leader": topic.leaders[n],
            "replicas": list(topic.replicas[n]),
            "isr": list(topic.isr[n]),
        }
        for topic in map(_of_cluster, chosen)
        for n, tp in enumerate(partitions_of(topic))
    }
    return chosen, rows, {}


def _offsets_as_json(offsets: LogOffsets | None) -> dict[str, int | None]:
    return dict.fromkeys(LogOffsets._fields) if offsets is None else offsets._asdict()


def _of_cluster(topic: Topic) -> RemoteTopic:
    return cast("RemoteTopic", topic)


def _led_offsets(cluster: Cluster, topics: Iterable[Topic]) -> dict[TopicPartition, LogOffsets]:
    """Return the start and end offsets of those partitions of a real cluster that have a leader to ask."""
    led = [
        tp
        for one in map(_of_cluster, topics)
        for tp in partitions_of(one)
        if one.leaders[tp.partition] >= 0
    ]

    def found(edge: str, level: str) -> dict[TopicPartition, int]:
        asked = cluster.list_offsets(dict.fromkeys(led, edge), isolation_level=level)
        return {tp: one.offset for tp, one in asked.items() if one is not None}

    # In the order in which they grow, so that none is past the next one.
    starts = found("earliest", "read_uncommitted")
    stable = found("latest", "read_committed")
    ends = found("latest", "read_uncommitted")
    return {tp: LogOffsets(starts[tp], ends[tp], stable[tp], ends[tp]) for tp in led}


def _offsets_count(partition: Row) -> int | None:
    """Return the number of a partition's offsets; None if they are not known."""
    end, start = partition["high_watermark"], partition["log_start_offset"]
    return None if end is None else end - start


def _held_back(partition: Row) -> int | None:
    """Return how many offsets readers of committed records wait for; None if it is not known."""
    end, stable = partition["high_watermark"], partition["last_stable_offset"]
    return None if end is None else end - stable


def _has_size(partition: Row) -> bool:
    return partition["size_in_bytes"] is not None


def _lags(*partitions: Row) -> list[str]:
    lags: dict[str, list[int | None]] = {}
    for partition in partitions:
        for group, one in partition.get("groups", {}).items():
            lags.setdefault(group, []).append(one["lag"])
    return [f"{group}: {text_of(_sum(some))}" for group, some in lags.items()]


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of numbers; None if one of them is not known."""
    total = 0
    for one in numbers:
        if one is None:
            return None
        total += one
    return total


def _is_not_replicated(partition: Row) -> bool:
    """Return True if not all replicas of a partition are in sync."""
    return len(partition.get("isr", ())) != len(partition.get("replicas", ()))


def _of_all(
    heading: str, of: Callable[[Any], Any], shown_if: Callable[[Any], object]
) -> TableColumn:
    """Return a column of sums over topics' partitions, shown if one of these needs it."""
    return number(
        heading,
        lambda topic: _sum(map(of, topic["partitions"])),
        shown_if=lambda topic: any(map(shown_if, topic["partitions"])),
    )


_TOPICS: Sequence[TableColumn] = (
    text("topic"),
    number("partitions", lambda topic: len(topic["partitions"])),
    number("offsets", lambda topic: _sum(map(_offsets_count, topic["partitions"]))),
    _of_all("bytes", operator.itemgetter("size_in_bytes"), _has_size),
    _of_all(
        "under-replicated", _is_not_replicated, operator.methodcaller("__contains__", "replicas")
    ),
    _of_all("held back", _held_back, _held_back),
    text(
        "lag of groups",
        lambda topic: _lags(*topic["partitions"]),
        shown_if=lambda topic: _lags(*topic["partitions"]),
    ),
)
_PARTITIONS = (
    text("topic"),
    number("partition"),
    number("first offset", "log_start_offset"),
    number("next offset", "high_watermark"),
    number("offsets", _offsets_count),
    number("bytes", "size_in_bytes", shown_if=_has_size),
    number("held back", _held_back, shown_if=_held_back),
    *(
        text(name, shown_if=operator.methodcaller("__contains__", name))
        for name in ("leader", "isr", "lag")
    ),
    text("lag of groups", _lags, shown_if=_lags),
)


def _replicas(cluster: Cluster, topics: Iterable[Topic]) -> dict[TopicPartition, list[ReplicaInfo]]:
    """Return the replicas of each partition; of none where the cluster has one log dir."""
    if not cluster.has("disks"):
        return {}
    has_one = False
    with contextlib.suppress(KafkaStorageError, UnknownTopicOrPartitionError):
        # It has a replica in each log dir.
        has_one = cluster.topic(TRANSACTION_STATE_TOPIC).replication_factor == 1
    return {} if has_one else cluster.replicas([topic.name for topic in topics])


def _replication(replicas: Sequence[ReplicaInfo] | None) -> Row:
    """Return a partition's leader, replicas, ISR, lag and offline replicas; empty if they are not known."""
    if replicas is None:
        return {}
    lags = [replica.lag for replica in replicas if replica.lag >= 0]
    return {
        "leader": next(replica.node_id for replica in replicas if replica.is_leader),
        "replicas": [replica.node_id for replica in replicas],
        "isr": [replica.node_id for replica in replicas if replica.in_sync],
        "lag": max(lags, default=None),
        "offline": [replica.node_id for replica in replicas if replica.why_offline is not None],
    }


def _groups_by_partition(cluster: Cluster) -> dict[TopicPartition, dict[str, Row]]:
    """Return consumer groups' offsets, by partition and group id; errors are only logged."""
    found: dict[TopicPartition, dict[str, Row]] = {}
    if not cluster.has("groups"):
        return found
    try:
        groups = cluster.groups()
    except (KafkaStorageError, CorruptRecordError) as error:
        logger.warning("consumer groups are not shown: %s", error)
        return found
    for group in groups:
        for tp, one in group.offsets.items():
            if one.committed_offset is not None:
                row = {"committed_offset": one.committed_offset, "lag": one.lag}
                found.setdefault(tp, {})[group.group_id] = row
    return found


@click.command("describe-topic", epilog=examples("kbatch describe-topic my-cluster readings"))
@place_argument()
@_names_argument
@client_options
@json_option
def describe_topic(place: Place, names: Sequence[str]) -> None:
    """Show settings of topics, and their defaults.

    `kbatch topics` shows offsets and replicas. PATH may be HOST:PORT of a real cluster, which reports no
    defaults.
    """
    cluster = place.open_own()
    found = [cluster.topic(name) for name in dict.fromkeys(names)]
    title = f"Settings of topics of {cluster.address}"
    show(title, _SETTINGS, map(_topic_as_json, found) if is_json() else _settings_shown(found))


def _settings_shown(topics: Iterable[Topic]) -> Iterator[Row]:
    """Yield a row for each setting of some topics, with its default if that is known."""
    for topic in topics:
        defaults = _by_key(TopicConfig()) if topic.config is not None else {}
        own = {"num.partitions": topic.partitions, "replication.factor": topic.replication_factor}
        for key, value in (own | _settings(topic)).items():
            # A number here is no count, and has no commas.
            texts = {"value": text_of(value), "default": text_of(defaults.get(key))}
            yield {"topic": topic.name, "setting": key, **texts}


_SETTINGS = (text("topic"), text("setting"), text("value"), text("default"))


def _settings(topic: Topic) -> Row:
    """Return a topic's settings by Kafka's keys, such as retention.ms; none if they are not known."""
    if topic.config is None:
        return dict(getattr(topic, "settings", {}))  # as a real cluster tells them
    return _by_key(topic.config)


def _by_key(config: TopicConfig) -> Row:
    return {topic_key(name): value for name, value in asdict(config).items()}


def _topic_as_json(topic: Topic | RemoteTopic) -> Row:
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "config": _settings(topic),
    }


@click.command(
    "create-topic",
    epilog=examples(
        "kbatch create-topic my-cluster readings --partitions 4 --config retention.ms=86400000",
        "kbatch create-topic broker:9092 readings --replication-factor 3",
    ),
)
@place_argument()
@topic_argument
@click.option("--partitions", type=click.IntRange(1, PARTITIONS_MAX), metavar="N", help="Number of partitions; by default 1 in a folder, and what a real cluster has as its default.")  # fmt: skip
@click.option("--replication-factor", type=click.IntRange(1, REPLICATION_FACTOR_MAX), metavar="N", help="Number of replicas, each in its own log dir or on its own broker; by default as for partitions.")  # fmt: skip
@config_option(help="Set KEY of the topic to VALUE; may be repeated.")
@click.option("--if-not-exists", "exist_ok", is_flag=True, help="Do nothing if the topic exists with all that is given here.")  # fmt: skip
@click.option("--create/--no-create", default=True, show_default=True, help="Whether to create the cluster in a folder if there is none.")  # fmt: skip
@client_options
@json_option
def create_topic(place: Place, topic: str, create: bool, **settings: Any) -> None:
    """Create TOPIC.

    PATH may be HOST:PORT of a real cluster, whose brokers say which settings there are.
    """
    cluster = place.open_own(create=create)
    try:
        made = cluster.create_topic(topic, **settings)
    except TopicAlreadyExistsError as error:
        if error.differs:
            raise
        raise ConfigError(
            f"topic {topic!r} already exists; choose another name, or give --if-not-exists"
        ) from None
    copies = f"replication factor {made.replication_factor}"
    tell(_topic_as_json(made), f"topic {topic} has {_partitions(made.partitions)}, {copies}")


def _partitions(count: int) -> str:
    return f"{count} partition{'s' * (count != 1)}"


@click.command(
    "create-partitions", epilog=examples("kbatch create-partitions my-cluster readings 8")
)
@place_argument()
@topic_argument
@click.argument("total", type=click.IntRange(1, PARTITIONS_MAX))
@client_options
@json_option
def create_partitions(place: Place, topic: str, total: int) -> None:
    """Add partitions to TOPIC, up to TOTAL in all.

    PATH may be HOST:PORT of a real cluster.
    """
    count = place.open_own().create_partitions(topic, total).partitions
    tell({"topic": topic, "num_partitions": count}, f"topic {topic} has {count} partitions")
    click.echo(_KEYS_NOTE, err=True)


@click.command(
    "alter-topic",
    epilog=examples(
        "kbatch alter-topic my-cluster readings --config retention.ms=86400000",
        "kbatch alter-topic my-cluster readings --reset retention.ms",
    ),
)
@place_argument()
@topic_argument
@config_option(help="Set KEY to VALUE; may be repeated.")
@click.option("--reset", metavar="KEY", multiple=True, help="Reset KEY to its default; may be repeated.")  # fmt: skip
@client_options
@json_option
def alter_topic(place: Place, topic: str, config: dict[str, str], reset: Sequence[str]) -> None:
    """Change settings of TOPIC, and print all of them.

    PATH may be HOST:PORT of a real cluster, whose brokers say which settings there are.
    """
    twice = sorted(set(map(topic_key, config)) & set(map(topic_key, reset)))
    if twice:
        raise click.UsageError(f"{twice[0]!r} is given to both --config and --reset")
    cluster, changes = place.open_own(), config | dict.fromkeys(reset)
    settings = _settings(cluster.alter_topic(topic, changes) if changes else cluster.topic(topic))
    tell(
        {"topic": topic, "config": settings}, *(f"{key}={value}" for key, value in settings.items())
    )


@click.command("delete-topic", epilog=examples("kbatch delete-topic my-cluster readings --dry-run"))
@place_argument()
@_names_argument
@yes_option
@look_option
@client_options
@json_option
def delete_topic(place: Place, names: Sequence[str], yes: bool, dry_run: bool) -> None:
    """Delete topics with all their records.

    They are gone at once. Their files are deleted later, by `kbatch gc` or a commit, when the topic's
    file.delete.delay.ms has passed. PATH may be HOST:PORT of a real cluster.
    """
    cluster = place.open_own()
    contents = {name: _contents(cluster, name) for name in dict.fromkeys(names)}
    found: dict[str, tuple[str, Row]] = {
        name: (_summary(one), {"topic": name, **one}) for name, one in contents.items()
    }
    delete_each("topic", found, cluster.delete_topic, yes=yes, dry_run=dry_run)


def _contents(cluster: Cluster, name: str) -> dict[str, int | None]:
    """Return a topic's numbers of partitions, offsets and bytes; None where its logs cannot be read.

    Topics that the cluster alone changes are refused.
    """
    _ensure_changeable(cluster, name)
    topic = cluster.topic(name)
    offsets = size = None
    if cluster.is_remote:
        edges = _led_offsets(cluster, [topic])
        if len(edges) == topic.partitions:
            offsets = sum(one.offsets_count for one in edges.values())
    else:
        with contextlib.suppress(KBatchError, OSError):
            rows = cluster.describe([name])
            if not any(row.error for row in rows):
                offsets = sum(row.offsets.offsets_count for row in rows)
                size = sum(row.size_in_bytes for row in rows)
    return {"num_partitions": topic.partitions, "offsets": offsets, "size_in_bytes": size}


def _ensure_changeable(cluster: Cluster, name: str) -> None:
    """Refuse a topic that is the cluster's own before the question, and in a dry run."""
    if not cluster.is_remote:
        ensure_not_internal(name)
    elif cluster.topic(name).name not in cluster.topic_names():
        raise ConfigError(f"topic {name!r} is the cluster's own, which alone changes it")


def _summary(contents: Mapping[str, int | None]) -> str:
    partitions, offsets, size = contents.values()
    assert partitions is not None
    held = _partitions(partitions)
    if offsets is None:
        return f"{held}, whose logs cannot be read"
    held = f"{held}, {counted(offsets, 'offset')}"
    return held if size is None else f"{held}, {size:,} bytes"


def _partition_and_offset(words: Sequence[str]) -> dict[int, int]:
    found: dict[int, int] = {}
    for word in words:
        matched = re.fullmatch(r"([0-9]{1,10}):(-1|[0-9]{1,19})", word)
        if matched is None:
            raise click.BadParameter(f"{word!r} is not PARTITION:OFFSET, such as 0:1500, or 0:-1")
        partition, offset = map(int, matched.groups())
        if found.setdefault(partition, offset) != offset:
            raise click.BadParameter(f"partition {partition} is given twice")
    return found


@click.command(
    "delete-records",
    epilog=examples("kbatch delete-records my-cluster readings 0:1500 1:-1 --dry-run"),
)
@place_argument()
@topic_argument
@click.argument(
    "offsets",
    metavar="PARTITION:OFFSET...",
    nargs=-1,
    required=True,
    callback=parsed(_partition_and_offset),
)
@yes_option
@look_option
@client_options
@json_option
def delete_records(
    place: Place, topic: str, offsets: dict[int, int], yes: bool, dry_run: bool
) -> None:
    """Delete the first records of partitions of TOPIC.

    These are the records below OFFSET; -1 deletes all records. PATH may be HOST:PORT of a real cluster.
    """
    cluster = place.open_own()
    found = _records_below(cluster, topic, offsets)
    if not (yes or dry_run):
        lines = [
            f"{tp}: {counted(count, 'offset')} below offset {start}"
            for tp, (start, count) in found.items()
        ]
        confirm(lines, "delete", "deleted", LOOK)
    starts = {tp: start for tp, (start, _) in found.items()}
    if not dry_run:
        starts = cluster.delete_records(starts)
    for tp, (_, count) in found.items():
        row = {"topic": topic, "partition": tp.partition, "log_start_offset": starts[tp]}
        start = "would start" if dry_run else "starts"
        outcome = "would be deleted" if dry_run else "deleted"
        tell(
            {**row, "offsets": count, "deleted": not dry_run},
            f"{tp} {start} at offset {starts[tp]}: {counted(count, 'offset')} {outcome}",
        )


def _records_below(
    cluster: Cluster, topic: str, offsets: Mapping[int, int]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return each partition's new log start offset, and how many of its offsets would be deleted.

    Raises:
        OffsetOutOfRangeError: an offset is above the high watermark.
        UnknownTopicOrPartitionError: a partition does not exist.
        ConfigError: the topic is internal.
    """
    _ensure_changeable(cluster, topic)
    rows = cluster.describe([topic])
    for row in rows:
        if row.error and row.topic_partition.partition in offsets:
            raise KafkaStorageError(row.error)
    edges = {row.topic_partition: row.offsets for row in rows}
    found = {}
    for partition, offset in sorted(offsets.items()):
        tp = TopicPartition(topic, partition)
        if tp not in edges:
            raise UnknownTopicOrPartitionError(
                f"partition {tp} does not exist: topic {topic!r} has partitions 0 to {len(edges) - 1}"
            )
        first, end = edges[tp].log_start_offset, edges[tp].high_watermark
        if offset > end:
            raise OffsetOutOfRangeError(str(tp), offset, first, end)
        start = end if offset < 0 else max(offset, first)
        found[tp] = start, start - first
    return found
