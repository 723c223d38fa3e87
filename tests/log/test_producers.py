"""A log that is opened again knows its producers and transactions, whatever a dead writer left."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from spark_kbatch.files import Files
from spark_kbatch.log import retention
from spark_kbatch.log.append import append_as_follower, append_as_leader
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.producers import transaction_index
from spark_kbatch.log.producers.replay import rebuild
from spark_kbatch.log.producers.snapshot import pack, snapshot_offsets, snapshot_path, unpack
from spark_kbatch.log.producers.state import PRODUCER_ID_EXPIRATION_MS, ProducerEntry
from spark_kbatch.log.repair import LogRepair
from spark_kbatch.log.segment import segment_at
from spark_kbatch.log.state import STATE_FILE, create_state
from spark_kbatch.log.truncation import truncate_to
from spark_kbatch.model import (
    AbortedTransaction,
    AppendOrigin,
    AppendResult,
    IsolationLevel,
    ReadRange,
)
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.record.header import unpack as unpack_header
from tests.log.test_producer_state import (
    PARTITION,
    Model,
    Sent,
    answer_of,
    append_to,
    as_another_process_has_it,
    conversations,
)
from tests.support import builders
from tests.support.faults import Fault, FaultyFiles
from tests.support.log_histories import (
    NO_PRODUCER,
    History,
    Written,
    data_batch,
    histories,
    marker_batch,
)
from tests.support.soundness import ensure_sound

SMALL = TopicConfig(segment_bytes=400)
NOW_MS = builders.FIRST_TIMESTAMP_MS


def append_data(
    log: PartitionLog, data: bytes, *, origin: AppendOrigin = AppendOrigin.COORDINATOR
) -> AppendResult:
    """Append as the replica manager does with a batch that it has validated."""
    return append_as_leader(
        log, log.state(), data, unpack_header(data), origin=origin, flush=False, now_ms=NOW_MS
    )


def rebuilt_up_to(log: PartitionLog, offset: int) -> bytes:
    """Return what a snapshot at `offset` holds, made from the batches alone."""
    segments = []
    for path in sorted(log.directory.glob("*.log")):
        segments.append(segment_at(path.parent, int(path.stem)))
    with tempfile.TemporaryDirectory() as empty:
        found = rebuild(
            Files(), Path(empty), PARTITION, lambda _: segments,
            log_start_offset=0, log_end_offset=offset, now_ms=0,
        )  # fmt: skip
    return pack(found.states.entries)


def aborted_of(log: PartitionLog) -> list[AbortedTransaction]:
    """Return what the transaction indexes of all segments list."""
    found = []
    for path in sorted(log.directory.glob("*.log")):
        entries = transaction_index.read(Files(), log.directory, int(path.stem))
        assert entries is not None
        found += entries
    return found


@given(sent=conversations(size_max=12))
def test_a_process_that_opens_the_log_again_gives_the_same_answers(sent: list[Sent]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log, model = builders.a_log(Path(folder), batches=0, files=FaultyFiles()), Model()
        for one in sent:
            log = as_another_process_has_it(log)
            assert answer_of(lambda log=log, one=one: append_to(log, one)) == model.append(one)


@given(sent=conversations(size_max=15))
def test_after_a_roll_one_duplicate_of_a_producer_is_recognised(
    sent: list[Sent],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log, model = (
            builders.a_log(Path(folder), batches=0, config=SMALL, files=FaultyFiles()),
            Model(),
        )
        for one in sent:
            log = as_another_process_has_it(log)
            found = answer_of(lambda log=log, one=one: append_to(log, one, now_ms=NOW_MS))
            expected = model.append(one)
            forgotten = expected[0] == "duplicate" and found[0] in ("out of order", "fenced")
            assert found == expected or forgotten
        for offset in snapshot_offsets(Files(), log.directory):
            data = snapshot_path(log.directory, offset).read_bytes()
            assert data == rebuilt_up_to(log, offset)
        ensure_sound(log)


def test_a_roll_writes_a_snapshot_for_the_new_segment(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0, config=SMALL)
    for sequence in range(12):
        append_to(log, Sent(3, 0, sequence, 1))
    bases = log.segments.bases(log.state())
    assert len(bases) > 2
    assert snapshot_offsets(Files(), log.directory) == bases[1:]


def test_an_append_without_a_producer_rolls_without_a_snapshot_and_the_next_load_writes_it(
    tmp_path: Path,
) -> None:
    log = builders.a_log(tmp_path, batches=0, config=SMALL)
    append_to(log, Sent(3, 0, 0, 1))
    fresh = as_another_process_has_it(log)
    for _ in range(8):
        append_to(fresh, Sent(-1, -1, -1, 1))
    active = fresh.state().segment_base_offset
    assert active > 0
    assert snapshot_offsets(Files(), log.directory) == []

    assert append_to(as_another_process_has_it(log), Sent(3, 0, 0, 1)) == ("duplicate", 0)
    assert snapshot_offsets(Files(), log.directory) == [active]
    assert snapshot_path(log.directory, active).read_bytes() == rebuilt_up_to(log, active)


class CountingFiles(Files):
    """A disk that records which files were opened."""

    def __init__(self) -> None:
        self.opened_names: list[str] = []

    def opened(self, path: Path, *, write: bool = False):  # type: ignore[no-untyped-def]
        self.opened_names.append(path.name)
        return super().opened(path, write=write)


def test_a_load_reads_the_active_segment_alone(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0, config=SMALL)
    for sequence in range(12):
        append_to(log, Sent(3, 0, sequence, 1))
    files = CountingFiles()
    fresh = PartitionLog(files, log.directory, PARTITION, SMALL)
    assert append_to(fresh, Sent(3, 0, 11, 1))[0] == "duplicate"
    base = log.state().segment_base_offset
    assert {name for name in files.opened_names if name.endswith(".log")} == {f"{base:020d}.log"}


def test_a_damaged_snapshot_costs_a_longer_replay_and_nothing_else(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0, config=SMALL)
    for sequence in range(12):
        append_to(log, Sent(3, 0, sequence, 1))
    for offset in snapshot_offsets(Files(), log.directory):
        path = snapshot_path(log.directory, offset)
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert append_to(as_another_process_has_it(log), Sent(3, 0, 11, 1))[0] == "duplicate"


@pytest.mark.parametrize("offset", [2, 4, 9], ids=["within", "at the end", "past the end"])
def test_a_snapshot_at_no_segments_start_is_not_used(tmp_path: Path, offset: int) -> None:
    """A dead writer rolled at that offset; then others appended past it."""
    log = builders.a_log(tmp_path, batches=0)
    for sequence in range(4):
        append_to(log, Sent(3, 0, sequence, 1))
    wrong = {3: ProducerEntry(7, (), last_append_ms=NOW_MS, last_timestamp=NOW_MS)}
    snapshot_path(log.directory, offset).write_bytes(pack(wrong))
    assert append_to(as_another_process_has_it(log), Sent(3, 0, 4, 1)) == ("appended", 4)


def test_snapshots_of_deleted_segments_are_removed_by_the_next_load(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0, config=SMALL)
    for sequence in range(12):
        append_to(log, Sent(3, 0, sequence, 1))
    bases = log.segments.bases(log.state())
    for path in segment_at(log.directory, bases[1]).paths:
        path.unlink()
    assert append_to(as_another_process_has_it(log), Sent(3, 0, 12, 1)) == ("appended", 12)
    assert snapshot_offsets(Files(), log.directory) == bases[2:]


def test_what_a_dead_writer_left_is_discarded_before_a_segment_starts_there(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0, config=SMALL)
    append_to(log, Sent(3, 0, 0, 1))
    stale = snapshot_path(log.directory, 50)
    stale.write_bytes(pack({}))
    leftover = transaction_index.transaction_index_path(log.directory, 50)
    leftover.write_bytes(b"\0" * 34)
    for sequence in range(1, 12):
        append_to(log, Sent(3, 0, sequence, 1))
    assert not stale.exists()
    assert not leftover.exists()


def wrote_segments_at(log: PartitionLog, time_ms: int, *bases: int) -> None:
    for base in bases:
        os.utime(segment_at(log.directory, base).log, ns=(time_ms * 1_000_000,) * 2)


def test_old_events_do_not_make_a_producer_idle(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0)
    late_ms = NOW_MS + 2 * PRODUCER_ID_EXPIRATION_MS
    append_to(log, Sent(3, 0, 0, 1), now_ms=late_ms)
    wrote_segments_at(log, late_ms, 0)
    assert append_to(log, Sent(3, 0, 0, 1), now_ms=late_ms + 1) == ("duplicate", 0)
    day_later_ms = late_ms + PRODUCER_ID_EXPIRATION_MS
    for now_ms in (late_ms + 2, day_later_ms - 1):
        fresh = as_another_process_has_it(log)
        assert append_to(fresh, Sent(3, 0, 0, 1), now_ms=now_ms) == ("duplicate", 0)
    fresh = as_another_process_has_it(log)
    assert append_to(fresh, Sent(3, 0, 0, 1), now_ms=day_later_ms) == ("appended", 1)


def test_old_events_in_a_snapshot_do_not_make_a_producer_idle(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0, config=SMALL)
    early_ms, late_ms = (NOW_MS + days * PRODUCER_ID_EXPIRATION_MS for days in (2, 3))
    append_to(log, Sent(3, 0, 0, 1), now_ms=early_ms)
    for sequence in range(5):
        append_to(log, Sent(4, 0, sequence, 1), now_ms=late_ms)
    append_to(log, Sent(5, 0, 0, 1), now_ms=late_ms)
    for sequence in range(5, 12):
        append_to(log, Sent(4, 0, sequence, 1), now_ms=late_ms)
    bases = sorted(log.segments.bases(log.state()))
    assert 1 < bases[1] <= 6 < bases[-1] == snapshot_offsets(Files(), log.directory)[-1]
    wrote_segments_at(log, early_ms, bases[0])
    wrote_segments_at(log, late_ms, *bases[1:])
    fresh = as_another_process_has_it(log)
    assert append_to(fresh, Sent(5, 0, 0, 1), now_ms=late_ms) == ("duplicate", 6)
    assert append_to(fresh, Sent(3, 0, 0, 1), now_ms=late_ms) == ("appended", 14), "it was idle"


def test_a_truncated_log_loads_its_producers_again(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0)
    append_to(log, Sent(3, 0, 0, 1))
    before = log.state()
    append_to(log, Sent(3, 0, 1, 1))
    back = before._replace(sequence=log.state().sequence + 1)
    log.write_state(back, flush=False)
    log.discard_unrecorded(back)
    assert append_to(log, Sent(3, 0, 1, 1)) == ("appended", 1)


# Transactions, which only a coordinator appends.


def append_written(log: PartitionLog, one: Written) -> None:
    assert append_data(log, one.data).base_offset == one.base_offset


@given(history=histories(), data=st.data())
def test_appended_transactions_leave_the_state_and_the_index_of_a_replay(
    history: History, data: st.DataObject
) -> None:
    """Three processes append, one of which opens the log again each time."""
    with tempfile.TemporaryDirectory() as folder:
        log = builders.a_log(Path(folder), batches=0, config=SMALL, files=FaultyFiles())
        other = as_another_process_has_it(log)
        so_far = History()
        for one in history.written:
            by = data.draw(st.sampled_from([log, other, as_another_process_has_it(log)]))
            append_written(by, one)
            so_far.written.append(one)
            assert log.state().last_stable_offset == so_far.last_stable_offset()
        segments = [
            segment_at(path.parent, int(path.stem)) for path in sorted(log.directory.glob("*.log"))
        ]
        replayed = rebuild(
            Files(), Path(folder), PARTITION, lambda _: segments,
            log_start_offset=0, log_end_offset=history.end_offset, now_ms=0,
        )  # fmt: skip
        assert aborted_of(log) == replayed.aborted
        for path in log.directory.glob("*.txnindex"):
            base = int(path.stem)
            end = min((e.base_offset for e in segments if e.base_offset > base), default=2**62)
            entries = transaction_index.read(Files(), log.directory, base)
            assert entries
            assert all(base <= entry.last_offset < end for entry in entries)


@given(history=histories(), data=st.data())
def test_a_follower_has_the_last_stable_offset_and_the_index_of_a_replay(
    history: History, data: st.DataObject
) -> None:
    """A follower copies several batches at a time, and the high watermark follows."""
    with tempfile.TemporaryDirectory() as folder:
        log = builders.a_log(Path(folder), batches=0, config=SMALL, files=FaultyFiles())
        so_far, high_watermark = History(), 0
        rest = list(history.written)
        while rest:
            count = data.draw(st.integers(1, 4))
            piece, rest = rest[:count], rest[count:]
            so_far.written += piece
            high_watermark = data.draw(st.integers(high_watermark, so_far.end_offset))
            by = data.draw(st.sampled_from([log, as_another_process_has_it(log)]))
            state = append_as_follower(
                by, by.state(), b"".join(one.data for one in piece),
                high_watermark=high_watermark, flush=False, now_ms=NOW_MS,
            ).show()  # fmt: skip
            assert state.high_watermark == high_watermark
            assert state.last_stable_offset == so_far.last_stable_offset(high_watermark)
        end = history.end_offset  # the leader says so without sending more batches
        state = log.move_high_watermark(log.state(), end, flush=False, now_ms=NOW_MS)
        assert state.last_stable_offset == history.last_stable_offset()
        marked = {(one.producer_id, one.base_offset) for one in history.written if one.ends}
        assert {(one.producer_id, one.last_offset) for one in aborted_of(log)} <= marked
        for path in log.directory.glob("*.txnindex"):
            bases = [base for base in log.segments.bases(log.state()) if base > int(path.stem)]
            entries = transaction_index.read(Files(), log.directory, int(path.stem))
            assert entries
            assert int(path.stem) <= entries[0].last_offset
            assert entries[-1].last_offset < min(bases, default=2**62)


@given(history=histories(), data=st.data())
def test_a_transaction_whose_marker_is_truncated_is_open_again(
    history: History, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = builders.a_log(Path(folder), batches=0, config=SMALL, files=FaultyFiles())
        for one in history.written:
            append_written(log, one)
        left = data.draw(st.integers(0, len(history.written) - 1))
        offset = history.written[left].base_offset
        state = truncate_to(log, log.state(), offset, now_ms=NOW_MS)
        kept = History()
        kept.written = history.written[:left]
        assert state.last_stable_offset == kept.last_stable_offset()
        assert all(one.last_offset < offset for one in aborted_of(log))
        for one in history.written[left:]:
            append_written(log, one)
        assert log.state().last_stable_offset == history.last_stable_offset()


def an_open_transaction(tmp_path: Path) -> PartitionLog:
    """Open a transaction of producer 1 at offset 1."""
    log = builders.a_log(tmp_path, batches=0)
    append_data(log, data_batch(base_offset=0))
    append_data(log, data_batch(base_offset=1, producer_id=1, transactional=True))
    return log


@pytest.mark.parametrize("aborts", [False, True], ids=["commit", "abort"])
def test_a_transaction_whose_marker_a_power_loss_took_is_open_again(
    tmp_path: Path, aborts: bool
) -> None:
    log = an_open_transaction(tmp_path)
    log.write_state(log.state()._replace(recovery_point=2), flush=True)
    append_data(log, marker_batch(base_offset=0, producer_id=1, abort=aborts))
    builders.append(log, builders.batch(n=1))
    path = segment_at(log.directory, 0).log
    marker_size = len(marker_batch(base_offset=0, producer_id=1, abort=aborts))
    path.write_bytes(path.read_bytes()[: -marker_size // 2 - len(builders.batch(n=1))])
    create_state(Files(), log.directory, log.state()._replace(boot_id=b"another machine!"))

    read, after = as_another_process_has_it(log).state(), as_another_process_has_it(log)
    assert (read.last_stable_offset, read.high_watermark) == (1, 2)
    written = after.discard_unrecorded(after.state())
    assert (written.last_stable_offset, written.high_watermark) == (1, 2)
    append_data(after, marker_batch(base_offset=0, producer_id=1, abort=aborts))
    assert after.state().last_stable_offset == 3


def test_a_repaired_log_has_the_open_transactions_of_its_batches(tmp_path: Path) -> None:
    log = an_open_transaction(tmp_path)
    builders.append(log, builders.batch(n=2))
    (log.directory / "partition.metadata").write_text(
        "version: 0\ntopic_id: nyBBbFDuTeu_f1pLaD4Tcg"
    )
    (log.directory / STATE_FILE).unlink()

    LogRepair(as_another_process_has_it(log), dry_run=False).run("nyBBbFDuTeu_f1pLaD4Tcg", None)

    state = as_another_process_has_it(log).state()
    assert (state.last_stable_offset, state.high_watermark) == (1, 4)


def test_deleted_records_of_an_open_transaction_do_not_hold_back_what_came_after_them(
    tmp_path: Path,
) -> None:
    log = an_open_transaction(tmp_path)
    builders.append(log, builders.batch(n=2))
    retention.delete_records(log, log.state(), 4, now_ms=NOW_MS)
    builders.append(log, builders.batch(n=1))
    assert log.state().last_stable_offset == 5
    append_to(log, Sent(9, 0, 0, 1))
    assert log.state().last_stable_offset == 5, (
        "it does not go back to where the transaction started"
    )

    append_data(log, marker_batch(base_offset=0, producer_id=1, abort=True))
    assert log.state().last_stable_offset == 7


def test_an_open_transaction_holds_the_last_stable_offset_for_any_append(tmp_path: Path) -> None:
    log = an_open_transaction(tmp_path)
    builders.append(log, builders.batch(n=2))
    append_data(as_another_process_has_it(log), data_batch(base_offset=0))
    append_to(as_another_process_has_it(log), Sent(9, 0, 0, 1))
    state = log.state()
    assert (state.last_stable_offset, state.high_watermark) == (1, 6)
    append_data(
        as_another_process_has_it(log), marker_batch(base_offset=0, producer_id=1, abort=True)
    )
    assert log.state().last_stable_offset == 7
    assert aborted_of(log) == [AbortedTransaction(1, 1, 6, 7)]


def test_reading_committed_data_leaves_out_what_was_aborted(tmp_path: Path) -> None:
    log = an_open_transaction(tmp_path)
    committed = IsolationLevel.READ_COMMITTED
    read = log.read(log.state(), ReadRange(0, max_bytes=1 << 20, isolation=committed))
    assert [header.base_offset for _, header in read.batches] == [0]
    assert not log.read(log.state(), ReadRange(1, max_bytes=1 << 20, isolation=committed)).batches
    assert len(log.read(log.state(), ReadRange(1, max_bytes=1 << 20)).batches) == 1
    append_data(log, marker_batch(base_offset=0, producer_id=1, abort=True))
    read = log.read(log.state(), ReadRange(0, max_bytes=1 << 20, isolation=committed))
    assert [(one.producer_id, one.first_offset) for one in read.aborted] == [(1, 1)]


def test_a_marker_of_a_replaced_coordinator_or_producer_is_refused(tmp_path: Path) -> None:
    log = an_open_transaction(tmp_path)

    def marker(*, epoch: int, coordinator_epoch: int) -> bytes:
        return marker_batch(
            base_offset=0,
            producer_id=1,
            abort=False,
            epoch=epoch,
            coordinator_epoch=coordinator_epoch,
        )

    append_data(log, marker(epoch=1, coordinator_epoch=5))
    before = log.state()
    with pytest.raises(TransactionCoordinatorFencedError, match=r"epoch 4 .* epoch is 5"):
        append_data(log, marker(epoch=1, coordinator_epoch=4))
    with pytest.raises(InvalidProducerEpochError):
        append_data(log, marker(epoch=0, coordinator_epoch=5))
    assert log.state() == before
    append_data(log, marker(epoch=1, coordinator_epoch=5))
    assert log.state().last_stable_offset == log.state().log_end_offset


def test_a_producer_with_an_open_transaction_writes_nothing_outside_of_it(tmp_path: Path) -> None:
    log = an_open_transaction(tmp_path)
    data = data_batch(base_offset=0, producer_id=1, base_sequence=1)
    with pytest.raises(InvalidTxnStateError, match="open since offset 1"):
        append_data(log, data, origin=AppendOrigin.CLIENT)


def test_after_a_marker_with_a_new_epoch_sequences_start_at_zero(tmp_path: Path) -> None:
    log = an_open_transaction(tmp_path)
    append_data(log, marker_batch(base_offset=0, producer_id=1, abort=False, epoch=1))
    for fresh in (log, as_another_process_has_it(log)):
        wrong = data_batch(base_offset=0, producer_id=1, epoch=1, base_sequence=1)
        with pytest.raises(OutOfOrderSequenceError, match="where 0 is next"):
            append_data(fresh, wrong, origin=AppendOrigin.CLIENT)
    right = data_batch(base_offset=0, producer_id=1, epoch=1, base_sequence=0)
    assert append_data(log, right, origin=AppendOrigin.CLIENT).base_offset == 3


def abort_twice_at_most(log: PartitionLog) -> None:
    """Abort as a coordinator does that may get no answer the first time."""
    marker = marker_batch(base_offset=0, producer_id=1, abort=True)

    def append() -> None:
        append_as_leader(
            log, log.state(), marker, unpack_header(marker),
            origin=AppendOrigin.COORDINATOR, flush=True, now_ms=NOW_MS,
        )  # fmt: skip

    try:
        append()
    except OSError:
        append()


@pytest.mark.parametrize("torn", [False, True], ids=["failed", "torn"])
def test_an_abort_that_fails_at_any_step_is_repeated_and_listed_once(
    tmp_path: Path, torn: bool
) -> None:
    original = an_open_transaction(tmp_path / "original")

    def copy(name: str, files: Files) -> PartitionLog:
        shutil.copytree(original.directory, tmp_path / name)
        return PartitionLog(files, tmp_path / name, PARTITION, TopicConfig())

    counting = FaultyFiles()
    abort_twice_at_most(copy("counted", counting))
    assert len(counting.steps) > 3
    for at in range(len(counting.steps)):
        name = f"fails at {at}"
        abort_twice_at_most(copy(name, FaultyFiles(Fault(at=at, error=errno.EIO, torn=torn))))
        log = PartitionLog(Files(), tmp_path / name, PARTITION, TopicConfig())
        assert aborted_of(log) == [AbortedTransaction(1, 1, 2, 3)], name
        assert log.state().last_stable_offset == log.state().log_end_offset


def test_markers_without_a_transaction_change_only_epochs(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=1)
    append_data(log, marker_batch(base_offset=0, producer_id=5, abort=True, epoch=2))
    assert not list(log.directory.glob("*.txnindex"))
    assert log.state().last_stable_offset == log.state().log_end_offset
    with pytest.raises(InvalidProducerEpochError):
        append_data(
            as_another_process_has_it(log),
            data_batch(base_offset=0, producer_id=5, epoch=1),
            origin=AppendOrigin.CLIENT,
        )


def test_the_snapshot_of_a_roll_in_a_transaction_has_where_it_began(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0, config=SMALL)
    history = History()
    for _ in range(8):
        history.append(1, transactional=True)
    history.append(NO_PRODUCER, transactional=False)
    for one in history.written:
        append_written(log, one)
    for offset in snapshot_offsets(Files(), log.directory):
        entries = unpack(snapshot_path(log.directory, offset).read_bytes())
        assert entries is not None
        assert entries[1].txn_first_offset == 0
    assert segment_at(log.directory, 0).log.exists()
    assert log.state().last_stable_offset == 0
