"""`kbatch export`: copies a topic into a file for other tools, or into a broker's log dir."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import click
import pyarrow as pa

from spark_kbatch.cli.inputs import FORMAT_OF_SUFFIX
from spark_kbatch.cli.output import (
    json_option,
    number,
    progress_bar,
    raise_first,
    show,
    tell,
    warn,
)
from spark_kbatch.cli.parameters import (
    examples,
    foreign_end_option,
    isolation_level_option,
    max_decompressed_option,
    partitions_option,
    refuse_beside,
    where_option,
)
from spark_kbatch.cli.paths import Place, client_options, place_argument, topic_argument
from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import UNREADABLE, ConfigError, KBatchError, going_on
from spark_kbatch.model import IsolationLevel, OffsetRange, TopicPartition
from spark_kbatch.record.lines import Layout, Lines, json_layout
from spark_kbatch.terminal import counted, text_or_base64, to_json

_FORMATS = ("parquet", "csv", "json")
_ROW_GROUP_BYTES = 64 << 20
_RETENTION_NOTE = """\
A broker deletes segments whose newest record is older than the topic's retention.ms (7 days unless set),
starting 30 seconds after it is started. To keep older records, set retention.ms=-1 on the topic before
the export: kafka-configs.sh --alter --entity-type topics --entity-name TOPIC
--add-config retention.ms=-1"""


@click.command(
    epilog=examples(
        "kbatch export my-cluster readings readings.parquet",
        "kbatch export my-cluster readings --log-dir /var/kafka-logs",
    )
)
@place_argument()
@topic_argument
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--log-dir", metavar="DIR", help="In place of FILE: one of a stopped broker's log.dirs.")  # fmt: skip
@click.option("--format", "format_name", type=click.Choice(_FORMATS), help="Format of FILE; by default its name tells: .parquet, .csv, .json, .jsonl or .ndjson.")  # fmt: skip
@click.option("--text", is_flag=True, help="Write keys and values into Parquet as strings, not as bytes. CSV always has strings.")  # fmt: skip
@partitions_option(help="Write only this partition to FILE; may be repeated.")
@where_option
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@max_decompressed_option
@isolation_level_option
@foreign_end_option
@client_options
@json_option
def export(
    place: Place,
    topic: str,
    file: Path | None,
    log_dir: str | None,
    format_name: str | None,
    text: bool,
    partitions: Sequence[int],
    where: str | None,
    overwrite: bool,
    max_decompressed_batch_bytes: int,
    isolation_level: str,
) -> None:
    """Copy TOPIC into FILE, or a broker's log dir.

    FILE is Parquet or CSV with the columns that Spark shows (key, value, topic, partition, offset, timestamp,
    timestampType, headers), or JSON lines as of `kbatch consume --json`. It has its name only once it is whole.
    Where records cannot be read, those before them, and all other partitions, are in a file with
    .incomplete in its name, and the exit code is 1.
    PATH may be HOST:PORT of a real cluster. `kbatch produce` reads such files.

    With --log-dir, the records go into the log dir of a stopped Kafka broker. It must have the topic already, with
    the same number of partitions and no records. Once it is started, it serves what is committed here now, at
    the same offsets.
    """
    if (file is None) == (log_dir is None):
        raise click.UsageError("give either FILE or --log-dir")
    if log_dir is not None:
        if text or overwrite or format_name or partitions:
            raise click.UsageError("--text, --overwrite, --format and --partition are for a FILE")
        refuse_beside("--log-dir", log_dir, "--isolation-level", "--foreign-end", "--max-decompressed-batch-bytes", "--where")  # fmt: skip
        _to_broker(place, topic, log_dir)
        return
    assert file is not None
    kind = format_name or FORMAT_OF_SUFFIX.get(file.suffix.lower())
    if kind is None:
        raise click.UsageError(
            f"the name of {str(file)!r} does not tell its format; give --format, or a name that ends in "
            f"{', '.join(FORMAT_OF_SUFFIX)}"
        )
    if text and kind == "json":
        raise click.UsageError("--text is for Parquet: JSON has strings wherever bytes are text")
    _ensure_may_be_written(file, overwrite=overwrite)
    reader = place.reader()
    condition = None if where is None else reader.where(where, None, "--where", topics=[topic])
    how = {"max_decompressed_batch_bytes": max_decompressed_batch_bytes, "where": condition}
    ranges = reader.offset_ranges(
        topic, partitions=partitions or None, isolation_level=isolation_level
    )
    layout = json_layout()
    count, total = 0, sum(one.end - one.start for one in ranges)
    started, unreadable = monotonic_s(), list[KBatchError]()

    def rows(wanted: OffsetRange) -> pa.RecordBatchReader:
        return reader.read(
            topic,
            partitions=[wanted.topic_partition.partition],
            end=wanted.end,
            isolation_level=isolation_level,
            **how,
        )

    def go_on(at: TopicPartition, after: int) -> str:
        return f"`kbatch consume {place.path} {topic} --partition {at.partition} --start {after}`"

    def read(wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Yield records up to one that cannot be read; `unreadable` then has why, and how to read on."""
        try:
            if kind == "json":
                isolation = IsolationLevel(isolation_level)
                yield from reader.read_range(wanted, layout.columns, isolation, **how)
            else:
                yield from rows(wanted)
        except UNREADABLE as error:
            unreadable.append(going_on(error, wanted.topic_partition, go_on))

    with (
        progress_bar(f"{topic} to {file.name}") as on_progress,
        _made(file) as temporary,
    ):
        if kind == "json":
            written = _json_lines(ranges, read, layout, temporary)
        else:
            as_text = text or kind == "csv"
            found = (batch for wanted in ranges for batch in read(wanted))
            shown = map(_with_strings, found) if as_text else found
            schema = rows(ranges[0]).schema
            schema = _schema_with_strings(schema) if as_text else schema
            write = _parquet if kind == "parquet" else _csv
            written = write(shown, schema, temporary)
        for more in written:
            count += more
            rate = count / max(monotonic_s() - started, 1e-3)
            on_progress(count, total, f"{count:,} records, {rate:,.0f}/s")
        if unreadable:
            part = file.with_stem(f"{file.stem}.incomplete")
            temporary.replace(part)
            warn(f"{counted(count, 'record')} before damage are in {part}")
            raise_first(unreadable)
    size = file.stat().st_size
    tell(
        {
            "topic": topic, "file": str(file), "format": kind, "records": count,
            "size_in_bytes": size,
        },
        f"Wrote {count:,} records of {topic} to {file}, {size:,} bytes.",
    )  # fmt: skip


def _ensure_may_be_written(file: Path, *, overwrite: bool) -> None:
    if file.exists():
        if not overwrite:
            raise ConfigError(f"{file} exists; --overwrite replaces it")
        if not file.is_file():
            raise ConfigError(
                f"{file} is no regular file, and is not replaced; `kbatch consume --json` writes to pipes"
            )
    elif not file.resolve().parent.is_dir():
        raise ConfigError(f"the folder of {file} does not exist")


@contextlib.contextmanager
def _made(file: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename that to `file`, or what it links to, once it is complete."""
    file = file.resolve()
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _json_lines(
    ranges: Iterable[OffsetRange],
    read: Callable[[OffsetRange], Iterator[pa.RecordBatch]],
    layout: Layout,
    file: Path,
) -> Iterator[int]:
    with file.open("wb") as out:
        for wanted in ranges:
            lines = Lines(layout, wanted.topic_partition)
            for batch in read(wanted):
                for text in lines.of(batch):
                    out.write(text)
                yield batch.num_rows


def _parquet(rows: Iterator[pa.RecordBatch], schema: pa.Schema, file: Path) -> Iterator[int]:
    from pyarrow import parquet  # noqa: PLC0415  takes long to import

    with parquet.ParquetWriter(file, schema, compression="zstd") as out:
        group: list[pa.RecordBatch] = []
        size = 0
        for batch in rows:
            group.append(batch)
            size += batch.nbytes
            if size >= _ROW_GROUP_BYTES:
                out.write_table(pa.Table.from_batches(group, schema))
                group, size = [], 0
            yield batch.num_rows
        if group:
            out.write_table(pa.Table.from_batches(group, schema))


def _csv(rows: Iterator[pa.RecordBatch], schema: pa.Schema, file: Path) -> Iterator[int]:
    from pyarrow import csv  # noqa: PLC0415  takes long to import

    at = schema.get_field_index("headers")
    schema = schema.set(at, pa.field("headers", pa.string()))
    with csv.CSVWriter(file, schema) as out:
        for batch in rows:
            headers = _headers_as_json(batch.column(at))
            out.write_batch(pa.record_batch([*batch.columns[:at], headers, *batch.columns[at + 1 :]], schema))  # fmt: skip
            yield batch.num_rows


def _headers_as_json(column: pa.Array) -> pa.Array:
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.string())
    return pa.array(
        [
            row and to_json([[one["key"], text_or_base64(one["value"])] for one in row])
            for row in column.to_pylist()
        ],
        pa.string(),
    )


def _schema_with_strings(schema: pa.Schema) -> pa.Schema:
    for name in ("key", "value"):
        schema = schema.set(schema.get_field_index(name), pa.field(name, pa.string()))
    return schema


def _with_strings(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return an Arrow batch of records with its keys and values as strings instead of bytes.

    Raises:
        ConfigError: bytes that are not UTF-8; says which record has them.
    """
    schema = _schema_with_strings(batch.schema)
    try:
        return batch.cast(schema)
    except pa.ArrowInvalid:
        for row in batch.to_pylist():
            for name in ("key", "value"):
                if isinstance(text_or_base64(row[name]), dict):
                    raise ConfigError(
                        f"the {name} at offset {row['offset']} of {row['topic']}-{row['partition']} is not "
                        "UTF-8; Parquet without --text has bytes, and JSON lines have them as base64"
                    ) from None
        raise


def _to_broker(place: Place, topic: str, log_dir: str) -> None:
    cluster = place.open_own()
    if cluster.is_remote:
        raise click.UsageError(
            f"{place.path!r} is the address of a real cluster; `kbatch export` works on a folder where --log-dir is given"
        )
    exported = cluster.export(topic, to=log_dir)
    rows = [one.topic_partition._asdict() | one._asdict() for one in exported]
    for row in rows:
        del row["topic_partition"]
    show(f"Topic {topic} in {log_dir}", _EXPORTED, rows)
    click.echo(_RETENTION_NOTE, err=True)


_EXPORTED = (
    number("partition"),
    number("first offset", "log_start_offset"),
    number("next offset", "log_end_offset"),
    number("offsets", lambda row: row["log_end_offset"] - row["log_start_offset"]),
    number("segments", "segments_count"),
    number("bytes", "size_in_bytes"),
)
