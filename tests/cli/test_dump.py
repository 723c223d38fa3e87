"""`kbatch dump`: what is in a log's files, damaged or not."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_kbatch.cli.main import cli
from spark_kbatch.errors import ConfigError
from spark_kbatch.log.producers import snapshot, transaction_index
from spark_kbatch.log.producers.state import BatchMetadata, ProducerEntry
from spark_kbatch.model import AbortedTransaction
from tests.support import builders
from tests.support.log_histories import data_batch, marker_batch
from tests.support.reference import Record, encode_messages

LOG = "00000000000000000000.log"


def dump(*words: Any) -> Result:
    return CliRunner().invoke(cli, ["dump", *map(str, words)])


def objects_of(*words: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dump(*words, "--json").stdout.splitlines()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A .log file with three batches: idempotent, compressed, and a marker."""
    batches = [
        data_batch(base_offset=0, producer_id=7, transactional=True),
        builders.batch(n=3, base_offset=1, compression="snappy"),
        marker_batch(base_offset=4, producer_id=7, abort=True),
    ]
    path = tmp_path / LOG
    path.write_bytes(b"".join(map(bytes, batches)))
    return path


def test_batches_are_shown_with_their_headers_and_records(log: Path) -> None:
    done = dump(log, "--records")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == f"{log}, {log.stat().st_size:,} bytes"
    assert "  0: offsets 0 to 0, 1 record, " in lines[1]
    assert "producer 7 epoch 0 sequence 0, transactional" in lines[1]
    assert lines[2].startswith("    0  20")
    assert "offsets 1 to 3, 3 records" in lines[3]
    assert "snappy" in lines[3]
    assert [line.split()[0] for line in lines[4:7]] == ["1", "2", "3"]
    assert "abort marker of coordinator epoch" in lines[7]
    assert lines[8:] == ["  3 batches, 4 records"]

    first, second, third = objects_of(log, "-r")
    assert (first["position"], first["is_valid"], first["producer_id"]) == (0, True, 7)
    assert [one["offset"] for one in second["records"]] == [1, 2, 3]
    assert second["position"] == first["size_in_bytes"]
    assert third["marker"].startswith("abort marker")


def test_after_damage_it_goes_on_with_the_next_valid_batch(log: Path) -> None:
    data = bytearray(log.read_bytes())
    _, second, third = objects_of(log)
    data[second["position"] + 70] ^= 1  # a record
    (size,) = struct.unpack_from(">i", data, third["position"] + 8)
    struct.pack_into(">i", data, third["position"] + 8, size + 1)  # a length, past the end
    log.write_bytes(data + data[: second["position"]] + b"torn" + bytes(20))

    done = dump(log, "--records")
    assert done.exit_code == 1
    damaged = [line.strip() for line in done.stdout.splitlines() if "CRC-32C" in line]
    assert damaged[0].startswith("damaged: CRC-32C: expected 0x")
    assert [(one["position"], one["is_valid"]) for one in objects_of(log)] == [
        (0, True), (second["position"], False), (third["position"], False), (len(data), True),
        (len(data) + second["position"], False),
    ]  # fmt: skip
    assert "batch is truncated" in objects_of(log)[-1]["fault"]


def test_zeros_at_the_end_are_no_damage(log: Path) -> None:
    size = log.stat().st_size
    log.write_bytes(log.read_bytes() + bytes(5000))
    done = dump(log)
    assert done.exit_code == 0
    assert f"  {size}: 5,000 bytes: zeros, as in a preallocated file" in done.stdout


def test_messages_of_older_formats_are_shown_one_by_one(tmp_path: Path) -> None:
    records = [Record(n, 1000 + n, None, b"value") for n in range(3)]
    path = tmp_path / LOG
    plain = encode_messages(records[:2], magic=1)
    path.write_bytes(plain + encode_messages(records[2:], magic=0))
    first, _, third = objects_of(path, "--records")
    assert (first["magic"], first["records"][0]["value"], first["timestamp_type"]) == (
        1, "value", "CreateTime",
    )  # fmt: skip
    assert (third["magic"], third["position"], third["max_timestamp"]) == (0, len(plain), None)


def test_other_files_are_shown_entry_by_entry(tmp_path: Path) -> None:
    base = "00000000000000000100"
    (tmp_path / f"{base}.index").write_bytes(struct.pack(">iiii", 5, 80, 9, 200) + bytes(16))
    (tmp_path / f"{base}.timeindex").write_bytes(struct.pack(">qiqi", 1000, 5, 900, 9) + b"x")
    aborted = AbortedTransaction(7, 101, 105, 101)
    (tmp_path / f"{base}.txnindex").write_bytes(transaction_index.pack(aborted))
    entry = ProducerEntry(0, (BatchMetadata(0, 2, 102, 2, 1000),), last_timestamp=1000)
    (tmp_path / f"{base}.snapshot").write_bytes(snapshot.pack({7: entry}))
    (tmp_path / "partition.metadata").write_text("version: 0\ntopic_id: \x1b[2J\n")
    (tmp_path / "kbatch.state").write_bytes(b"KBST")

    done = dump(tmp_path)
    assert done.exit_code == 1  # two faults: the time index, the state
    assert done.stdout.replace(str(tmp_path), "").splitlines() == [
        f"/{base}.index, 32 bytes",
        "  offset 105, position 80",
        "  offset 109, position 200",
        "  zero entries 2",
        f"/{base}.snapshot, 56 bytes",
        "  producer id 7, producer epoch 0, coordinator epoch -1, last sequence 2, last offset 102, "
        "last timestamp 1970-01-01T00:00:01.000Z, transaction first offset -",
        f"/{base}.timeindex, 25 bytes",
        "  timestamp 1970-01-01T00:00:01.000Z, offset 105",
        "  timestamp 1970-01-01T00:00:00.900Z, offset 109: does not grow",
        "  bytes 1: not a whole entry",
        f"/{base}.txnindex, 34 bytes",
        "  producer id 7, first offset 101, last offset 105, last stable offset 101",
        "/kbatch.state, 4 bytes",
        "  slot first: not valid",
        "  slot second: not valid",
        "/partition.metadata, 26 bytes",
        "  version: 0",
        r"  topic_id: \x1b[2J",
    ]
    assert objects_of(tmp_path / f"{base}.index")[0] == {
        "file": str(tmp_path / f"{base}.index"), "offset": 105, "position": 80, "fault": None,
    }  # fmt: skip


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in str(dump(tmp_path / "absent").exception)
    (tmp_path / "folder" / "folder").mkdir(parents=True)
    done = dump(tmp_path / "folder")
    assert isinstance(done.exception, ConfigError)
    assert "is not a file of a log" in str(done.exception)
