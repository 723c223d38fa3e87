"""Duplicate batches are recognised, and batches out of order refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_kbatch.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from spark_kbatch.files import Files
from spark_kbatch.log.append import append_as_leader
from spark_kbatch.log.partition_log import PartitionLog
from spark_kbatch.log.producers.state import PRODUCER_ID_EXPIRATION_MS, ProducerStates
from spark_kbatch.log.validator import validate
from spark_kbatch.model import AppendOrigin, TopicPartition
from spark_kbatch.record.header import SEQUENCE_MAX, BatchHeader, increment_sequence, unpack
from tests.support import builders
from tests.support.soundness import ensure_sound

PARTITION = TopicPartition("events", 0)
Answer = tuple[str, int]


class Sent(NamedTuple):
    """A batch as a producer sends it."""

    producer_id: int
    epoch: int
    first_sequence: int
    count: int

    def header(self, base_offset: int = 0) -> BatchHeader:
        """Return the header of such a batch in a log."""
        empty = BatchHeader._make([0] * len(BatchHeader._fields))
        return empty._replace(
            base_offset=base_offset,
            last_offset_delta=self.count - 1,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.first_sequence,
            records_count=self.count,
        )

    def data(self) -> bytes:
        """Return its bytes."""
        return builders.idempotent_batch(
            producer_id=self.producer_id,
            epoch=self.epoch,
            base_sequence=self.first_sequence,
            n=self.count,
        )


class Written(NamedTuple):
    """A batch in the model's log: a sequence and an offset for each of its records."""

    sent: Sent
    sequences: list[int]
    offsets: list[int]


def following(sequence: int) -> int:
    return 0 if sequence == 2_147_483_647 else sequence + 1


class Model:
    """A model that works record by record and forgets only what is older than five batches."""

    def __init__(self) -> None:
        self.written: list[Written] = []
        self.next_offset = 0

    def of(self, producer_id: int) -> list[Written]:
        return [batch for batch in self.written if batch.sent.producer_id == producer_id]

    def append(self, sent: Sent) -> Answer:
        sequences = [sent.first_sequence]
        while len(sequences) < sent.count:
            sequences.append(following(sequences[-1]))
        earlier = self.of(sent.producer_id)
        if earlier:
            last = earlier[-1]
            for batch in [b for b in earlier if b.sent.epoch == last.sent.epoch][-5:]:
                if batch.sent.epoch == sent.epoch and batch.sequences == sequences:
                    return "duplicate", batch.offsets[0]
            if sent.epoch < last.sent.epoch:
                return "fenced", last.sent.epoch
            expected = 0 if sent.epoch > last.sent.epoch else following(last.sequences[-1])
            if sent.first_sequence != expected:
                return "out of order", expected
        offsets = [self.next_offset + n for n in range(sent.count)]
        self.next_offset += sent.count
        self.written.append(Written(sent, sequences, offsets))
        return "appended", offsets[0]


def answer_of(append: Callable[[], Answer]) -> Answer:
    try:
        return append()
    except InvalidProducerEpochError as error:
        return "fenced", error.current
    except OutOfOrderSequenceError as error:
        return "out of order", error.expected


@st.composite
def conversations(draw: st.DrawFn, *, size_max: int) -> list[Sent]:
    """Draw mostly batches that continue or repeat, and some arbitrary ones."""
    model, sent = Model(), []
    for _ in range(draw(st.integers(1, size_max))):
        producer_id = draw(st.sampled_from([3, 5]))
        earlier = model.of(producer_id)
        kind = draw(st.sampled_from(["next", "next", "again", "new epoch", "anything"]))
        count = draw(st.integers(1, 4))
        if earlier and kind == "next":
            last = earlier[-1]
            one = Sent(producer_id, last.sent.epoch, following(last.sequences[-1]), count)
        elif earlier and kind == "again":
            one = draw(st.sampled_from(earlier[-7:])).sent
        elif earlier and kind == "new epoch":
            one = Sent(producer_id, earlier[-1].sent.epoch + 1, 0, count)
        else:
            near_the_end = st.integers(SEQUENCE_MAX - 4, SEQUENCE_MAX)
            first = draw(st.integers(0, 4) | near_the_end)
            one = Sent(producer_id, draw(st.integers(0, 2)), first, count)
        model.append(one)
        sent.append(one)
    return sent


@settings(deadline=None, max_examples=300)
@given(conversations(size_max=30))
def test_every_answer_is_that_of_a_log_that_remembers_records(sent: list[Sent]) -> None:
    model, states = Model(), ProducerStates(PARTITION)
    for one in sent:

        def append(one: Sent = one, next_offset: int = model.next_offset) -> Answer:
            duplicate = states.find_duplicate(one.header())
            if duplicate is not None:
                return "duplicate", duplicate.base_offset
            states.ensure_follows(one.header())
            states.add(one.header(next_offset), now_ms=0)
            return "appended", next_offset

        assert answer_of(append) == model.append(one)


def append_to(log: PartitionLog, sent: Sent, *, flush: bool = False, now_ms: int = 0) -> Answer:
    """Append as the replica manager does."""
    data = sent.data()
    written_ms = builders.FIRST_TIMESTAMP_MS
    header = validate(data, PARTITION, log.config, AppendOrigin.CLIENT, now_ms=written_ms)
    before = log.state()
    result = append_as_leader(
        log, before, data, header, origin=AppendOrigin.CLIENT, flush=flush, now_ms=now_ms
    )
    grown = log.state().log_end_offset > before.log_end_offset
    return "appended" if grown else "duplicate", result.base_offset


def as_another_process_has_it(log: PartitionLog) -> PartitionLog:
    return PartitionLog(Files(), log.directory, log.topic_partition, log.config)


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), sent=conversations(size_max=15))
def test_whichever_process_appends_gives_that_answer(
    tmp_path: Path, data: st.DataObject, sent: list[Sent]
) -> None:
    """Segments are small, so that some are rolled in between."""
    config = builders.TopicConfig(segment_bytes=400)
    first = builders.a_log(tmp_path, batches=0, config=config)
    second = as_another_process_has_it(first)
    model = Model()
    for log, producer_id in ((first, 1), (second, 2)):  # loads the producers of both
        greeting = Sent(producer_id, 0, 0, 1)
        assert append_to(log, greeting) == model.append(greeting)
    for one in sent:
        log = data.draw(st.sampled_from([first, second]))
        assert answer_of(lambda log=log, one=one: append_to(log, one)) == model.append(one)
    ensure_sound(first)


@pytest.mark.parametrize(
    ("sequence", "count", "expected"),
    [(0, 1, 1), (SEQUENCE_MAX - 1, 1, SEQUENCE_MAX), (SEQUENCE_MAX, 1, 0), (SEQUENCE_MAX, 3, 2)],
)
def test_sequences_go_on_at_zero(sequence: int, count: int, expected: int) -> None:
    assert increment_sequence(sequence, count) == expected


def test_five_batches_are_remembered_and_the_sixth_is_out_of_order() -> None:
    states = ProducerStates(PARTITION)
    batches = [Sent(3, 0, sequence, 2).header(sequence) for sequence in range(0, 12, 2)]
    for header in batches:
        states.add(header, now_ms=0)

    found = [states.find_duplicate(header) for header in batches]
    assert [batch and batch.base_offset for batch in found] == [None, 2, 4, 6, 8, 10]
    with pytest.raises(OutOfOrderSequenceError, match="sequence 0 to events-0, where 12 is next"):
        states.ensure_follows(batches[0])


def test_a_batch_with_a_part_of_the_sequences_is_no_duplicate() -> None:
    states = ProducerStates(PARTITION)
    states.add(Sent(3, 0, 0, 4).header(), now_ms=0)
    for sent in (Sent(3, 0, 0, 3), Sent(3, 0, 1, 3), Sent(3, 0, 0, 5)):
        assert states.find_duplicate(sent.header()) is None
        with pytest.raises(OutOfOrderSequenceError):
            states.ensure_follows(sent.header())


def test_adding_a_batch_again_changes_nothing() -> None:
    """So a child that was forked in the middle may replay the same batches."""
    states = ProducerStates(PARTITION)
    headers = [Sent(3, 0, n, 1).header(n) for n in range(3)]
    for header in [*headers, *headers]:
        states.add(header, now_ms=0)
    assert [states.find_duplicate(header) is not None for header in headers] == [True] * 3
    states.ensure_follows(Sent(3, 0, 3, 1).header())


def test_an_idle_producer_is_forgotten_and_may_start_anywhere() -> None:
    states = ProducerStates(PARTITION)
    states.add(Sent(3, 4, 0, 1).header(), now_ms=1_000_000)
    states.add(Sent(5, 0, 0, 1).header(), now_ms=2_000_000)
    late = Sent(3, 0, 77, 1).header()
    states.remove_expired(1_000_000 + PRODUCER_ID_EXPIRATION_MS - 1)
    with pytest.raises(InvalidProducerEpochError):
        states.ensure_follows(late)

    states.remove_expired(1_700_000 + PRODUCER_ID_EXPIRATION_MS)
    assert len(states) == 1
    states.ensure_follows(late)


def test_a_producer_that_writes_old_events_is_not_idle(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0)
    now_ms = builders.FIRST_TIMESTAMP_MS + 10 * PRODUCER_ID_EXPIRATION_MS
    assert append_to(log, Sent(3, 0, 0, 2), now_ms=now_ms) == ("appended", 0)
    assert append_to(log, Sent(3, 0, 0, 2), now_ms=now_ms + 1_000_000) == ("duplicate", 0)


def test_a_batch_without_a_producer_id_is_appended_each_time(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0)
    for _ in range(3):
        append_to(log, Sent(-1, -1, -1, 2))
    assert log.state().log_end_offset == 6


def test_a_duplicate_is_not_written_again(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0)
    append_to(log, Sent(3, 0, 0, 2))
    append_to(log, Sent(3, 0, 2, 2))
    before = (log.directory / f"{0:020d}.log").read_bytes(), log.state()

    assert append_to(log, Sent(3, 0, 0, 2)) == ("duplicate", 0)
    assert ((log.directory / f"{0:020d}.log").read_bytes(), log.state()) == before
    ensure_sound(log)


def test_a_duplicate_is_flushed_before_it_is_answered(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0)
    append_to(log, Sent(3, 0, 0, 2), flush=False)
    assert log.state().recovery_point == 0
    assert append_to(log, Sent(3, 0, 0, 2), flush=True) == ("duplicate", 0)
    assert log.state().recovery_point == 2
    assert append_to(log, Sent(3, 0, 2, 2)) == ("appended", 2)


def test_the_cluster_itself_need_not_keep_to_sequences(tmp_path: Path) -> None:
    log = builders.a_log(tmp_path, batches=0)
    for sequence in (5, 5, 2):
        data = Sent(3, 0, sequence, 1).data()
        append_as_leader(
            log,
            log.state(),
            data,
            unpack(data),
            origin=AppendOrigin.COORDINATOR,
            flush=False,
            now_ms=0,
        )
    assert log.state().log_end_offset == 3
