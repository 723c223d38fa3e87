"""`kbatch produce`: records from lines, JSON lines, CSV and Parquet into topics."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import numpy as np
import pyarrow as pa

from spark_kbatch.cli.inputs import (  # fmt: skip
    COLUMNS,
    FORMATS,
    Block,
    Input,
    Reading,
    format_of,
    read_records,
)
from spark_kbatch.cli.output import (
    OnProgress,
    end_as_interrupted,
    is_json,
    json_option,
    progress_bar,
    tell,
    unshown,
    warn,
)
from spark_kbatch.cli.parameters import config_option, ensure_one_of, examples, gathered, parsed
from spark_kbatch.cli.paths import Place, client_options, place_argument, topic_argument
from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import (
    ConfigError,
    InvalidTimestampError,
    KBatchError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.model import CODECS, INT_MAX
from spark_kbatch.options.producer import PRODUCER_OPTIONS
from spark_kbatch.options.remote import CLUSTER_OPTIONS, is_address
from spark_kbatch.options.topic import topic_key
from spark_kbatch.record.columns import HEADERS_TYPE
from spark_kbatch.terminal import counted

if TYPE_CHECKING:
    from spark_kbatch import Cluster, Producer

_STDIN = "-"
_COLUMN_TOPIC = "-"
_PATIENCE_S = 2.0  # with a producer that is to stop, and writes nothing
_WHY_NOT_BY_KEY = {
    "compression.type": "is given by --compression-type",
    "acks": "is given by --acks",
    "auto.create.topics.enable": "is given by --no-create",
    "transactional.id": "is for Python: cluster.producer(transactional_id=...)",
}
_PRODUCER_KEYS = {option.key for option in PRODUCER_OPTIONS} - {
    option.key for option in CLUSTER_OPTIONS
}
_DEFAULTS = {
    "batch.size": "1000000"
}  # large, since an input is mostly there already; fits max.message.bytes


def _separator(text: str) -> bytes:
    r"""Parse a key separator, in which \t, \0, \x1f and \\ are escapes, into bytes."""
    try:
        data = text.encode(errors="surrogateescape")
        found = data.decode("unicode_escape").encode("latin-1")
    except UnicodeError:
        raise click.BadParameter(
            rf"{text!r} has an escape that is not \t, \n, \0, \xNN or \\"
        ) from None
    if not found:
        raise click.BadParameter("it is empty")
    return found


def _headers(words: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{word!r} is not NAME=VALUE, such as source=backup")
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise click.BadParameter(f"the name of {word!r} is not UTF-8")
        found.append({"key": name, "value": value.encode(errors="surrogateescape")})
    return found


def _columns(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in text.split(","):
        name, _, source = word.partition("=")
        name = name.strip()
        if name not in COLUMNS or name in found:
            what = "given twice" if name in found else "not a column of records"
            raise click.BadParameter(f"{name!r} is {what}; accepted: {', '.join(COLUMNS)}")
        found[name] = source.strip() or name
    return found


# The form of the input, which the command gets as its argument `form`.
_forms_options = gathered(
    "form",
    [
        click.option("--format", "format_name", type=click.Choice(FORMATS), help="Format of the input; by default a file's name tells: .json, .jsonl and .ndjson, .csv, .parquet, or else lines."),
        click.option("--key-separator", "-K", metavar="TEXT", callback=parsed(_separator), help=r"Separator between key and value in each line, such as : or \t."),
        click.option("--key-field", metavar="NAME", help="Take each line as a JSON object that is the value as it is, and the key from this field of it."),
        click.option("--null-marker", metavar="TEXT", help="Take a key or value that is exactly this as null, in lines and in CSV; in CSV by default an empty cell without quotes."),
        click.option("--columns", metavar="COLUMN=NAME,...", callback=parsed(_columns), help="Take only these columns, from columns or fields with these names, such as key=id,value=payload."),
    ],
)  # fmt: skip
# Of what is in it, the formats that have it.
_FORMATS_WITH = {
    "key_separator": ("lines",),
    "key_field": ("lines",),
    "null_marker": ("lines", "csv"),
    "columns": ("json", "csv", "parquet"),
}


@click.command(
    epilog=examples(
        "kbatch produce my-cluster readings -K : < lines.txt",
        "kbatch consume my-cluster readings --json | kbatch produce broker:9092 readings --json",
    )
)
@place_argument()
@topic_argument
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))  # fmt: skip
@_forms_options
@click.option("--header", "-H", "headers", metavar="NAME=VALUE", multiple=True, callback=parsed(_headers), help="Add this header to each record that has none; may be repeated.")  # fmt: skip
@click.option("--partition", "-p", type=click.IntRange(0, INT_MAX), metavar="PARTITION", help="Write to this partition; by default to the one that a record names, or else as Kafka's producer chooses by key.")  # fmt: skip
@click.option(
    "--compression-type",
    "-z",
    type=click.Choice(tuple(CODECS)),
    help="Compress batches.  [default: none]",
)
@click.option("--acks", type=click.Choice(("all", "-1", "1", "0")), help="Replicas that must have a record before it counts as written.  [default: all]")  # fmt: skip
@config_option(help="Set another option of the producer, such as linger.ms=50; may be repeated.")
@click.option("--create/--no-create", default=None, help="Whether to create the topic, and the cluster in a folder, if there is none.  [default: in a folder, but not on a real cluster]")  # fmt: skip
@client_options
@json_option
def produce(
    place: Place,
    topic: str,
    files: Sequence[str],
    form: dict[str, Any],
    headers: list[dict[str, Any]],
    partition: int | None,
    compression_type: str | None,
    acks: str | None,
    config: dict[str, str],
    create: bool | None,
) -> None:
    r"""Write records from files or stdin to TOPIC.

    Lines are values. In JSON lines an object is a record, as `kbatch consume --json` prints it, with key,
    value, headers, partition and timestamp; for objects of any other kind, which are values as they are, give
    --format lines or --key-field. In CSV and Parquet a row is a record, with columns of these names. A
    null partition or timestamp counts as not given. If TOPIC is -, each record's column topic names its topic. If
    FILE is - or left out, stdin is read. PATH may be HOST:PORT of a real cluster.

    With --json, stdin is read as JSON lines unless --format says otherwise, and the outcome is printed as an
    object, with the producer's metrics. At a line that cannot be used it stops: what was before that line is written.
    """
    # Kafka's tools and kcat give both in the same way.
    client = place.client
    of_producer = {key: value for key, value in client.items() if topic_key(key) in _PRODUCER_KEYS}
    rest = {key: value for key, value in client.items() if key not in of_producer}
    place = place._replace(client=rest)
    options = _producer_options(of_producer | config, compression_type, acks)
    in_folder = not is_address(place.path)
    if in_folder:
        create = create is not False
        options["auto.create.topics.enable"] = str(create)
    elif create and topic == _COLUMN_TOPIC:
        raise click.UsageError("--create needs the name of a topic, and TOPIC is -")
    ensure_one_of("--key-separator", "--key-field")
    readings = [(name, _reading(name, **form)) for name in files or [_STDIN]]
    started = monotonic_s()
    why: BaseException | None = None
    with place.open_own(create=bool(create)) as cluster:
        if create and not in_folder:
            cluster.create_topic(topic, exist_ok=True)
        with cluster.producer(options) as producer:
            try:
                to = None if topic == _COLUMN_TOPIC else topic
                for block in _blocks_of(readings, topic, lambda: _written(producer)):
                    rows = _completed(block.rows, headers, partition)
                    _send(producer, to, rows, block.place_of)
                    producer.ensure_delivered()
                producer.flush()
                producer.ensure_delivered()
            except (KBatchError, OSError, KeyboardInterrupt) as error:
                why = error
                _send_rest(producer)
                if isinstance(error, UnknownTopicOrPartitionError) and not create:
                    why = _with_creation(error, cluster, topic)
            metrics = producer.metrics()
            waiting, count = producer.why_waiting(), _written(producer)
    if count or why is None:
        to = None if topic == _COLUMN_TOPIC else topic
        seconds = round(monotonic_s() - started, 3)
        tell(
            {"topic": to, "records": count, "seconds": seconds, "metrics": metrics},
            f"Wrote {counted(count, 'record')}{'' if to is None else f' to {to}'}.",
        )
    if isinstance(why, KeyboardInterrupt):
        cause = "" if waiting is None else f"; the last attempt to write failed: {waiting}"
        end_as_interrupted(cause)
    if why is not None:
        raise why


def _with_creation(
    error: UnknownTopicOrPartitionError, cluster: Cluster, topic: str
) -> UnknownTopicOrPartitionError:
    """Return an error that says how the topic is created, if that is what is missing."""
    with contextlib.suppress(KBatchError, OSError):
        if topic == _COLUMN_TOPIC or topic not in cluster.topic_names(internal=True):
            how = (
                "`kbatch create-topic` creates it"
                if topic == _COLUMN_TOPIC
                else f"`kbatch create-topic {cluster.address} {topic}` creates it, or --create"
            )
            return UnknownTopicOrPartitionError(f"{error}; {how}")
    return error


def _send(
    producer: Producer,
    topic: str | None,
    rows: pa.RecordBatch,
    place_of: Callable[[int], str],
    first_row: int = 0,
) -> None:
    """Send rows; of those with one that the producer refuses, send what is before it.

    A producer that refuses a row sends none of the table: it is halved until that row stands alone.

    Args:
        producer: sends.
        topic: of all rows; None if each names its own.
        rows: what to send.
        place_of: where a row stands in the input.
        first_row: the number that `place_of` knows the first of the rows by.

    Raises:
        ConfigError, UnknownTopicOrPartitionError: a row is refused; says where it stands.
    """
    try:
        producer.send_arrow(topic, rows)
        return
    except KBatchError as error:
        if not _may_be_of_a_row(error, topic):
            raise
        # Columns of a wrong type are refused without rows too: then no row is at fault.
        producer.send_arrow(topic, rows.slice(0, 0))
        if len(rows) == 1:
            is_unknown = isinstance(error, UnknownTopicOrPartitionError)
            kind = UnknownTopicOrPartitionError if is_unknown else ConfigError
            raise kind(f"{place_of(first_row)}: {error}") from None
    half = len(rows) // 2
    _send(producer, topic, rows.slice(0, half), place_of, first_row)
    _send(producer, topic, rows.slice(half), place_of, first_row + half)


def _may_be_of_a_row(error: KBatchError, topic: str | None) -> bool:
    """Return True if the producer may have refused a single row: also for its topic, if it names one."""
    if topic is None:
        return isinstance(error, (ConfigError, InvalidTimestampError, UnknownTopicOrPartitionError))
    return type(error) in (ConfigError, InvalidTimestampError)  # not InvalidTopicError and the like


def _send_rest(producer: Producer) -> None:
    """Send what a producer has, for as long as records are written; then close it."""
    before, count = -1, _written(producer)
    try:
        while count > before:
            with contextlib.suppress(RequestTimedOutError):
                producer.flush(_PATIENCE_S)
                break
            before, count = count, _written(producer)
    except KeyboardInterrupt:
        pass  # The user has asked twice.
    producer.close(0)


def _written(producer: Producer) -> int:
    return sum(one.records_count for one in producer.written().values())


def _producer_options(
    given: Mapping[str, str], compression_type: str | None, acks: str | None
) -> dict[str, str]:
    keys: dict[str, str] = {}
    for name, value in given.items():
        key = topic_key(name)
        if why := _WHY_NOT_BY_KEY.get(key):
            raise click.UsageError(f"{name!r} {why}")
        if keys.setdefault(key, value) is not value:
            raise click.UsageError(f"{key!r} is given twice")
    own = {"compression.type": compression_type, "acks": acks}
    return _DEFAULTS | keys | {key: value for key, value in own.items() if value is not None}


def _reading(name: str, format_name: str | None = None, **form: Any) -> Reading:
    if format_name is None:
        format_name = "json" if is_json() and name == _STDIN else format_of(name)
        if format_name == "json" and "key_field" in form:
            format_name = "lines"  # of JSON objects that are no records
    for part in form:
        formats = _FORMATS_WITH[part]
        if format_name not in formats:
            raise click.UsageError(
                f"--{part.replace('_', '-')} is for {' and '.join(formats)}, and {_shown_name(name)} is read as "
                f"{format_name}"
            )
    return Reading(format_name, **form)


def _blocks_of(
    readings: Sequence[tuple[str, Reading]], topic: str, records_count: Callable[[], int]
) -> Iterator[Block]:
    for name, reading in readings:
        with contextlib.ExitStack() as stack:
            stream: BinaryIO = sys.stdin.buffer
            if name != _STDIN:
                stream = stack.enter_context(Path(name).open("rb"))
            source = Input(_shown_name(name), stream)
            is_typed = name == _STDIN and sys.stdin.isatty()
            started, before = monotonic_s(), records_count()
            bar: OnProgress = stack.enter_context(
                progress_bar(f"{source.name} to {topic}", hidden=is_typed)
            )
            for block in read_records(source, reading):
                yield block
                if bar is not unshown:
                    count = records_count() - before
                    rate = count / max(monotonic_s() - started, 0.001)
                    size = source.size
                    done = source.position if size is not None else 0
                    bar(done, size, f"{count:,} records, {rate:,.0f}/s")
        if source.left_out:
            left_out = f"{source.name}: left out {counted(len(source.left_out), 'column')}"
            warn(f"{left_out}: {', '.join(source.left_out)}")


def _shown_name(name: str) -> str:
    return "stdin" if name == _STDIN else name


def _completed(
    rows: pa.RecordBatch, headers: list[dict[str, Any]], partition: int | None
) -> pa.RecordBatch:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    if partition is not None:
        columns["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), len(rows))
    if headers:
        own = columns.get("headers", pa.nulls(len(rows)))
        try:
            own = own.cast(HEADERS_TYPE)
        except pa.ArrowException:
            raise ConfigError(
                f"column 'headers' is {own.type}, to which --header cannot add; accepted: {HEADERS_TYPE}"
            ) from None
        has_none = own.value_lengths().fill_null(0).to_numpy(zero_copy_only=False) == 0
        both = pa.concat_arrays([own, pa.array([headers], HEADERS_TYPE)])
        columns["headers"] = both.take(
            pa.array(np.where(has_none, len(rows), np.arange(len(rows))))
        )
    return pa.RecordBatch.from_pydict(columns)
