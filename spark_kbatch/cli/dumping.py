"""`kbatch dump`: shows the contents of log segments, indexes and checkpoints as they are on disk."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from spark_kbatch.cli.output import Row, is_json, json_option, print_json, text_of, whole_pipe
from spark_kbatch.cli.parameters import examples
from spark_kbatch.errors import ConfigError, CorruptRecordError
from spark_kbatch.files import LinkedFiles
from spark_kbatch.log.contents import DumpedBatch, DumpedEntry, Gap, batches, entries
from spark_kbatch.model import CODEC_NAMES
from spark_kbatch.record.header import (
    LOG_APPEND_TIME_TYPE,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    UNKNOWN_COUNT,
    BatchHeader,
)
from spark_kbatch.terminal import counted, field, iso_time, text_or_base64, visible

_LOCATION, _DAMAGE = "bold", "bold red"


@click.command(epilog=examples("kbatch dump my-cluster/broker-0/readings-0 --records"))
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option("--records", "-r", is_flag=True, help="Show the records of each batch, too.")
@json_option
def dump(paths: Sequence[str], records: bool) -> None:
    """Show the contents of a log's FILEs.

    That is the batches of a .log file, and the entries of all others. A FILE may be of a cluster of kbatch or
    of a Kafka broker: .log, .index, .timeindex, .txnindex, .snapshot, kbatch.state, kbatch.producers,
    checkpoints; or a partition's directory, for all of its files. A batch is shown with its position, offsets,
    size, format, compression, times and producer, and whether its CRC is right.

    Damage is reported, and the next valid batch is shown after it. The exit code is 1 then.
    """
    with whole_pipe():
        shown = _Dump(records)
        for path in map(Path, paths):
            for file in sorted(path.iterdir()) if path.is_dir() else [path]:
                shown.file(file)
        if shown.faults:
            sys.exit(1)


class _Dump:
    """Output of `kbatch dump`: as JSON an object for each batch, gap between batches and index entry.

    Else it is a tree of files, their batches, and the batches' records.
    """

    def __init__(self, with_records: bool) -> None:
        self._with_records, self._path = with_records, Path()
        self._console = Console()
        self.faults = self._batches = self._records = 0

    def file(self, path: Path) -> None:
        if not path.is_file():
            raise ConfigError(
                f"{path} is not a file of a log" if path.exists() else f"{path} does not exist"
            )
        files, before = LinkedFiles(), self.faults
        self._path, self._batches, self._records = path, 0, 0
        self._line(0, (str(path), _LOCATION), (f", {path.stat().st_size:,} bytes", ""))
        for found in batches(files, path) if path.suffix == ".log" else entries(files, path):
            if isinstance(found, Gap):
                self._gap(found)
            elif isinstance(found, DumpedBatch):
                self._batch(found)
            else:
                self._entry(found)
        if self._batches:
            faults = self.faults - before
            damaged = (f", {counted(faults, 'damaged place')}", _DAMAGE) if faults else ("", "")
            count = f"{self._batches:,} batch{'es' * (self._batches != 1)}, {counted(self._records, 'record')}"
            self._line(1, (count, "dim"), damaged)

    def _batch(self, found: DumpedBatch) -> None:
        header, fault, records = found.header, found.fault, None
        shows_records = self._with_records and (is_json() or not header.is_control)
        if fault is None and (shows_records or (header.is_wrapper and not is_json())):
            try:
                records = found.records().to_pylist()
            except CorruptRecordError as error:
                fault = str(error)
        marker = found.marker()
        row = {"position": found.position, **_facts(header), "is_valid": fault is None}
        row |= {"fault": fault, "marker": marker}
        if self._with_records and fault is None:
            row["records"] = [*map(_record_as_json, records or ())]
        self._tell(row, fault)
        count = header.records_count
        offsets = f"offsets {header.base_offset} to {header.last_offset}"
        if count == UNKNOWN_COUNT:  # a wrapper
            count = len(records or ())
            first = records[0]["offset"] if records else "unknown"
            offsets = f"offsets {first} to {header.last_offset}"
        self._batches += 1
        self._records += 0 if fault or header.is_control else count
        words = [offsets, counted(count, "record"), f"{header.size_in_bytes:,} bytes"]
        words += [f"V{header.magic}", *_words(header), f"CRC {header.crc:#010x}"]
        words += [marker] if marker else []
        self._line(1, (f"{found.position}", _LOCATION), (": " + ", ".join(words), ""))
        if fault is not None:
            self._line(2, (f"damaged: {fault}", _DAMAGE))
        elif shows_records:
            for one in records or ():
                self._record(one)

    def _record(self, record: Row) -> None:
        headers = [
            f"{field(h['key'], '=,')}={field(h['value'], ',')}" for h in record["headers"] or ()
        ]
        words = (
            text_of(iso_time(record["timestamp"])),
            field(record["key"]),
            field(record["value"]),
        )
        self._line(2, (str(record["offset"]), "cyan"), ("  " + "  ".join((*words, *headers)), ""))

    def _gap(self, found: Gap) -> None:
        row = {"position": found.position, "end_position": found.end_position}
        fault = found.what if found.is_damage else None
        self._tell({**row, "is_valid": fault is None, "fault": found.what}, fault)
        size = f"{found.end_position - found.position:,} bytes"
        if fault is None:
            self._line(1, (f"{found.position}", _LOCATION), (f": {size}: {found.what}", ""))
        else:
            self._line(1, (f"{found.position}: {size} that are no batch: {fault}", _DAMAGE))

    def _entry(self, found: DumpedEntry) -> None:
        fault = found.fault
        values = {
            name: iso_time(value) if name.endswith("timestamp") else value
            for name, value in found.values.items()
        }
        self._tell({**values, "fault": fault}, fault)
        shown = ", ".join(f"{name.replace('_', ' ')} {text_of(v)}" for name, v in values.items())
        shown = visible(str(values.get("line", shown)))
        if fault is None:
            self._line(1, (shown, ""))
        else:
            self._line(1, (f"{shown}{': ' if shown else ''}{fault}", _DAMAGE))

    def _tell(self, row: Row, fault: str | None) -> None:
        """Count what is damaged, and print an object with --json."""
        self.faults += fault is not None
        if is_json():
            print_json({"file": str(self._path), **row})

    def _line(self, depth: int, *parts: tuple[str, str]) -> None:
        """Print a line of the tree, unless objects are printed."""
        if is_json():
            return
        line = Text("  " * depth)
        for text, style in parts:
            line.append(visible(text), style)
        if self._console.is_terminal:
            self._console.print(line, soft_wrap=True)
        else:
            click.echo(line.plain)


def _facts(header: BatchHeader) -> Row:
    return {
        "base_offset": None if header.records_count == UNKNOWN_COUNT else header.base_offset,
        "last_offset": header.last_offset,
        "records_count": None if header.records_count == UNKNOWN_COUNT else header.records_count,
        "size_in_bytes": header.size_in_bytes,
        "magic": header.magic,
        "crc": f"{header.crc:#010x}",
        "codec": CODEC_NAMES.get(header.codec, f"unknown ({header.codec})"),
        "timestamp_type": "LogAppendTime" if header.timestamp_type == LOG_APPEND_TIME_TYPE else "CreateTime",
        "base_timestamp": iso_time(header.base_timestamp),
        "max_timestamp": iso_time(header.max_timestamp),
        "leader_epoch": header.partition_leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
    }  # fmt: skip


def _record_as_json(record: Row) -> Row:
    headers = [[one["key"], text_or_base64(one["value"])] for one in record["headers"] or []]
    return {
        "offset": record["offset"],
        "timestamp": iso_time(record["timestamp"]),
        "key": text_or_base64(record["key"]),
        "value": text_or_base64(record["value"]),
        "headers": headers,
    }


def _words(header: BatchHeader) -> list[str]:
    words = [CODEC_NAMES.get(header.codec, f"unknown compression {header.codec}")]
    words[0] = "not compressed" if words[0] == "none" else words[0]
    if header.max_timestamp != NO_TIMESTAMP:
        first, last = iso_time(header.base_timestamp), iso_time(header.max_timestamp)
        kind = "LogAppendTime" if header.timestamp_type == LOG_APPEND_TIME_TYPE else "CreateTime"
        words.append(f"{kind} {last}" if first == last else f"{kind} {first} to {last}")
    if header.magic == MAGIC:
        words.append(f"leader epoch {header.partition_leader_epoch}")
        if header.producer_id != NO_PRODUCER_ID:
            words.append(
                f"producer {header.producer_id} epoch {header.producer_epoch} sequence {header.base_sequence}"
            )
    if header.is_transactional:
        words.append("transactional")
    return words
