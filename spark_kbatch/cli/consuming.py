r"""`kbatch consume`: prints records of topics, between offsets or times, and new ones as they come.

They are printed as fields, JSON, values alone, or by a format string as in kcat:

    %t topic    %p partition    %o offset    %T time in ms, -1 for none
    %k key      %v or %s value  %h headers   %K size of the key, %S of the value, -1 for null
    %% a percent sign           \n \t \r \\ \xHH

Nothing is added, so a line ends where the format says so. A null key or value is nothing, a null header is
NULL, as in kcat. Keys, values and headers are written as they are, but to a terminal only what is printable:
there they are escaped as in a line of fields.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import select
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import click
import pyarrow as pa
from click.core import ParameterSource

from spark_kbatch.cli.output import (
    asked_to_stop,
    is_json,
    is_terminal,
    json_option,
    raise_first,
    warn,
    whole_pipe,
)
from spark_kbatch.cli.parameters import (
    TIME_HELP,
    ensure_beside,
    ensure_one_of,
    examples,
    foreign_end_option,
    gathered,
    given,
    isolation_level_option,
    max_decompressed_option,
    parsed,
    partitions_option,
    registry_options,
    time_ms,
    where_option,
)
from spark_kbatch.cli.paths import Place, client_options, complete_topic, place_argument
from spark_kbatch.columns.reading import seen_by_condition, shown_as_json
from spark_kbatch.errors import (
    UNREADABLE,
    ConfigError,
    CorruptRecordError,
    KBatchError,
    going_on,
)
from spark_kbatch.model import IsolationLevel, LogOffsets, OffsetRange, TopicPartition
from spark_kbatch.opening.stores import open_following
from spark_kbatch.options.values import PERMISSIVE, parse_value_keywords
from spark_kbatch.record.lines import Kind, Layout, Lines, Style, field_layout, json_layout
from spark_kbatch.terminal import visible

logger = logging.getLogger(__name__)

_FORMATS = click.Choice(["avro", "json"])
_FRAMINGS = click.Choice(["confluent", "header", "none"])
_BOUND = re.compile(
    r"(?:(?:(?P<topic>[^:]+):)?(?P<partition>[0-9]{1,10}):)?(?P<offset>[0-9]{1,19}|earliest|latest)"
)
_KINDS = {
    "t": Kind.TOPIC,
    "p": Kind.PARTITION,
    "o": Kind.OFFSET,
    "T": Kind.TIME_MS,
    "k": Kind.KEY,
    "v": Kind.VALUE,
    "s": Kind.VALUE,
    "h": Kind.HEADERS,
    "K": Kind.KEY_SIZE,
    "S": Kind.VALUE_SIZE,
}
# What is said of a --format that is none, by what was meant.
_NO_FORMATS = {
    "json": "--json prints JSON lines, --raw values alone",
    "csv": "`kbatch export` writes CSV",
    "parquet": "`kbatch export` writes Parquet",
    **dict.fromkeys(("avro", "string", "binary"), "--value-format says what values are"),
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\"}
_PIECE = re.compile(
    r"%(?P<kind>.?)|\\x(?P<byte>[0-9a-fA-F]{2})|\\(?P<escape>.?)|(?P<text>[^%\\]+)", re.DOTALL
)


class _Bounds(NamedTuple):
    """The start or end offsets that a command names: one for all partitions, others for single ones."""

    of_all: int | str
    of_some: Mapping[tuple[str | None, int], int | str]

    def given(self, tp: TopicPartition) -> int | str:
        """Return the offset or the word that is given for a partition."""
        word = self.of_some.get((tp.topic, tp.partition))
        return self.of_some.get((None, tp.partition), self.of_all) if word is None else word

    def of(self, tp: TopicPartition, edges: LogOffsets, isolation: IsolationLevel) -> int:
        """Return a partition's start or end offset, with "earliest" and "latest" resolved."""
        word = self.given(tp)
        if word == "earliest":
            return edges.log_start_offset
        return edges.end_offset(isolation) if word == "latest" else int(word)


def _bounds(default: str, words: Sequence[str]) -> _Bounds:
    """Parse the offsets given to an option, by partition or for all."""
    of_all: int | str | None = None
    of_some: dict[tuple[str | None, int], int | str] = {}
    for word in (one for text in words for one in text.split(",")):
        found = _BOUND.fullmatch(word)
        if found is None:
            raise click.BadParameter(
                f"{word!r} is not an offset, 'earliest', 'latest', PARTITION:OFFSET or "
                "TOPIC:PARTITION:OFFSET"
            )
        text = found["offset"]
        offset = int(text) if text.isdigit() else text
        if found["partition"] is None:
            if of_all is not None:
                raise click.BadParameter(f"{of_all} and {offset} are both for all partitions")
            of_all = offset
        elif of_some.setdefault((found["topic"], int(found["partition"])), offset) != offset:
            raise click.BadParameter(f"partition {word.rpartition(':')[0]} is given twice")
    return _Bounds(default if of_all is None else of_all, of_some)


def _parse_format(text: str) -> list[bytes | Kind]:
    parts: list[bytes | Kind] = []
    for found in _PIECE.finditer(text):
        kind, escape = found["kind"], found["escape"]
        if kind is not None:
            if kind != "%" and kind not in _KINDS:
                accepted = ", ".join(f"%{letter}" for letter in (*_KINDS, "%"))
                raise click.BadParameter(f"'%{kind}' is not known; accepted: {accepted}")
            parts.append(b"%" if kind == "%" else _KINDS[kind])
        elif found["byte"] is not None:
            parts.append(bytes([int(found["byte"], 16)]))
        elif escape is not None:
            if escape not in _ESCAPES:
                raise click.BadParameter(
                    rf"'\{escape}' is not known; accepted: \n, \t, \r, \\, \x and two hex digits"
                )
            parts.append(_ESCAPES[escape])
        else:
            parts.append(found["text"].encode(errors="surrogateescape"))
    if "%" not in text:
        ours = _NO_FORMATS.get(text.strip().lower(), _NO_FORMATS["json"])
        raise click.BadParameter(f"{text!r} names no field, such as %v; {ours}")
    return parts


def _layout_of(
    parts: list[bytes | Kind] | None, *, raw: bool, with_topic: bool, to_terminal: bool
) -> Layout:
    ensure_one_of("--json", "--raw", "--format")
    if is_json():
        return json_layout()
    if raw:
        parts = [Kind.VALUE, b"\n"]
    if parts is None:
        return field_layout(with_topic=with_topic)
    return Layout(parts, Style.FIELD if to_terminal else Style.RAW)


_BOUND_HELP = "an offset, earliest or latest; for one partition PARTITION:OFFSET or TOPIC:PARTITION:OFFSET; several with commas"


# What of a partition is printed, which the command gets as its argument `bounds`.
_bounds_options = gathered(
    "bounds",
    [
        click.option("--start", metavar="OFFSET,...", multiple=True, callback=parsed(functools.partial(_bounds, "earliest")), help=f"Where to start: {_BOUND_HELP}.  [default: earliest]"),
        click.option("--end", metavar="OFFSET,...", multiple=True, callback=parsed(functools.partial(_bounds, "latest")), help="Where to stop (exclusive), in the same form.  [default: latest]"),
        click.option("--from", "from_ms", metavar="TIME", callback=parsed(time_ms), help=f"Start at the first record of this time or later, in each partition: {TIME_HELP}."),
        click.option("--to", "to_ms", metavar="TIME", callback=parsed(time_ms), help="Stop before the first record of this time or later."),
        click.option("--last", type=click.IntRange(1), metavar="N", help="Print only the last N records of each partition."),
    ],
)  # fmt: skip
# How keys and values are read and printed, which the command gets as its argument `formats`.
_formats_options = gathered(
    "formats",
    [
        click.option(
            "--value-format",
            type=_FORMATS,
            help="Print values as JSON on one line: of Avro, each as the schema has it that wrote it.",
        ),
        click.option("--key-format", type=_FORMATS, help="Print keys so."),
        click.option("--value-schema", metavar="SCHEMA", help="Read values as one schema: latest, id:7, version:3, file:order.avsc, or a schema as JSON; JSON also as a DDL, such as 'id bigint'."),
        click.option("--key-schema", metavar="SCHEMA", help="The same for keys."),
        click.option("--value-framing", type=_FRAMINGS, help="What names the schema of a value: Confluent's bytes in front of it, a header of the record, or nothing.  [default: confluent with a registry]"),
        click.option("--key-framing", type=_FRAMINGS, help="The same for keys."),
        click.option("--json-lenient", metavar="NAMES", help="What is no error in JSON: zone, digits."),
    ],
)  # fmt: skip


@click.command(
    epilog=examples(
        r"kbatch consume broker:9092 readings --follow --format '%p:%o %k=%v\n'",
        "kbatch consume broker:9092 orders --value-format avro --registry http://localhost:8081 --json",
    )
)
@place_argument()
@click.argument(
    "topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic
)
@partitions_option(help="Print only this partition; may be repeated.")
@_bounds_options
@click.option(
    "--max-records", "-n", type=click.IntRange(1), metavar="N", help="Stop after N records."
)
@where_option
@click.option("--follow", "-f", is_flag=True, help="Go on with records as they come, until SIGINT or SIGTERM.")  # fmt: skip
@click.option("--format", "parts", metavar="FORMAT", callback=parsed(_parse_format), help=r"Print each record in this format: %t topic, %p partition, %o offset, %T time in ms, %k key, %v value, %h headers, %K and %S sizes of key and value, \n, \t, \xHH.")  # fmt: skip
@click.option("--raw", is_flag=True, help="Print values alone, as they are, each with a newline after it.")  # fmt: skip
@_formats_options
@click.option(
    "--permissive",
    is_flag=True,
    help='Go on where a key or a value cannot be read: print {"error": REASON} in its place.',
)
@registry_options
@max_decompressed_option
@isolation_level_option
@foreign_end_option
@client_options
@json_option
def consume(
    place: Place,
    topics: Sequence[str],
    partitions: Sequence[int],
    bounds: dict[str, Any],
    max_records: int | None,
    where: str | None,
    follow: bool,
    parts: list[bytes | Kind] | None,
    raw: bool,
    formats: dict[str, str],
    permissive: bool,
    registry: Mapping[str, str],
    max_decompressed_batch_bytes: int,
    isolation_level: str,
) -> None:
    r"""Print records of topics.

    They come partition by partition, in offset order. A TOPIC that starts with ^ is a regular expression in Python's syntax, for all topics with such names.

    A line has partition, offset, time, key, value and headers, separated by tabs; with several topics the
    topic comes first. Null is \N. Characters that are not printable are escaped (\t, \n, \x1b, \u202e), as
    are bytes that are not UTF-8 (\xff) and backslashes (\\); in headers also "=" and ",". With --json,
    bytes that are not UTF-8 are {"base64": "..."}. With --format and --raw, keys, values and headers are
    printed as they are, but escaped on a terminal. PATH may be HOST:PORT of a real cluster.

    With --value-format avro and a registry, each value is printed as JSON, as the schema has it that the value names.
    Values without such framing need --value-schema. With --value-format json, a value is printed as it
    is written, if it is one document of JSON, or as --value-schema has it; with a registry, Confluent's
    five bytes are taken off. One that cannot be read ends the command, after all records before it,
    unless --permissive is given.

    With --where, only records that a condition is true for are printed, in Spark's spelling: --last
    counts records before it, --max-records after it.

    Of a partition where records are damaged, or a disk is away, all before that are printed. What cannot be read is
    listed once all other partitions are printed; the exit code is 1 then.
    """
    ensure_one_of("--start", "--from", "--last")
    ensure_one_of("--end", "--to")
    if follow and given("--end", "--to"):
        raise click.UsageError("--follow goes on after the end: leave out --end and --to")
    for one in topics:
        if "%" in one and not one.startswith("^"):
            raise click.UsageError(
                f"{one!r} is not a topic; a format is given by --format, and -f is --follow"
            )
    several = len(topics) > 1 or any(one.startswith("^") for one in topics)
    layout = _layout_of(parts, raw=raw, with_topic=several, to_terminal=is_terminal())
    for name in ("value", "key"):
        if formats.get(f"{name}_format") == "json":
            formats.setdefault(f"{name}_schema", "string")  # each as it is written
    if registry and not formats:
        # KBATCH_REGISTRY may be set for other commands.
        source = click.get_current_context().get_parameter_source("registry_url")
        if source is not ParameterSource.ENVIRONMENT or len(registry) > 1:
            raise click.UsageError("--registry goes with --value-format or --key-format")
        registry = {}
    if not formats:
        ensure_beside("--permissive", "--value-format", "--key-format")
    if permissive:
        formats["mode"] = PERMISSIVE
    as_json_text = _AsJson(registry, formats)
    layout = as_json_text.layout(layout)
    isolation = IsolationLevel(isolation_level)
    reader = place.reader()
    names = [name for name in topics if not name.startswith("^")]
    patterns = [_pattern(name) for name in topics if name.startswith("^")]
    chosen = _Chosen(reader, names, patterns, partitions, isolation, **bounds)
    failed = list[KBatchError]()
    with whole_pipe():
        ranges = chosen.ranges(may_be_none=follow)
        follows = follow and not chosen.unreadable
        chosen_topics = list(dict.fromkeys(one.topic_partition.topic for one in ranges))
        printer = _Printer(
            functools.partial(
                reader.read_range,
                columns=layout.columns,
                isolation=isolation,
                max_decompressed_batch_bytes=max_decompressed_batch_bytes,
            ),
            functools.cache(
                lambda topic: (
                    None
                    if where is None
                    else reader.where(
                        where,
                        as_json_text.seen(topic),
                        "--where",
                        topics=chosen_topics if topic in chosen_topics[:1] else None,  # warns once
                    )
                )
            ),
            layout,
            as_json_text,
            max_records,
            names_partitions=len(ranges) > 1 or follow,
            stop=asked_to_stop() if follows else threading.Event(),
        )
        if follows:
            _follow(chosen, printer, ranges)
        else:
            for wanted in ranges:
                try:
                    printer.print(wanted)
                except UNREADABLE as error:
                    failed.append(error)
    for topic_partition, why in chosen.unreadable.items():
        warn(f"kbatch: {topic_partition} cannot be read: {why}")
    raise_first(failed)
    if chosen.unreadable:
        sys.exit(1)


class _AsJson:
    """The keys and values that are printed as JSON, of the topics that a command reads."""

    def __init__(self, registry: Mapping[str, str], formats: Mapping[str, str]) -> None:
        self._registry, self._formats = dict(registry) or None, formats
        self._columns = [name for name in ("key", "value") if f"{name}_format" in formats]
        if formats:
            parse_value_keywords(self._registry, formats, ["TOPIC"])  # refuses what does not fit
        self._null: str | None = None

    def layout(self, layout: Layout) -> Layout:
        """Return the same layout, with keys and values as they come where they are JSON."""
        self._null = {Style.JSON: "null", Style.FIELD: r"\N"}.get(layout.style)
        kinds = {"key": Kind.KEY, "value": Kind.VALUE}
        return layout._replace(as_they_are=frozenset(kinds[name] for name in self._columns))

    def of(self, topic_partition: TopicPartition, *, names_it: bool) -> Any:
        """Return what makes JSON of the keys and values of a partition."""
        where = f"{topic_partition.topic}:{topic_partition.partition}:" if names_it else ""
        remedy = (
            f"go on after it with --start {where}{{after}}, with --permissive, or leave out "
            "--{column}-format"
        )
        return shown_as_json(self._registry, self._formats, topic_partition.topic, remedy=remedy)

    def seen(self, topic: str) -> Any:
        """Return the columns that a condition on a topic's records sees."""
        return seen_by_condition(self._registry, self._formats, topic)

    def with_nulls(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with what is printed for a key or a value that is null."""
        for name in self._columns:
            place = rows.schema.get_field_index(name)
            if place >= 0 and self._null is not None and rows.column(place).null_count:
                texts = [
                    self._null if one is None else one for one in rows.column(place).to_pylist()
                ]
                rows = rows.set_column(place, name, pa.array(texts, pa.string()))
        return rows


@dataclass
class _Printer:
    """Printer of record ranges to stdout, until a maximum number of records, or until it is to stop."""

    read_range: Callable[..., Iterator[pa.RecordBatch]]
    condition_of: Callable[[str], Any]  # of a topic
    layout: Layout
    as_json_text: _AsJson
    left: int | None  # how many records may still be printed
    names_partitions: bool
    stop: threading.Event

    def is_done(self) -> bool:
        """Return whether the maximum number of records has been printed, or it was asked to stop."""
        return self.left == 0 or self.stop.is_set()

    def print(self, wanted: OffsetRange) -> None:
        """Print the records in a range of offsets; once it is done, no more are read."""
        batches = self.read(wanted)
        while not self.is_done() and (rows := next(batches, None)) is not None:
            self.print_rows(wanted.topic_partition, rows)

    def print_rows(self, topic_partition: TopicPartition, batch: pa.RecordBatch) -> None:
        """Print records of a partition, and flush stdout.

        Asked to stop, it ends after the lines that are being written, of whole records.
        """
        rows = batch if self.left is None else batch.slice(0, self.left)
        for text in Lines(self.layout, topic_partition).of(self.as_json_text.with_nulls(rows)):
            while text:  # an unbuffered stdout takes a part of it where a signal comes
                text = text[sys.stdout.buffer.write(text) :]
            if self.stop.is_set():
                break
        sys.stdout.buffer.flush()
        if self.left is not None:
            self.left -= rows.num_rows

    def read(self, wanted: OffsetRange, topic_id: str = "") -> Iterator[pa.RecordBatch]:
        """Return what yields the records of a range as they are printed.

        An error about damage says with which option to go on after it.

        Raises:
            ConfigError: the condition does not fit the topic, also where the range is empty.
        """
        batches = self.read_range(
            wanted,
            topic_id=topic_id,
            typed=self.as_json_text.of(wanted.topic_partition, names_it=self.names_partitions),
            where=self.condition_of(wanted.topic_partition.topic),
        )
        return self._saying_how_to_go_on(batches if wanted.start < wanted.end else (), wanted)

    def _saying_how_to_go_on(
        self, batches: Iterable[pa.RecordBatch], wanted: OffsetRange
    ) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except CorruptRecordError as error:
            bound = "{0.topic}:{0.partition}:{1}" if self.names_partitions else "{1}"
            raise going_on(error, wanted.topic_partition, f"--start {bound}".format) from None


@dataclass
class _Chosen:
    """The partitions that `kbatch consume` prints, and the offset where each starts and ends."""

    reader: Any
    names: Sequence[str]  # of topics
    patterns: Sequence[re.Pattern[str]]
    numbers: Sequence[int]  # of partitions; all if there are none
    isolation: IsolationLevel
    start: _Bounds
    end: _Bounds
    from_ms: int | None = None
    to_ms: int | None = None
    last: int | None = None
    unreadable: dict[TopicPartition, Exception] = field(
        default_factory=dict
    )  # that `ranges` has left out

    def followed(self, reader: Any) -> dict[TopicPartition, str]:
        """Return the partitions to print as they are by now, with the ids of their topics.

        Raises:
            UnknownTopicOrPartitionError: there is no topic of a name that was given.
        """
        found: dict[TopicPartition, str] = {}
        for topics in (self.names, *self.patterns):
            found |= reader.chosen(topics, self.numbers or None)
        return found

    def ranges(self, *, may_be_none: bool = False) -> list[OffsetRange]:
        """Return the range of offsets to print in each chosen partition that can be read, as of now.

        Raises:
            KafkaStorageError, CorruptRecordError: none can be read.
            UnknownTopicOrPartitionError: a topic or a partition does not exist.
            UsageError: an offset is given for a partition that is not among them.
            OffsetOutOfRangeError: partitions do not hold these offsets; names all of them.
        """
        wanted = [*self.followed(self.reader)]
        if not (wanted or may_be_none):
            patterns = ", ".join(repr(p.pattern) for p in self.patterns)
            every = ", ".join(self.reader.source.topic_names())
            raise ConfigError(f"no topic matches {patterns}; topics: {every or 'none'}")
        self._ensure_read(wanted, may_come=may_be_none and bool(self.patterns))
        views, self.unreadable = self.reader.readable(wanted)
        starts, ends = dict[TopicPartition, int | str](), {}
        for tp, view in views.items():
            edges = view.offsets
            log_end = edges.end_offset(self.isolation)
            end = self.end.of(tp, edges, self.isolation)
            if self.to_ms is not None:
                end = _offset_of(view, self.to_ms, log_end)
            if self.from_ms is not None:
                starts[tp] = min(_offset_of(view, self.from_ms, log_end), end)
            elif self.to_ms is None and self.start.given(tp) == "earliest":
                starts[tp] = "earliest"
            else:
                starts[tp] = self.start.of(tp, edges, self.isolation)
            ends[tp] = end
        found: list[OffsetRange] = self.reader.ranges(views, starts, ends, self.isolation)
        if self.last is None:
            return found
        offsets = functools.partial(
            self.reader.read_range, columns=["offset"], isolation=self.isolation
        )
        return [self.reader.last_records(one, self.last, offsets) for one in found]

    def _ensure_read(self, chosen: Sequence[TopicPartition], *, may_come: bool) -> None:
        """Refuse offsets given for partitions that are not chosen; warn of them if such may come later."""
        known = {*chosen, *((None, tp.partition) for tp in chosen)}
        for option, bounds in (("--start", self.start), ("--end", self.end)):
            for topic, partition in bounds.of_some.keys() - known:
                name = f"partition {partition}" + (f" of topic {topic!r}" if topic else "")
                why = f"{option} has an offset of {name}, which is not among those to read"
                if not may_come:
                    raise click.UsageError(why)
                logger.warning("%s: it is ignored", visible(why))


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is not a regular expression: {error}") from None


def _offset_of(view: Any, timestamp_ms: int, log_end: int) -> int:
    found = view.offset_for_timestamp(timestamp_ms, end_offset=log_end)
    return log_end if found is None else found.offset


def _follow(chosen: _Chosen, printer: _Printer, ranges: Sequence[OffsetRange]) -> None:
    """Print ranges of records, then new ones as they come, including those of new partitions and topics."""
    for one in ranges:
        printer.read(one)  # a condition that does not fit is an error without records too
    following = open_following(
        chosen.reader,
        chosen.followed,
        lambda topic: topic in chosen.names,
        chosen.isolation,
        {one.topic_partition: one.start for one in ranges},
        lambda wanted, _, topic_id: printer.read(wanted, topic_id),
        lambda: printer.is_done() or not _is_read(),
    )
    with contextlib.suppress(StopIteration):
        while True:
            topic_partition, *_, rows = following.take()
            printer.print_rows(topic_partition, rows)


def _is_read() -> bool:
    """Return True if someone may still read stdout."""
    try:
        out = sys.stdout.fileno()
    except (OSError, ValueError):  # not a file, in tests
        return True
    poll = select.poll()
    poll.register(out, 0)
    return not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
