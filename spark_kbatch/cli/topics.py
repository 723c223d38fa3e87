"""Commands on topics: list, describe, create, grow, change and delete them or their records."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from spark_kbatch import Cluster
from spark_kbatch.cli.output import (
    LOOK,
    Table,
    confirm,
    delete_each,
    dry_run_option,
    print_json,
    print_line,
    text_of,
    yes_option,
)
from spark_kbatch.cli.parameters import examples, foreign_end_option, json_option, settings_given
from spark_kbatch.cli.paths import (
    client_options,
    complete_topic,
    open_cluster,
    open_readable,
    path_argument,
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
from spark_kbatch.model import GroupOffset, LogOffsets, PartitionInfo, TopicPartition
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
from spark_kbatch.terminal import counted, visible

if TYPE_CHECKING:
    from spark_kbatch import RemoteTopic
    from spark_kbatch.store.reports import ReplicaInfo


logger = logging.getLogger(__name__)

_KEYS_NOTE = """\
Existing records stay where they are. New records are spread over all partitions, so that
records with equal keys may lie in two partitions: those from before in another one."""

_REPLICA_COLUMNS = ("leader", "isr", "lag")


@click.command(
    epilog=examples("kbatch topics my-cluster", "kbatch topics broker:9092 readings --json")
)
@path_argument
@click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topic)
@click.option(
    "--internal", is_flag=True, help="Include internal topics, such as __consumer_offsets."
)
@click.option("--verbose", "-v", is_flag=True, help="Show a row for each partition, as for a named TOPIC.")  # fmt: skip
@foreign_end_option
@client_options
@json_option
def topics(
    path: str,
    names: Sequence[str],
    internal: bool,
    verbose: bool,
    foreign_end: str | None,
    client: Mapping[str, str],
    as_json: bool,
) -> None:
    """List topics, with their total offsets and bytes.

    There are as many records as offsets, or fewer: markers and aborted records of transactions take offsets, too.
    Bytes are all that take room, also of records that were overwritten or deleted and whose files are kept for now:
    `kbatch gc --dry-run` shows these, and until when. If a transaction is open, readers of committed records do not
    see yet what is held back: see `kbatch transactions`.

    With the name of a TOPIC, or with --verbose, show offsets, sizes and replicas by partition; --json always does.

    PATH is a cluster, a real broker's log dir, or HOST:PORT of a real cluster, which reports no sizes.
    The exit code is 1 if a partition cannot be read.
    """
    cluster = open_readable(path, client, foreign_end)
    if not cluster.is_remote:
        found = _listed_at_path(cluster, names, internal)
    else:
        found = _listed_remotely(cluster, names, internal)
    if as_json:
        for topic in found.topics:
            rows = [
                {
                    "partition": row.topic_partition.partition,
                    **row.as_json,
                    **(
                        {"error": error}
                        if (error := found.unreadable.get(row.topic_partition))
                        else {}
                    ),
                }
                for row in found.rows
                if row.topic_partition.topic == topic.name
            ]
            print_json({"topic": topic.name, "topic_id": topic.topic_id, "partitions": rows})
    elif found.topics or not found.damaged:
        show = _print_partitions if names or verbose else _print_topics
        show(found, cluster.address)
    for topic_partition, why in found.unreadable.items():
        click.echo(visible(f"kbatch: {topic_partition} cannot be read: {why}"), err=True)
    for damage in found.damaged.values():  # of topics that were left out; the first says enough
        raise damage
    if found.unreadable:
        sys.exit(1)


class _Row(NamedTuple):
    """One partition in the list of `kbatch topics`: its offsets, size, replicas and groups."""

    topic_partition: TopicPartition
    offsets: LogOffsets | None  # None if they cannot be asked for
    size_in_bytes: int | None
    replication: Mapping[str, Any]
    groups: Mapping[str, GroupOffset]

    @property
    def offsets_count(self) -> int | None:
        """The number of offsets from the partition's first to its next one; None if they are not known."""
        return None if self.offsets is None else self.offsets.offsets_count

    @property
    def held_back(self) -> int | None:
        """The number of offsets that readers of committed records wait for; None if it is not known."""
        return None if self.offsets is None else self.offsets.held_back

    @property
    def as_json(self) -> dict[str, Any]:
        offsets = (
            dict.fromkeys(LogOffsets._fields) if self.offsets is None else self.offsets._asdict()
        )
        size = {"size_in_bytes": self.size_in_bytes}
        return {**offsets, **size, **self.replication, **_groups_as_json(self.groups)}


class _Listing(NamedTuple):
    """The topics and partitions that `kbatch topics` shows, and damaged topics that it leaves out."""

    topics: Sequence[Topic | RemoteTopic]
    rows: Sequence[_Row]
    damaged: Mapping[str, KafkaStorageError]  # topics that were left out
    unreadable: Mapping[TopicPartition, str] = {}  # partitions without numbers; why


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
    rows = [
        _Row(
            row.topic_partition,
            row.offsets if row.offsets.log_end_offset >= 0 else None,
            row.size_in_bytes if row.offsets.log_end_offset >= 0 else None,
            _replication(replicas.get(row.topic_partition)),
            groups.get(row.topic_partition, {}),
        )
        for row in partitions
    ]
    unreadable = {row.topic_partition: row.error for row in partitions if row.error}
    return _Listing(chosen, rows, damaged, unreadable)


def _listed_remotely(cluster: Cluster, names: Sequence[str], internal: bool) -> _Listing:
    if names or internal:
        chosen = [cluster.topic(name) for name in names or cluster.topic_names(internal=True)]
    else:
        chosen = cluster.topics()  # asks once for all
    edges = _led_offsets(cluster, chosen)
    rows = [
        _Row(
            tp,
            edges.get(tp),
            None,
            {
                "leader": topic.leaders[n],
                "replicas": list(topic.replicas[n]),
                "isr": list(topic.isr[n]),
            },
            {},
        )
        for topic in map(_of_cluster, chosen)
        for n, tp in enumerate(partitions_of(topic))
    ]
    return _Listing(chosen, rows, {})


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


def _print_topics(found: _Listing, where: str) -> None:
    """Print a row for each topic, with the sums of its partitions."""
    by_topic: dict[str, list[_Row]] = {topic.name: [] for topic in found.topics}
    for row in found.rows:
        by_topic[row.topic_partition.topic].append(row)
    table = Table(f"Topics of {where}")
    table.add_texts("topic")
    has_sizes = any(row.size_in_bytes is not None for row in found.rows)
    table.add_numbers("partitions", "offsets", *["bytes"] * has_sizes)
    has_replicas = any(row.replication for row in found.rows)
    table.add_numbers(*["under-replicated"] * has_replicas)
    has_held = any(row.held_back for row in found.rows)
    table.add_numbers(*["held back"] * has_held)
    has_groups = any(row.groups for row in found.rows)
    table.add_texts(*["lag of groups"] * has_groups)
    for name, rows in by_topic.items():
        lacking = [row for row in rows if not _is_replicated(row.replication)]
        groups = list(dict.fromkeys(group for row in rows for group in row.groups))
        lags = {
            group: _sum(row.groups[group].lag for row in rows if group in row.groups)
            for group in groups
        }
        table.add_row(
            name,
            len(rows),
            _sum(row.offsets_count for row in rows),
            *[_sum(row.size_in_bytes for row in rows)] * has_sizes,
            *[len(lacking)] * has_replicas,
            *[_sum(row.held_back for row in rows)] * has_held,
            *[[f"{group}: {text_of(lag)}" for group, lag in lags.items()]] * has_groups,
        )
    table.print(if_empty=f"{where} has no topics yet.")


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of numbers; None if one of them is not known."""
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _is_replicated(replication: Mapping[str, Any]) -> bool:
    """Return True if all replicas of a partition are in sync."""
    return len(replication.get("isr", ())) == len(replication.get("replicas", ()))


def _print_partitions(found: _Listing, where: str) -> None:
    """Print a row for each partition."""
    table = Table(f"Partitions of {where}")
    table.add_texts("topic")
    has_sizes = any(row.size_in_bytes is not None for row in found.rows)
    table.add_numbers("partition", "first offset", "next offset", "offsets", *["bytes"] * has_sizes)
    of_replicas = [
        heading
        for heading in _REPLICA_COLUMNS
        if any(heading in row.replication for row in found.rows)
    ]
    has_held = any(row.held_back for row in found.rows)
    table.add_numbers(*["held back"] * has_held)
    table.add_texts(*of_replicas)
    has_groups = any(row.groups for row in found.rows)
    table.add_texts(*["lag of groups"] * has_groups)
    for row in found.rows:
        edges: tuple[int | None, ...] = (None, None, None)
        if row.offsets is not None:
            start, end = row.offsets.log_start_offset, row.offsets.high_watermark
            edges = (start, end, row.offsets_count)
        lags = [f"{group}: {text_of(one.lag)}" for group, one in row.groups.items()]
        table.add_row(
            *row.topic_partition,
            *edges,
            *[row.size_in_bytes] * has_sizes,
            *[row.held_back] * has_held,
            *(row.replication.get(heading) for heading in of_replicas),
            *[lags] * has_groups,
        )
    table.print(if_empty=f"{where} has no topics yet.")


def _replicas(cluster: Cluster, topics: Iterable[Topic]) -> dict[TopicPartition, list[ReplicaInfo]]:
    """Return the replicas of each partition; of none where the cluster has one log dir."""
    if not cluster.has("disks"):
        return {}
    has_one = False
    with contextlib.suppress(KafkaStorageError, UnknownTopicOrPartitionError):
        # It has a replica in each log dir.
        has_one = cluster.topic(TRANSACTION_STATE_TOPIC).replication_factor == 1
    return {} if has_one else cluster.replicas([topic.name for topic in topics])


def _replication(replicas: Sequence[ReplicaInfo] | None) -> dict[str, Any]:
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


def _groups_by_partition(
    cluster: Cluster,
) -> dict[TopicPartition, dict[str, GroupOffset]]:
    """Return consumer groups' offsets, by partition and group id; errors are only logged."""
    found: dict[TopicPartition, dict[str, GroupOffset]] = {}
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
                found.setdefault(tp, {})[group.group_id] = one
    return found


def _groups_as_json(groups: Mapping[str, GroupOffset]) -> dict[str, Any]:
    if not groups:
        return {}
    return {
        "groups": {
            name: {"committed_offset": one.committed_offset, "lag": one.lag}
            for name, one in groups.items()
        }
    }


@click.command("describe-topic", epilog=examples("kbatch describe-topic my-cluster readings"))
@path_argument
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic)
@client_options
@json_option
def describe_topic(
    path: str, names: Sequence[str], client: Mapping[str, str], as_json: bool
) -> None:
    """Show settings of topics, and their defaults.

    `kbatch topics` shows offsets and replicas. PATH may be HOST:PORT of a real cluster, which reports no
    defaults.
    """
    cluster = open_cluster(path, client)
    found = [cluster.topic(name) for name in dict.fromkeys(names)]
    if as_json:
        for topic in found:
            print_json(_topic_as_json(topic))
        return
    table = Table(f"Settings of topics of {cluster.address}")
    table.add_texts("topic", "setting", "value", "default")
    for topic in found:
        table.add_row(topic.name, "num.partitions", str(topic.partitions), None)
        table.add_row(topic.name, "replication.factor", str(topic.replication_factor), None)
        defaults = _by_key(TopicConfig()) if topic.config is not None else {}
        for key, value in _settings(topic).items():
            table.add_row(topic.name, key, _text(value), _text(defaults.get(key)))
    table.print()


def _settings(topic: Topic) -> dict[str, Any]:
    """Return a topic's settings by Kafka's keys, such as retention.ms; none if they are not known."""
    if topic.config is None:
        return dict(getattr(topic, "settings", {}))  # as a real cluster tells them
    return _by_key(topic.config)


def _by_key(config: TopicConfig) -> dict[str, Any]:
    return {topic_key(name): value for name, value in asdict(config).items()}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)  # a number here is no count, and has no commas


def _topic_as_json(topic: Topic | RemoteTopic) -> dict[str, Any]:
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
@path_argument
@topic_argument
@click.option("--partitions", type=click.IntRange(1, PARTITIONS_MAX), metavar="N", help="Number of partitions; by default 1 in a folder, and what a real cluster has as its default.")  # fmt: skip
@click.option("--replication-factor", type=click.IntRange(1, REPLICATION_FACTOR_MAX), metavar="N", help="Number of replicas, each in its own log dir or on its own broker; by default as for partitions.")  # fmt: skip
@click.option("--config", "given", metavar="KEY=VALUE", multiple=True, callback=settings_given, help="Set KEY of the topic to VALUE; may be repeated.")  # fmt: skip
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists with all that is given here.")  # fmt: skip
@click.option("--create/--no-create", default=True, show_default=True, help="Whether to create the cluster in a folder if there is none.")  # fmt: skip
@client_options
@json_option
def create_topic(
    path: str,
    topic: str,
    partitions: int | None,
    replication_factor: int | None,
    given: dict[str, str],
    if_not_exists: bool,
    create: bool,
    client: Mapping[str, str],
    as_json: bool,
) -> None:
    """Create TOPIC.

    PATH may be HOST:PORT of a real cluster, whose brokers say which settings there are.
    """
    cluster = open_cluster(path, client, create=create)
    try:
        made = cluster.create_topic(
            topic,
            partitions=partitions,
            replication_factor=replication_factor,
            config=given,
            exist_ok=if_not_exists,
        )
    except TopicAlreadyExistsError as error:
        if error.differs:
            raise
        raise ConfigError(
            f"topic {topic!r} already exists; choose another name, or give --if-not-exists"
        ) from None
    if as_json:
        print_json(_topic_as_json(made))
        return
    partitions_shown = f"{made.partitions} partition{'s' * (made.partitions != 1)}"
    copies = f"replication factor {made.replication_factor}"
    print_line(visible(f"topic {topic} has {partitions_shown}, {copies}"))


@click.command(
    "create-partitions", epilog=examples("kbatch create-partitions my-cluster readings 8")
)
@path_argument
@topic_argument
@click.argument("total", type=click.IntRange(1, PARTITIONS_MAX))
@client_options
@json_option
def create_partitions(
    path: str, topic: str, total: int, client: Mapping[str, str], as_json: bool
) -> None:
    """Add partitions to TOPIC, up to TOTAL in all.

    PATH may be HOST:PORT of a real cluster.
    """
    grown = open_cluster(path, client).create_partitions(topic, total)
    if as_json:
        print_json({"topic": topic, "num_partitions": grown.partitions})
    else:
        print_line(visible(f"topic {topic} has {grown.partitions} partitions"))
    click.echo(_KEYS_NOTE, err=True)


@click.command(
    "alter-topic",
    epilog=examples(
        "kbatch alter-topic my-cluster readings --config retention.ms=86400000",
        "kbatch alter-topic my-cluster readings --reset retention.ms",
    ),
)
@path_argument
@topic_argument
@click.option("--config", "given", metavar="KEY=VALUE", multiple=True, callback=settings_given, help="Set KEY to VALUE; may be repeated.")  # fmt: skip
@click.option("--reset", metavar="KEY", multiple=True, help="Reset KEY to its default; may be repeated.")  # fmt: skip
@client_options
@json_option
def alter_topic(
    path: str,
    topic: str,
    given: dict[str, str],
    reset: Sequence[str],
    client: Mapping[str, str],
    as_json: bool,
) -> None:
    """Change settings of TOPIC, and print all of them.

    PATH may be HOST:PORT of a real cluster, whose brokers say which settings there are.
    """
    twice = sorted(set(map(topic_key, given)) & set(map(topic_key, reset)))
    if twice:
        raise click.UsageError(f"{twice[0]!r} is given to both --config and --reset")
    cluster, changes = open_cluster(path, client), given | dict.fromkeys(reset)
    settings = _settings(cluster.alter_topic(topic, changes) if changes else cluster.topic(topic))
    if as_json:
        print_json({"topic": topic, "config": settings})
    else:
        for key, value in settings.items():
            print_line(visible(f"{key}={value}"))


@click.command("delete-topic", epilog=examples("kbatch delete-topic my-cluster readings --dry-run"))
@path_argument
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic)
@yes_option
@dry_run_option
@client_options
@json_option
def delete_topic(
    path: str,
    names: Sequence[str],
    yes: bool,
    dry_run: bool,
    client: Mapping[str, str],
    as_json: bool,
) -> None:
    """Delete topics with all their records.

    They are gone at once. Their files are deleted later, by `kbatch gc` or a commit, when the topic's
    file.delete.delay.ms has passed. PATH may be HOST:PORT of a real cluster.
    """
    cluster = open_cluster(path, client)
    contents = {name: _contents(cluster, name) for name in dict.fromkeys(names)}
    found: dict[str, tuple[str, dict[str, Any]]] = {
        name: (_summary(one), {"topic": name, **one}) for name, one in contents.items()
    }
    delete_each("topic", found, cluster.delete_topic, yes=yes, dry_run=dry_run, as_json=as_json)


def _contents(cluster: Cluster, name: str) -> dict[str, int | None]:
    """Return a topic's numbers of partitions, offsets and bytes; None where its logs cannot be read.

    Internal topics are refused.
    """
    if cluster.is_remote:
        return _contents_remotely(cluster, name)
    ensure_not_internal(name)
    partitions = cluster.topic(name).partitions
    try:
        rows = cluster.describe([name])
    except (KBatchError, OSError):
        return {"num_partitions": partitions, "offsets": None, "size_in_bytes": None}
    if any(row.error for row in rows):
        return {"num_partitions": partitions, "offsets": None, "size_in_bytes": None}
    offsets = sum(row.offsets.offsets_count for row in rows)
    size = sum(row.size_in_bytes for row in rows)
    return {"num_partitions": partitions, "offsets": offsets, "size_in_bytes": size}


def _contents_remotely(cluster: Cluster, name: str) -> dict[str, int | None]:
    topic = cluster.topic(name)
    _ensure_changeable(cluster, name)
    edges = _led_offsets(cluster, [topic])
    offsets = sum(one.offsets_count for one in edges.values())
    return {
        "num_partitions": topic.partitions,
        "offsets": offsets if len(edges) == topic.partitions else None,
        "size_in_bytes": None,
    }


def _ensure_changeable(cluster: Cluster, name: str) -> None:
    """Refuse a real cluster's own topic before the question, and in a dry run."""
    if name not in cluster.topic_names():
        raise ConfigError(f"topic {name!r} is the cluster's own, which alone changes it")


def _summary(contents: Mapping[str, int | None]) -> str:
    partitions, offsets, size = contents.values()
    held = f"{partitions} partition{'s' * (partitions != 1)}"
    if offsets is None:
        return f"{held}, whose logs cannot be read"
    held = f"{held}, {counted(offsets, 'offset')}"
    return held if size is None else f"{held}, {size:,} bytes"


def _partition_and_offset(
    _context: click.Context, _parameter: click.Parameter, words: Sequence[str]
) -> dict[int, int]:
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
@path_argument
@topic_argument
@click.argument(
    "offsets",
    metavar="PARTITION:OFFSET...",
    nargs=-1,
    required=True,
    callback=_partition_and_offset,
)
@yes_option
@dry_run_option
@client_options
@json_option
def delete_records(
    path: str,
    topic: str,
    offsets: dict[int, int],
    yes: bool,
    dry_run: bool,
    client: Mapping[str, str],
    as_json: bool,
) -> None:
    """Delete the first records of partitions of TOPIC.

    These are the records below OFFSET; -1 deletes all records. PATH may be HOST:PORT of a real cluster.
    """
    cluster = open_cluster(path, client)
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
        if as_json:
            row = {"topic": topic, "partition": tp.partition, "log_start_offset": starts[tp]}
            print_json({**row, "offsets": count, "deleted": not dry_run})
            continue
        start = "would start" if dry_run else "starts"
        outcome = "would be deleted" if dry_run else "deleted"
        print_line(
            visible(f"{tp} {start} at offset {starts[tp]}: {counted(count, 'offset')} {outcome}")
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
    if not cluster.is_remote:
        ensure_not_internal(topic)
    else:
        _ensure_changeable(cluster, cluster.topic(topic).name)
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
