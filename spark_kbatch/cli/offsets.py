"""`kbatch offsets`: finds offsets by time, or those of a consumer group."""

from __future__ import annotations

from collections.abc import Mapping

import click

from spark_kbatch.cli.groups import print_offsets_of_group
from spark_kbatch.cli.output import iso_time, print_json, print_line, text_of
from spark_kbatch.cli.parameters import (
    TIME_HELP,
    examples,
    foreign_end_option,
    isolation_level_option,
    json_option,
    refuse_beside,
    time_ms,
)
from spark_kbatch.cli.paths import client_options, open_readable, path_argument, topic_argument


def _time_or_edge(_context: click.Context, _parameter: click.Parameter, text: str) -> int | str:
    """Parse a time in ms or ISO 8601, or "earliest", "latest" or "max-timestamp" in place of one."""
    if text in ("earliest", "latest", "max-timestamp", "max_timestamp"):
        return text.replace("-", "_")
    found = time_ms(text)
    if found is None or found < 0:  # Negative ones stand for the words above.
        raise click.BadParameter(
            f"{text!r} is not a time since 1970; accepted: earliest, latest, max-timestamp, "
            "milliseconds, or a time such as 2024-10-25T08:00:00Z"
        )
    return found


@click.command(
    epilog=examples(
        "kbatch offsets my-cluster readings --time 2024-10-25T08:00:00+02:00",
        "kbatch offsets my-cluster readings --group billing",
    )
)
@path_argument
@topic_argument
@click.option("--time", "wanted", metavar="TIME", callback=_time_or_edge, default="latest", show_default=True, help=f"earliest, latest, max-timestamp, or a time: {TIME_HELP}.")  # fmt: skip
@click.option(
    "--group", "-g", metavar="GROUP", help="Print this consumer group's committed offsets instead."
)
@isolation_level_option
@foreign_end_option
@client_options
@json_option
def offsets(
    path: str,
    topic: str,
    wanted: int | str,
    group: str | None,
    isolation_level: str,
    foreign_end: str | None,
    client: Mapping[str, str],
    as_json: bool,
) -> None:
    """Find offsets of TOPIC by time, or of a consumer group.

    For each partition, that is the first offset whose record has the given time or a later one.

    A line has partition, offset and the record's time, separated by tabs; "-" where there is none.
    latest stands for the offset of the next record, max-timestamp for the record with the largest time.

    With --group, a line has partition, committed offset, the offset of the next record, and the lag, which
    is the difference; "-" where the group has committed nothing. PATH may be HOST:PORT of a real cluster.
    """
    refuse_beside("--group", group, "--time", "--isolation-level")
    cluster = open_readable(path, client, foreign_end)
    if group is not None:
        print_offsets_of_group(cluster, topic, group, as_json)
        return
    asked = dict.fromkeys(cluster.partitions(topic), wanted)
    found = cluster.list_offsets(asked, isolation_level=isolation_level)
    for topic_partition, record in sorted(found.items()):
        offset, timestamp = record or (None, -1)
        row = {
            "partition": topic_partition.partition,
            "offset": offset,
            "timestamp": iso_time(timestamp),
        }
        if as_json:
            print_json(row)
        else:
            print_line("\t".join(map(text_of, row.values())))
