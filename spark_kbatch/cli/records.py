"""Records: print them, find their offsets, delete the first ones."""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from spark_kbatch.cli.groups import print_offsets_of_group
from spark_kbatch.cli.output import iso_time, print_json, print_line, text_of
from spark_kbatch.cli.parameters import foreign_end_option, isolation_level_option, json_option
from spark_kbatch.cli.places import (
    client_options,
    ensure_goes_with,
    open_cluster,
    open_readable,
)
from spark_kbatch.model import INT_MAX, IsolationLevel, TopicPartition
from spark_kbatch.opening import open_reader, open_remote_reader
from spark_kbatch.options.remote import is_address
from spark_kbatch.options.write import MAX_DECOMPRESSED_BATCH_BYTES
from spark_kbatch.terminal import field, to_json, visible

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")


def _offset_or(word: str) -> Callable[[click.Context, click.Parameter, str], int | str]:
    """Return an option's callback that accepts an offset, or a word in place of one."""

    def convert(_context: click.Context, _parameter: click.Parameter, text: str) -> int | str:
        if text == word:
            return text
        if text.isascii() and text.isdigit():
            return int(text)
        raise click.BadParameter(f"{text!r} is neither an offset nor {word!r}")

    return convert


@click.command()
@click.argument("path")
@click.argument("topic")
@click.option("--partition", "-p", "partitions", type=click.IntRange(0), multiple=True, help="Print only this partition; may be repeated.")  # fmt: skip
@click.option(
    "--start",
    callback=_offset_or("earliest"),
    default="earliest",
    show_default=True,
    help="Offset to start at.",
)
@click.option(
    "--end",
    callback=_offset_or("latest"),
    default="latest",
    show_default=True,
    help="Offset to stop before.",
)
@click.option("--max-records", "-n", type=click.IntRange(1), help="Stop after this many records.")
@click.option(
    "--max-decompressed-batch-bytes",
    type=click.IntRange(1, INT_MAX),
    default=MAX_DECOMPRESSED_BATCH_BYTES,
    show_default=True,
    help="Largest size that one compressed batch may expand to; a larger one is an error.",
)
@isolation_level_option
@foreign_end_option
@client_options
@json_option
def consume(
    path: str,
    topic: str,
    partitions: Sequence[int],
    start: int | str,
    end: int | str,
    max_records: int | None,
    max_decompressed_batch_bytes: int,
    isolation_level: str,
    foreign_end: str,
    client: Mapping[str, str],
    as_json: bool,
) -> None:
    r"""Print the records of TOPIC, partition by partition, in offset order.

    A line has partition, offset, time, key, value and headers, separated by tabs. Null is \N. Characters
    that are not printable are escaped (\t, \n, \x1b, \u202e), as are bytes that are not UTF-8 (\xff)
    and backslashes (\\); in headers also "=" and ",". With --json, bytes that are not UTF-8 are
    {"base64": "..."}. PATH may be HOST:PORT of a real cluster.
    """
    records = _records(
        path, client, foreign_end, topic, partitions, start, end, isolation_level,
        max_decompressed_batch_bytes,
    )  # fmt: skip
    shown = _as_object if as_json else _as_line
    for number, record in enumerate(records, 1):
        print_line(shown(record))
        if number == max_records:
            break


def _records(
    path: str,
    client: Mapping[str, str],
    foreign_end: str,
    topic: str,
    partitions: Sequence[int],
    start: int | str,
    end: int | str,
    isolation_level: str,
    max_decompressed_batch_bytes: int,
) -> Iterator[dict[str, Any]]:
    ensure_goes_with(path, client)
    if is_address(path):
        reader = open_remote_reader({"bootstrap.servers": path, **client})
    else:
        reader = open_reader(path, foreign_end=foreign_end)
    ranges = reader.offset_ranges(
        topic,
        partitions=partitions or None,
        start=start,
        end=end,
        isolation_level=isolation_level,
    )
    isolation = IsolationLevel(isolation_level)
    for wanted in ranges:
        rows = (
            row
            for batch in reader.read_range(
                wanted,
                _COLUMNS[1:],
                isolation,
                max_decompressed_batch_bytes=max_decompressed_batch_bytes,
            )
            for row in batch.to_pylist()
        )
        for row in rows:
            headers = row["headers"] or []
            yield {
                "partition": wanted.topic_partition.partition,
                "offset": row["offset"],
                "timestamp": iso_time(row["timestamp"]),
                "key": row["key"],
                "value": row["value"],
                "headers": [(header["key"], header["value"]) for header in headers],
            }


def _as_line(record: dict[str, Any]) -> str:
    edges = (text_of(record[name]) for name in _COLUMNS[:3])
    headers = ", ".join(f"{field(k, '=,')}={field(v, ',')}" for k, v in record["headers"])
    return "\t".join((*edges, field(record["key"]), field(record["value"]), headers or "-"))


def _as_object(record: dict[str, Any]) -> str:
    headers = [[key, _text(value)] for key, value in record["headers"]]
    texts = {"key": _text(record["key"]), "value": _text(record["value"]), "headers": headers}
    return to_json(record | texts)


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _time_or_edge(_context: click.Context, _parameter: click.Parameter, text: str) -> int | str:
    """Parse a time in ms or ISO 8601 (UTC unless it has a zone), or a word in place of one."""
    if text in ("earliest", "latest", "max-timestamp"):
        return text.replace("-", "_")
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time; accepted: earliest, latest, max-timestamp, milliseconds since "
            "1970, or a time such as 2024-10-25T08:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return (moment - _EPOCH) // datetime.timedelta(milliseconds=1)


@click.command()
@click.argument("path")
@click.argument("topic")
@click.option("--time", "-t", "wanted", callback=_time_or_edge, default="latest", show_default=True, help="Milliseconds since 1970, an ISO 8601 time, earliest, latest or max-timestamp.")  # fmt: skip
@click.option("--group", "-g", help="Print this consumer group's committed offsets instead.")
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
    foreign_end: str,
    client: Mapping[str, str],
    as_json: bool,
) -> None:
    """Print, for each partition of TOPIC, the first offset whose record has the given time or a later one.

    A line has partition, offset and the record's time, separated by tabs; "-" where there is none.
    latest stands for the offset of the next record, max-timestamp for the record with the largest time.

    With --group, a line has partition, committed offset, the offset of the next record, and the lag, which
    is the difference; "-" where the group has committed nothing. PATH may be HOST:PORT of a real cluster.
    """
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


@click.command("delete-records")
@click.argument("path")
@click.argument("topic")
@click.argument(
    "offsets",
    metavar="PARTITION:OFFSET...",
    nargs=-1,
    required=True,
    callback=_partition_and_offset,
)
@client_options
@json_option
def delete_records(
    path: str, topic: str, offsets: dict[int, int], client: Mapping[str, str], as_json: bool
) -> None:
    """Delete all records below an offset in partitions of TOPIC; -1 deletes all records.

    PATH may be HOST:PORT of a real cluster.
    """
    wanted = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
    for tp, offset in sorted(open_cluster(path, client).delete_records(wanted).items()):
        if as_json:
            print_json({"topic": topic, "partition": tp.partition, "log_start_offset": offset})
        else:
            print_line(visible(f"{tp} starts at offset {offset}"))
