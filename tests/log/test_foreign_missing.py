"""Logs of brokers that lack records they once had: an error after what precedes them, not an early end."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
import random
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import pytest

import spark_kbatch
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import CorruptRecordError
from spark_kbatch.log.foreign import log as foreign_log
from spark_kbatch.options.read import parse_read_options
from tests.support import builders
from tests.support.broker_dirs import (
    INDEX,
    LOG,
    TP,
    a_batch,
    a_partition,
    a_segment,
    batches,
    checkpoint,
    end_of,
    read,
    records_in,
    up_to_damage,
)
from tests.support.reference import Record
from tests.support.store import reader_of

SECOND = f"{10:020d}"
HELD = {0: batches(0, 10), 10: batches(10, 20), 20: batches(20, 30)}
ALL = records_in([data for held in HELD.values() for data in held])
TIERED_ID = "tqimKeZwStOEOwRzT3L5oQ"
ZSTD = b"\x28\xb5\x2f\xfd"

Damage = Callable[[Path], object]


def flipped(name: str, at: int) -> Damage:
    """Return damage that changes one byte of a file."""

    def damage(directory: Path) -> None:
        data = bytearray((directory / name).read_bytes())
        data[at] ^= 1
        (directory / name).write_bytes(data)

    return damage


def packed(name: str, as_: bytes, pack: Callable[[bytes], bytes], ending: str = "") -> Damage:
    """Return damage that packs a file, in place or under a name with another ending."""

    def damage(directory: Path) -> None:
        data = pack((directory / name).read_bytes())
        assert data.startswith(as_)
        (directory / name).unlink()
        (directory / f"{name}{ending}").write_bytes(data)

    return damage


def renamed(name: str, to: str) -> Damage:
    """Return damage that renames a file."""
    return lambda directory: (directory / name).rename(directory / to)


def removed(*names: str) -> Damage:
    """Return damage that removes files."""
    return lambda directory: [(directory / name).unlink() for name in names]


def read_to_the_error(path: Path, **bounds: int) -> tuple[list[Record], CorruptRecordError]:
    """Return what is read of t-0 before an error, and the error."""
    rows, error = up_to_damage(spark_kbatch.open(path).read("t", **bounds))
    assert error is not None
    return [record for batch in rows for record in builders.as_read(batch)], error


def run(*words: object) -> tuple[int, str]:
    """Return the exit code of a command, and all that it prints, errors too."""
    done = click.testing.CliRunner().invoke(cli, [*map(str, words)])
    return done.exit_code, done.output + str(done.exception or "")


@pytest.mark.parametrize("name", ["recovery-point", "replication"])
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        pytest.param(flipped(f"{20:020d}.log", -5), 28, id="last-batch"),
        pytest.param(removed(f"{20:020d}.log", f"{20:020d}.index"), 20, id="last-segment"),
        pytest.param(lambda d: [p.unlink() for p in d.glob("0*")], 0, id="all-segments"),
    ],
)
def test_a_log_that_ends_below_a_checkpoint_is_an_error_after_its_last_record(
    tmp_path: Path, name: str, is_clean: bool, damage: Damage, kept: int
) -> None:
    directory = a_partition(tmp_path / "t-0", HELD)
    checkpoint(tmp_path, name, {"t 0": 30})
    if is_clean:
        (tmp_path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    assert read(tmp_path) == ALL
    damage(directory)

    found, error = read_to_the_error(tmp_path)

    assert found == ALL[:kept]
    assert (error.offset, error.next_offset) == (kept, 30)
    assert f"{name}-offset-checkpoint has offset 30, and the log ends at {kept}" in str(error)
    assert "go on with start={0: 30}" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert read(tmp_path, foreign_end="log") == ALL[:kept]
    if kept:
        assert read(tmp_path, end=kept) == ALL[:kept]


def test_every_cut_is_an_error_that_a_checkpoint_shows_and_leaves_what_is_before(
    tmp_path: Path,
) -> None:
    held = batches(0, 8)
    log = a_segment(tmp_path / "t-0", 0, held)
    whole = log.read_bytes()
    checkpoint(tmp_path, "replication", {"t 0": 8})

    for size in range(1, len(whole), 7):
        log.write_bytes(whole[:size])
        found, error = read_to_the_error(tmp_path)
        assert found == records_in(held)[: error.offset]
        assert error.offset == size // len(held[0]) * 2
        assert error.next_offset == 8


def test_what_lies_above_all_checkpoints_may_be_torn(tmp_path: Path) -> None:
    directory = a_partition(tmp_path / "t-0", HELD)
    for name in ("recovery-point", "replication"):
        checkpoint(tmp_path, name, {"t 0": 26})
    flipped(f"{20:020d}.log", -5)(directory)

    assert read(tmp_path) == ALL[:28]
    assert read(tmp_path, foreign_end="checkpoint") == ALL[:26]


def test_damage_below_the_high_watermark_does_not_hide_the_segments_after_it(
    tmp_path: Path,
) -> None:
    directory = a_partition(tmp_path / "t-0", HELD, index=False)
    checkpoint(tmp_path, "recovery-point", {"t 0": 10})
    checkpoint(tmp_path, "replication", {"t 0": 30})
    log = directory / f"{SECOND}.log"
    log.write_bytes(log.read_bytes()[:-5])

    found, error = read_to_the_error(tmp_path)

    assert found == ALL[:18]
    assert (error.offset, error.next_offset) == (18, 20)
    assert read(tmp_path, start=20) == ALL[20:]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        pytest.param(removed(f"{SECOND}.log"), f"{SECOND}.index is there", id="its-index"),
        pytest.param(renamed(f"{SECOND}.log", f"{SECOND}.log.1"), ".log.1 is there", id="numbered"),
        pytest.param(
            renamed(f"{SECOND}.log", f"{SECOND}-{TIERED_ID}.log"),
            f"-{TIERED_ID}.log is there, which is a segment of tiered storage: rename it, with `mv ",
            id="tiered",
        ),
        pytest.param(
            packed(f"{SECOND}.log", b"\x1f\x8b", gzip.compress, ".gz"),
            ".log.gz is there, which is gzip: unpack it first, with `gzip -d /",
            id="gzip",
        ),
        pytest.param(
            renamed(f"{SECOND}.log", f"{SECOND}_0_v0.segment"),
            "which is a segment of tiered storage: rename it, with `mv ",
            id="confluent",
        ),
    ],
)
def test_a_segment_of_which_only_a_trace_is_there_is_an_error_between_the_others(
    tmp_path: Path, damage: Damage, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(a_partition(tmp_path / "t-0", HELD))

    found, error = read_to_the_error(tmp_path)

    assert found == ALL[:10]
    assert (error.offset, error.next_offset) == (10, 20)
    assert f"{SECOND}.log: the file is missing, and" in str(error)
    assert said in str(error)
    assert read_to_the_error(tmp_path, start=13)[1].next_offset == 20
    assert read(tmp_path, start=20) == ALL[20:]
    assert caplog.messages == []
    assert read(tmp_path, foreign_end="log") == ALL[:10] + ALL[20:]
    assert "it is left out" in caplog.text
    code, told = run("verify", tmp_path)
    assert code == 1
    assert said in told


def test_a_compacted_log_is_not_read_past_a_missing_segment(tmp_path: Path) -> None:
    held = {0: [a_batch(3)], 10: batches(10, 20), 20: [a_batch(27)], 40: [a_batch(41)]}
    removed(f"{SECOND}.log")(a_partition(tmp_path / "t-0", held))

    found, error = read_to_the_error(tmp_path)

    assert [record.offset for record in found] == [3]
    assert (error.offset, error.next_offset) == (10, 20)
    assert [record.offset for record in read(tmp_path, start=20)] == [27, 41]


@pytest.mark.parametrize(
    ("name", "offsets"),
    [pytest.param(LOG, (0, 10), id="first"), pytest.param(f"{20:020d}.log", (20, -1), id="last")],
)
def test_a_segment_missing_at_an_end_of_the_log_is_an_error(
    tmp_path: Path, name: str, offsets: tuple[int, int]
) -> None:
    removed(name)(a_partition(tmp_path / "t-0", HELD))

    found, error = read_to_the_error(tmp_path)

    assert found == ALL[: offsets[0]]
    assert (error.offset, error.next_offset) == offsets
    assert name in str(error)


def test_segments_that_retention_has_removed_are_not_missing(tmp_path: Path) -> None:
    directory = a_partition(tmp_path / "t-0", HELD)
    renamed(LOG, f"{LOG}.deleted")(directory)  # and the broker died before it came to the index
    assert read(tmp_path) == ALL[10:]

    removed(f"{LOG}.deleted")(directory)
    checkpoint(tmp_path, "log-start", {"t 0": 10})
    assert read(tmp_path) == ALL[10:]
    assert run("verify", tmp_path)[0] == 0


def test_files_beside_a_segment_that_is_there_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = a_partition(tmp_path / "t-0", HELD)
    for name in (f"{LOG}.bak", f"{LOG}~", f"{SECOND} (1).log", f".{LOG}.x1", f"{30:020d}.snapshot"):
        shutil.copyfile(directory / LOG, directory / name)
    (directory / f"{30:020d}.log.cleaned").touch()

    assert read(tmp_path) == ALL
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(gzip.compress(b"".join(HELD[0])), "this is gzip: unpack it first", id="gzip"),
        pytest.param(lzma.compress(b"".join(HELD[0])), "this is xz: unpack it first", id="xz"),
        pytest.param(ZSTD + bytes(100), "this is zstd: unpack it first", id="zstd"),
        pytest.param(b"<Error>AccessDenied</Error>" * 9, "starts with no valid batch", id="text"),
        pytest.param(random.Random(1).randbytes(500), "starts with no valid batch", id="encrypted"),
        pytest.param(b"no", "starts with no valid batch", id="short"),
        pytest.param(flipped, "starts with no valid batch", id="damaged"),
    ],
)
@pytest.mark.parametrize("base_offset", [0, 10])
def test_a_file_that_is_no_log_is_an_error(
    tmp_path: Path, content: bytes | Callable[..., Damage], said: str, base_offset: int
) -> None:
    directory = a_partition(tmp_path / "t-0", {base_offset: batches(base_offset, base_offset + 2)})
    name = f"{base_offset:020d}.log"
    if isinstance(content, bytes):
        (directory / name).write_bytes(content)
    else:
        content(name, -5)(directory)

    found, error = read_to_the_error(tmp_path)

    assert found == []
    assert said in str(error)
    assert "go on with" not in str(error), "where the log goes on is not known"
    assert read(tmp_path, foreign_end="log") == []
    for words in (["topics", tmp_path], ["verify", tmp_path]):
        code, told = run(*words)
        assert code == 1
        assert said in told


def test_a_last_segment_that_is_no_log_is_an_error_after_the_segments_before_it(
    tmp_path: Path,
) -> None:
    directory = a_partition(tmp_path / "t-0", HELD)
    (directory / f"{20:020d}.log").write_bytes(b"not found\n" * 50)

    found, error = read_to_the_error(tmp_path)
    assert found == ALL[:20]
    assert "starts with no valid batch" in str(error)

    for torn in (b"", bytes(5000), HELD[20][0][:-5], HELD[20][0][:15]):
        (directory / f"{20:020d}.log").write_bytes(torn)
        assert read(tmp_path) == ALL[:20], "a crash after the segment was begun"


def test_where_a_log_goes_on_is_not_known_by_a_checkpoint_below_its_end(tmp_path: Path) -> None:
    directory = a_partition(tmp_path / "t-0", HELD)
    checkpoint(tmp_path, "recovery-point", {"t 0": 15})
    removed(f"{SECOND}.log")(directory)
    (directory / f"{20:020d}.log").write_bytes(b"not found\n" * 50)

    assert read_to_the_error(tmp_path)[1].next_offset == 20
    found, error = read_to_the_error(tmp_path, start=20)
    assert (found, error.offset, error.next_offset) == ([], 20, -1)


def test_a_stream_reads_what_precedes_and_spark_is_told_its_option(tmp_path: Path) -> None:
    flipped(f"{20:020d}.log", -5)(a_partition(tmp_path / "t-0", HELD))
    checkpoint(tmp_path, "replication", {"t 0": 30})
    options = parse_read_options({"path": str(tmp_path), "subscribe": "t"})
    reader = reader_of(spark_kbatch.open(tmp_path))
    (task,) = reader.plan(options)

    found, error = up_to_damage(reader.read_task(task, ["value"], options, "action"))

    assert sum(rows.num_rows for rows in found) == 28
    assert 'go on with the option startingOffsets={"t": {"0": 30}}' in str(error)
    assert end_of(tmp_path) == 30, "where the log had ended"


def test_topics_show_what_can_be_read_and_verify_lists_a_batch_with_a_wrong_crc(
    tmp_path: Path,
) -> None:
    flipped(f"{20:020d}.log", -5)(a_partition(tmp_path / "t-0", HELD))
    code, told = run("verify", tmp_path)
    assert (code, "CRC-32C: expected" in told) == (1, True)
    assert run("topics", tmp_path)[0] == 0, "it may be torn: nothing says that it was whole"

    checkpoint(tmp_path, "replication", {"t 0": 30})
    [info] = spark_kbatch.open(tmp_path).describe("t")
    assert info.offsets == (0, 28, 28, 28)
    assert "has offset 30" in info.error
    code, told = run("topics", tmp_path, "t", "--json")
    assert code == 1
    assert '"high_watermark": 28' in told


def test_a_partition_whose_segments_are_all_packed_is_found(tmp_path: Path) -> None:
    directory = a_segment(tmp_path / "backup", 0, HELD[0], index=False).parent
    packed(LOG, b"\x1f\x8b", gzip.compress, ".gz")(directory)

    code, told = run("consume", directory, "backup")
    assert (code, f"{LOG}.gz is there, which is gzip: unpack it first" in told) == (1, True)
    for path in (directory / f"{LOG}.gz", shutil.copy(directory / f"{LOG}.gz", tmp_path / "l.tgz")):
        code, told = run("topics", path)
        assert (code, f"{path} is gzip: unpack it first" in told) == (1, True)


def an_archive(path: Path, log_dir: Path) -> Path:
    """Pack a log dir as `path` says, into one file or each segment by itself; return PATH to open."""
    kind = path.name.partition(".")[2]
    if kind in ("tar", "tgz", "tar.xz", "tar.bz2"):
        with tarfile.open(path, f"w:{ {'tar': '', 'tgz': 'gz'}.get(kind, kind[4:]) }") as archive:
            archive.add(log_dir, "kafka-logs")
    elif kind == "zip":
        shutil.make_archive(str(path.with_suffix("")), "zip", log_dir)
    else:
        compress = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}[kind]
        path.write_bytes(compress((log_dir / "t-0" / LOG).read_bytes()))
    return path


@pytest.mark.parametrize("inside", [False, True], ids=["file", "folder"])
@pytest.mark.parametrize(
    "name", ["a b.tgz", "l.tar", "l.tar.xz", "l.tar.bz2", "l.zip", "0.gz", "0.xz", "0.bz2"]
)
def test_archives_are_named_with_the_command_that_unpacks_them(
    tmp_path: Path, name: str, inside: bool
) -> None:
    """The command is run as it is shown, and what comes out is read."""
    log_dir = a_partition(tmp_path / "logs/t-0", {0: HELD[0]}).parent
    (tmp_path / "backup/deep").mkdir(parents=True)
    archive = an_archive(tmp_path / "backup/deep" / name, log_dir)
    asked = tmp_path / "backup" if inside else archive

    code, told = run("topics", asked)

    assert code == 1
    assert f"there is no log dir at {asked} yet: {archive} is " in told
    command = re.search(r"unpack it first, with `(.+)`", told)
    assert command is not None
    tool = (
        "tar" if "t" in name else {"zip": "unzip", "gz": "gzip", "xz": "xz"}.get(name[2:], "bzip2")
    )
    assert command[1].split()[0] == tool
    if shutil.which(tool) is None:
        return
    subprocess.run(command[1], shell=True, check=True, cwd=archive.parent, capture_output=True)
    unpacked = [one for one in archive.parent.rglob("*") if one.is_file() and one != archive]
    assert (log_dir / "t-0" / LOG).read_bytes() in [one.read_bytes() for one in unpacked]


@pytest.mark.parametrize(
    ("head", "command"), [(b"\x04\x22\x4d\x18", "lz4 -d --rm"), (ZSTD, "zstd -d --rm")]
)
@pytest.mark.parametrize("ending", [True, False])
def test_packed_files_without_the_ending_that_their_tool_demands_are_renamed_first(
    tmp_path: Path, head: bytes, command: str, ending: bool
) -> None:
    directory = a_segment(tmp_path / "t-0", 0, [head + bytes(100)], index=False).parent
    suffix = {"lz4": ".lz4", "zstd": ".zst"}[command.split()[0]]
    name = directory / LOG
    if ending:
        name.rename(f"{name}{suffix}")

    _, error = read_to_the_error(tmp_path)

    shown = f"`{command} {name}{suffix}`"
    assert (shown if ending else f"`mv {name} {name}{suffix} && {shown[1:]}") in str(error)


def test_segments_of_tiered_storage_are_read_once_they_are_renamed(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    partition = bucket / "t-MWJ6FHTfRYy67jzwZdeqSQ/0"
    a_partition(partition, HELD, index=False)
    for log in partition.glob("*.log"):
        log.rename(log.with_name(f"{log.stem}-{TIERED_ID}.log"))
        log.with_name(f"{log.stem}-{TIERED_ID}.rsm-manifest").write_text("{}")

    code, told = run("topics", bucket)
    assert code == 1
    assert (
        f"{TIERED_ID}.log is a segment of tiered storage: rename it, with `mv {partition}/" in told
    )
    while True:
        rows, error = up_to_damage(spark_kbatch.open(partition).read("0"))
        if error is None:
            break
        command = re.search(r"rename it, with `(.+?)`", str(error))
        assert command is not None
        subprocess.run(command[1], shell=True, check=True)
    assert [record for batch in rows for record in builders.as_read(batch)] == ALL


def test_a_folder_of_other_things_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "notes.gz").write_text("not gzip")
    (tmp_path / "notes.txt").write_bytes(gzip.compress(b"of no interest"))

    code, told = run("topics", tmp_path)

    assert (code, "the folder holds something else (notes.gz, notes.txt)" in told) == (1, True)


def test_transactions_before_missing_records_are_read(tmp_path: Path) -> None:
    a_segment(tmp_path / "t-0", 0, HELD[0], index=False)
    checkpoint(tmp_path, "replication", {"t 0": 12})

    for level in ("read_committed", "read_uncommitted"):
        found, error = up_to_damage(spark_kbatch.open(tmp_path).read("t", isolation_level=level))
        assert [record for rows in found for record in builders.as_read(rows)] == ALL[:10]
        assert error is not None


def test_times_are_looked_up_among_what_is_there(tmp_path: Path) -> None:
    flipped(f"{20:020d}.log", -5)(a_partition(tmp_path / "t-0", HELD))
    checkpoint(tmp_path, "replication", {"t 0": 30})
    logs = spark_kbatch.open(tmp_path)

    found = logs.list_offsets({TP: ALL[24].timestamp})

    assert found[TP] == (24, ALL[24].timestamp)
    assert logs.list_offsets({TP: ALL[29].timestamp})[TP] is None


@pytest.mark.parametrize("content", [b"", bytes(960)], ids=["empty", "zeros"])
def test_an_empty_index_at_the_end_of_a_log_is_no_missing_segment(
    tmp_path: Path, content: bytes
) -> None:
    directory = a_partition(tmp_path / "t-0", HELD)
    for suffix in (".index", ".timeindex"):
        (directory / f"{30:020d}{suffix}").write_bytes(content)
    assert read(tmp_path) == ALL
    assert run("verify", tmp_path)[0] == 0

    checkpoint(tmp_path, "replication", {"t 0": 31})
    assert read_to_the_error(tmp_path)[1].next_offset == 31, (
        "another thing shows that it had records"
    )


def test_a_segment_that_a_broker_deletes_while_it_is_looked_at_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = a_partition(tmp_path / "t-0", HELD)
    log, index = (directory / f"{0:020d}.{suffix}" for suffix in ("log", "index"))
    log.unlink()  # as `.log.deleted`, which is gone too by now

    find = foreign_log.find_missing

    def then_the_index_goes(*given: Any) -> Any:
        found = find(*given)
        index.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(foreign_log, "find_missing", then_the_index_goes)
    assert read(tmp_path) == ALL[10:]


def test_an_index_alone_is_found_in_a_log_dir(tmp_path: Path) -> None:
    directory = a_partition(tmp_path / "t-0", {0: HELD[0]})
    removed(LOG)(directory)

    _, error = read_to_the_error(tmp_path)

    assert INDEX in str(error)
