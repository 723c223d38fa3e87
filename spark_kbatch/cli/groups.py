"""Commands on consumer groups, and on offsets: those of a group, or by time.

`kbatch groups` shows consumer groups, `groups reset` moves their offsets, and `groups delete`
deletes them; `kbatch offsets` finds offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import click

from spark_kbatch import Cluster
from spark_kbatch.cli.output import (
    Row,
    Table,
    delete_each,
    dry_run_option,
    is_json,
    json_option,
    look_option,
    number,
    print_json,
    print_line,
    show,
    text,
    text_of,
    word,
    yes_option,
)
from spark_kbatch.cli.parameters import (
    TIME_HELP,
    ensure_one_of,
    examples,
    foreign_end_option,
    isolation_level_option,
    parsed,
    refuse_beside,
    time_ms,
)
from spark_kbatch.cli.paths import (
    Place,
    client_options,
    complete_topic,
    place_argument,
    served_at,
    topic_argument,
)
from spark_kbatch.errors import ConfigError, GroupNotEmptyError
from spark_kbatch.model import ConsumerGroup, GroupOffset, OffsetAndTimestamp, TopicPartition
from spark_kbatch.terminal import counted, iso_time

logger = logging.getLogger(__name__)

_EDGES = ("earliest", "latest", "max-timestamp")
_WITHOUT_MEMBERS = {"Empty", "Dead", ""}  # states; empty where a broker does not tell


@click.command(
    epilog=examples(
        "kbatch groups broker:9092 billing",
        "kbatch groups /mnt/backup/kafka-logs --json",
    )
)
@place_argument()
@click.argument("group", metavar="[GROUP]", required=False)
@foreign_end_option
@client_options
@json_option
def groups(place: Place, group: str | None) -> None:
    """List consumer groups, and how far each is behind.

    With the name of a GROUP, show its members, and its offset and lag in each partition. A server need not
    run: groups are shown as they were stored last, which a rebalance may be changing now. `kbatch groups reset`
    moves a group's offsets. PATH may be HOST:PORT of a real cluster, or a broker's log directory or
    a backup of it, where groups are only read.
    """
    cluster = place.open()
    found = cluster.groups() if group is None else [_find_group(cluster, group)]
    server = served_at(cluster)
    if server is not None:
        where = f"served at {server}"
    elif cluster.has("server"):
        where = "not served now"
    else:
        where = "in a bucket" if cluster.has("catalog") else "read as its broker left it"
    rows = [{**_group_as_json(one), "server": server} for one in found]
    if group is not None and not is_json():
        _print_group(rows[0], where)
        return
    title = cluster.address if cluster.is_remote else f"{cluster.address}, {where}"
    show(
        f"Consumer groups of {title}",
        _GROUPS,
        rows,
        f"{cluster.address} has no consumer groups; it is {where}.",
    )


def _find_group(cluster: Cluster, group_id: str) -> ConsumerGroup:
    """Return the consumer group with this id, or raise an error that names the existing ones.

    Raises:
        ConfigError: there is no such group; names the existing ones.
    """
    found = {one.group_id: one for one in cluster.groups()}
    if group_id not in found:
        raise ConfigError(
            f"consumer group {group_id!r} does not exist in {cluster.address}; its groups: "
            f"{', '.join(found) or 'none'}"
        )
    return found[group_id]


@click.command(
    "groups reset",
    epilog=examples(
        "kbatch groups reset my-cluster billing --to-earliest --dry-run",
        "kbatch groups reset my-cluster billing --topic readings --to-datetime 2024-10-25T08:00:00Z",
    ),
)
@place_argument()
@click.argument("group")
@click.option("--to-earliest", is_flag=True, help="Go on at the first record.")
@click.option("--to-latest", is_flag=True, help="Go on at what comes next, after the last record.")  # fmt: skip
@click.option("--to-offset", type=click.IntRange(0), metavar="OFFSET", help="Go on at this offset.")  # fmt: skip
@click.option("--to-datetime", "to_ms", metavar="TIME", callback=parsed(time_ms), help=f"Go on at the first record of this time or later: {TIME_HELP}.")  # fmt: skip
@click.option("--topic", "-t", "topics", metavar="TOPIC", multiple=True, shell_complete=complete_topic, help="Move the offsets of all partitions of this topic; may be repeated.  [default: partitions in which the group has offsets]")  # fmt: skip
@dry_run_option(help="Only show what would be done.")
@client_options
@json_option
def reset(
    place: Place,
    group: str,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_ms: int | None,
    topics: Sequence[str],
    dry_run: bool,
) -> None:
    """Move the offsets of a consumer GROUP.

    The group must not have members, and no loop of `Cluster.follow` go on with it, which would end
    with an error; it goes on from there once it has some again. With --topic it need not
    exist yet. An offset outside of a log becomes the start or the end of the log, and a time after the last
    record the end, with a warning. For each partition the old offset is shown beside the new one.

    A server of PATH may run: it is asked to do it. PATH may be HOST:PORT of a real cluster.
    """
    ensure_one_of("--to-earliest", "--to-latest", "--to-offset", "--to-datetime", is_needed=True)
    cluster = _open_to_change(place, group)
    before = _offsets_of_idle_group(cluster, group, topics)
    partitions = [tp for name in dict.fromkeys(topics) for tp in cluster.partitions(name)]
    if not topics:
        partitions = [
            tp
            for tp, one in before.items()
            if one.committed_offset is not None and one.log_end_offset is not None
        ]
    after = _new_offsets(
        cluster,
        partitions,
        "earliest" if to_earliest else "latest" if to_latest else None,
        to_offset,
        to_ms,
    )
    if not dry_run:
        cluster.alter_group_offsets(group, after)
    rows = [
        {
            "group": group,
            **tp._asdict(),
            "old_offset": before[tp].committed_offset if tp in before else None,
            "new_offset": offset,
        }
        for tp, offset in after.items()
    ]
    show(
        f"Offsets of group {group}{', as they would be' * dry_run}",
        _MOVED,
        rows,
        f"Group {group} has no offsets; name its topics with --topic.",
    )


@click.command(
    "groups delete", epilog=examples("kbatch groups delete my-cluster billing --dry-run")
)
@place_argument()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@yes_option
@look_option
@client_options
@json_option
def delete(place: Place, names: Sequence[str], yes: bool, dry_run: bool) -> None:
    """Delete consumer GROUPs, with their offsets.

    A group that has members is refused. A server of PATH may run: it is asked to do it. PATH may be HOST:PORT of a real cluster.
    """
    cluster = _open_to_change(place, names[0])
    chosen = {name: _find_group(cluster, name) for name in names}
    found = {}
    for name, group in chosen.items():
        _ensure_idle(cluster, group)
        held = sum(one.committed_offset is not None for one in group.offsets.values())
        found[name] = counted(held, "offset"), _group_as_json(group)
    delete_each("group", found, cluster.delete_group, yes=yes, dry_run=dry_run)


def _open_to_change(place: Place, group: str) -> Cluster:
    """Open the place at PATH; refuse one that is only read, whatever its group is like."""
    cluster = place.open()
    if not cluster.has("catalog"):
        cluster.alter_group_offsets(group, {})  # raises ConfigError, which says what to do
    return cluster


def _ensure_idle(cluster: Cluster, group: ConsumerGroup) -> None:
    """Refuse a group that has members.

    Raises:
        GroupNotEmptyError: it has.
    """
    if group.members or group.state not in _WITHOUT_MEMBERS:
        raise GroupNotEmptyError(group.group_id, cluster.address)


def _offsets_of_idle_group(
    cluster: Cluster, group_id: str, topics: Sequence[str]
) -> Mapping[TopicPartition, GroupOffset]:
    """Return the offsets of a group that may be moved; none of a new group, for which topics are named.

    Raises:
        GroupNotEmptyError: it has members.
        ConfigError: there is no such group, and no topic is named.
    Source: Kafka tools/.../consumer/group/ConsumerGroupCommand.java resetOffsets.
    """
    known = next((one for one in cluster.groups() if one.group_id == group_id), None)
    if known is None:
        return {} if topics else _find_group(cluster, group_id).offsets
    _ensure_idle(cluster, known)
    return known.offsets


def _new_offsets(
    cluster: Cluster,
    partitions: Sequence[TopicPartition],
    edge: str | None,
    to_offset: int | None,
    to_ms: int | None,
) -> dict[TopicPartition, int]:
    """Return where a group is to go on in each partition, by an edge, an offset or a time.

    It is inside of the log.

    Records of open transactions count, by time too: a broker that looks among committed records alone finds none
    past the last stable offset, and the group would skip them.
    """

    def look_up(time: str | int) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        wanted = dict.fromkeys(partitions, time)
        return cluster.list_offsets(wanted, isolation_level="read_uncommitted")

    def edges(which: str) -> dict[TopicPartition, int]:
        return {tp: one.offset for tp, one in look_up(which).items() if one is not None}

    if edge is not None:
        return edges(edge)
    starts, ends = edges("earliest"), edges("latest")
    if to_offset is None:
        assert to_ms is not None
        found = look_up(to_ms)
        for tp, one in found.items():
            if one is None and ends[tp] > starts[tp]:
                logger.warning(
                    "%s has no record of %s or later: set to its end, offset %d",
                    tp, iso_time(to_ms), ends[tp],
                )  # fmt: skip
        return {tp: ends[tp] if one is None else one.offset for tp, one in found.items()}
    after = {tp: min(max(to_offset, starts[tp]), ends[tp]) for tp in partitions}
    for tp, offset in after.items():
        if offset != to_offset:
            logger.warning(
                "offset %d of %s is outside of the log, which has %d to %d (exclusive): set to %d",
                to_offset, tp, starts[tp], ends[tp], offset,
            )  # fmt: skip
    return after


def _group_as_json(group: ConsumerGroup) -> Row:
    row = group._asdict()
    return {
        "group": row.pop("group_id"),
        **row,
        "lag": group.lag,
        "members": [one._asdict() for one in group.members],
        "offsets": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                **one._asdict(),
                "commit_timestamp": iso_time(one.commit_timestamp),
            }
            for tp, one in group.offsets.items()
        ],
    }


_PARTITION = (text("topic"), number("partition"))
_GROUPS = (
    text("group"),
    text("state"),
    text("topics", lambda group: [*dict.fromkeys(one["topic"] for one in group["offsets"])]),
    number("members", lambda group: len(group["members"])),
    number("lag"),
)
_MOVED = (*_PARTITION, number("old offset"), number("new offset"))
_COMMITTED = (
    *_PARTITION,
    number("committed offset"),
    number("next offset", "log_end_offset"),
    number("lag"),
    word("committed at", "commit_timestamp"),
)
_MEMBERS = (
    text("member", "member_id"),
    text("instance", lambda member: member["instance_id"] or None),
    text("client", "client_id"),
    text("host", "client_host"),
    text("partitions", lambda member: [*member["partitions"]]),
)


def _print_group(group: Row, where: str) -> None:
    generation = f", generation {n}" if (n := group["generation"]) >= 0 else ""  # if told
    title = f"Group {group['group']}: {group['state']}{generation}, {where}"
    Table(title, _COMMITTED, group["offsets"]).print(if_empty=f"{title}; it has no partitions.")
    if group["members"]:
        print_line("")
        Table("Members", _MEMBERS, group["members"]).print()


def _time_or_edge(given: str) -> int | str:
    if given in (*_EDGES, "max_timestamp"):
        return given.replace("-", "_")
    return time_ms(given, *_EDGES)  # never negative, as what stands for the words is


@click.command(
    epilog=examples(
        "kbatch offsets my-cluster readings --time 2024-10-25T08:00:00+02:00",
        "kbatch offsets my-cluster readings --group billing",
    )
)
@place_argument()
@topic_argument
@click.option("--time", "wanted", metavar="TIME", callback=parsed(_time_or_edge), default="latest", show_default=True, help=f"earliest, latest, max-timestamp, or a time: {TIME_HELP}.")  # fmt: skip
@click.option(
    "--group", "-g", metavar="GROUP", help="Print this consumer group's committed offsets instead."
)
@isolation_level_option
@foreign_end_option
@client_options
@json_option
def offsets(
    place: Place, topic: str, wanted: int | str, group: str | None, isolation_level: str
) -> None:
    """Find offsets of TOPIC by time, or of a group.

    For each partition, that is the first offset whose record has the given time or a later one.

    A line has partition, offset and the record's time, separated by tabs; "-" where there is none.
    latest stands for the offset of the next record, max-timestamp for the record with the largest time.

    With --group, a line has partition, committed offset, the offset of the next record, and the lag, which
    is the difference; "-" where the group has committed nothing. PATH may be HOST:PORT of a real cluster.
    """
    refuse_beside("--group", group, "--time", "--isolation-level")
    cluster = place.open()
    rows = (
        _offsets_by_time(cluster, topic, wanted, isolation_level)
        if group is None
        else _offsets_of_group(cluster, topic, group)
    )
    for row in rows:
        if is_json():
            print_json(row)
        else:
            print_line("\t".join(map(text_of, row.values())))


def _offsets_by_time(
    cluster: Cluster, topic: str, wanted: int | str, isolation_level: str
) -> Iterator[Row]:
    asked = dict.fromkeys(cluster.partitions(topic), wanted)
    found = cluster.list_offsets(asked, isolation_level=isolation_level)
    for tp, record in sorted(found.items()):
        offset, timestamp = record or (None, -1)
        yield {"partition": tp.partition, "offset": offset, "timestamp": iso_time(timestamp)}


def _offsets_of_group(cluster: Cluster, topic: str, group_id: str) -> Iterator[Row]:
    if not cluster.has("groups"):
        raise ConfigError(
            f"no consumer groups are kept in {cluster.address}; --group is for a cluster in a "
            "folder or a bucket, or a real one"
        )
    partitions = cluster.partitions(topic)
    group = _find_group(cluster, group_id)
    ends = cluster.list_offsets(
        dict.fromkeys(partitions, "latest"), isolation_level="read_uncommitted"
    )
    for tp in partitions:
        one, end = group.offsets.get(tp), ends[tp]
        yield {
            "partition": tp.partition,
            "committed_offset": one and one.committed_offset,
            "log_end_offset": end and end.offset,
            "lag": one and one.lag,
        }
