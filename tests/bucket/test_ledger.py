"""The loop that commits, answer by answer, and what readers and writers stop at."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from spark_kbatch.bucket.ledger import QUIET_MS, Ledger
from spark_kbatch.bucket.place import create_cluster, read_cluster
from spark_kbatch.errors import (
    ClusterReplacedError,
    CommitError,
    CorruptLedgerError,
    ObjectAccessDeniedError,
    ObjectStoreError,
    OutcomeUnknownError,
    UnknownTopicOrPartitionError,
    UnsupportedLedgerError,
)
from spark_kbatch.ledger import checksummed_json, names
from spark_kbatch.ledger.entries import (
    Entry,
    NewFormat,
    TopicCreation,
    decode,
    encode,
    tombstone_of,
)
from spark_kbatch.ledger.state import LedgerState
from spark_kbatch.store.commits import NOTHING_VISIBLE
from tests.support.bucket_contents import CLUSTER_ID, TOPIC_ID
from tests.support.bucket_ledgers import (
    ROUND_TRIP_MS,
    Answer,
    ScriptedObjects,
    a_ledger,
    a_place,
    cluster_of,
    commit_of,
    conflict,
    denied,
    grow,
    landed_without_an_answer,
    lost,
    rival,
)


@pytest.fixture
def objects() -> ScriptedObjects:
    return a_place()


def ends(ledger: Ledger) -> tuple[int, int]:
    heads = ledger.state.heads[TOPIC_ID]
    return heads[0].next_offset, heads[1].next_offset


def read_entry(objects: ScriptedObjects, number: int) -> Entry:
    name = names.entry_name(number)
    data = cluster_of(objects).get(name)
    assert data is not None
    return decode(data, name)


def test_a_commit_is_seen_by_those_who_follow_and_by_those_who_come(
    objects: ScriptedObjects,
) -> None:
    writer, reader = a_ledger(objects), a_ledger(objects)

    entry = writer.commit(commit_of(3), by="someone")

    assert entry == read_entry(objects, 2)
    assert reader.follow().partition(TOPIC_ID, 0).next_offset == 3
    assert ends(writer) == ends(reader) == ends(a_ledger(objects)) == (3, 0)


def test_a_commit_costs_two_requests_where_no_one_else_writes(objects: ScriptedObjects) -> None:
    ledger = a_ledger(objects)
    objects.requests.clear()

    ledger.commit(commit_of(3))
    grow(ledger, 1)

    assert [request for request, _ in objects.requests] == ["get", "create"] * 2


def test_a_poll_of_a_ledger_without_news_is_one_request(objects: ScriptedObjects) -> None:
    ledger = a_ledger(objects)
    objects.requests.clear()

    ledger.follow()

    assert len(objects.requests) == 1


def test_nothing_is_written_where_nothing_is_to_be(objects: ScriptedObjects) -> None:
    objects.created.clear()

    assert a_ledger(objects).commit(lambda _: None) is None
    assert objects.created == []


def test_what_is_refused_by_the_state_is_not_written(objects: ScriptedObjects) -> None:
    objects.created.clear()

    with pytest.raises(UnknownTopicOrPartitionError):
        a_ledger(objects).commit(commit_of(3, partition=7))
    assert objects.created == []


# Answers.


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([landed_without_an_answer], id="landed, answer lost"),
        pytest.param([lost], id="lost"),
        pytest.param([lost, lost, landed_without_an_answer], id="lost twice, then landed"),
        pytest.param([conflict], id="exists, and nothing there"),
        pytest.param([lost, conflict, conflict], id="lost, then conflicts"),
        pytest.param([denied, denied], id="denied, until credentials are renewed"),
        pytest.param([landed_without_an_answer, denied, lost], id="landed, denied, lost"),
    ],
)
def test_the_same_bytes_are_created_at_the_same_number_until_it_is_decided(
    objects: ScriptedObjects, answers: list[Answer]
) -> None:
    ledger = a_ledger(objects)
    objects.created.clear()
    objects.answers = [*answers]

    entry = ledger.commit(commit_of(3))

    assert entry is not None
    assert len(objects.created) == len(answers) + 1
    assert len({*objects.created}) == 1
    assert entry == read_entry(objects, 2)
    assert ends(ledger) == ends(a_ledger(objects)) == (3, 0)
    assert objects.answers == []


@pytest.mark.parametrize("before", [[], [lost], [lost, conflict]], ids=len)
def test_a_loser_proposes_again_after_the_winner_and_keeps_its_id(
    objects: ScriptedObjects, before: list[Answer]
) -> None:
    ledger = a_ledger(objects, seed=99)
    objects.created.clear()
    objects.answers = [*before, rival]

    entry = ledger.commit(commit_of(3))

    assert entry is not None
    assert entry.number == 3
    # The rival's commit adds one.
    assert ends(ledger) == ends(a_ledger(objects)) == (4, 0)
    assert len({decode(data, name[33:]).entry_id for name, data in objects.created}) == 2


def test_a_loser_waits_at_most_as_many_round_trips_as_it_has_lost(
    objects: ScriptedObjects,
) -> None:
    ledger = a_ledger(objects, seed=99)
    ledger.commit(commit_of(1))  # measures a round trip
    objects.answers = [rival] * 12
    waited: list[float] = []

    def propose(state: LedgerState):  # type: ignore[no-untyped-def]
        waited.append(sum(objects.time.slept))
        objects.time.slept.clear()
        return commit_of(3)(state)

    ledger.commit(propose, timeout_ms=10**9)

    longest = [ROUND_TRIP_MS * min(losses, 8) for losses in range(1, 13)]
    assert len(waited) == 13
    assert all(wait <= most for wait, most in zip(waited[1:], longest, strict=True))
    assert len({round(wait, 3) for wait in waited[1:]}) > 6


def test_a_winner_that_had_a_rival_rests_for_a_round_trip(objects: ScriptedObjects) -> None:
    ledger = a_ledger(objects, seed=99)
    objects.answers = [rival]
    ledger.commit(commit_of(3))
    objects.time.slept.clear()

    ledger.commit(commit_of(3))
    assert len(objects.time.slept) == 1

    objects.time.slept.clear()
    ledger.commit(commit_of(3))
    assert objects.time.slept == []


# Ends without success.


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([lost] * 100, id="never"),
        pytest.param([lost, *[conflict] * 100], id="at first"),
    ],
)
def test_without_an_answer_the_outcome_is_unknown_and_names_the_entry(
    objects: ScriptedObjects, answers: list[Answer]
) -> None:
    ledger = a_ledger(objects)
    objects.answers = answers

    with pytest.raises(OutcomeUnknownError) as raised:
        ledger.commit(commit_of(3), timeout_ms=5000)

    error = raised.value
    assert error.number == 2
    assert error.entry_id in str(error)
    name, data = objects.created[-1]
    assert decode(data, name[33:]).entry_id == error.entry_id
    # It comes later, and is taken as what it is.
    objects.answers = []
    objects.plainly(name, data)
    ledger.commit(commit_of(3))
    assert ends(ledger) == (6, 0)


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([conflict] * 100, id="conflicts"),
        pytest.param([rival] * 100, id="rivals"),
        pytest.param([lost, *[rival] * 100], id="rivals after lost answers"),
    ],
)
def test_where_each_create_was_a_loss_nothing_is_visible(
    objects: ScriptedObjects, answers: list[Answer]
) -> None:
    ledger = a_ledger(objects, seed=99)
    objects.answers = answers

    with pytest.raises(CommitError) as raised:
        ledger.commit(commit_of(50), timeout_ms=2000)

    assert type(raised.value) is CommitError
    assert raised.value.outcome == NOTHING_VISIBLE
    objects.answers = []
    assert max(ends(a_ledger(objects))) < 50


def test_an_entry_that_cannot_be_looked_at_in_time_is_of_unknown_outcome(
    objects: ScriptedObjects,
) -> None:
    ledger = a_ledger(objects)

    def exists(objects: ScriptedObjects, name: str, data: bytes):  # type: ignore[no-untyped-def]
        objects.failing = {"get"}
        return conflict(objects, name, data)

    objects.answers = [landed_without_an_answer, exists]

    with pytest.raises(OutcomeUnknownError):
        ledger.commit(commit_of(3), timeout_ms=2000)


def test_a_store_that_cannot_be_read_in_time_means_that_nothing_is_visible(
    objects: ScriptedObjects,
) -> None:
    ledger = a_ledger(objects)
    objects.failing = {"get"}

    with pytest.raises(CommitError, match="as the test says") as raised:
        ledger.commit(commit_of(3), timeout_ms=2000)

    assert raised.value.outcome == NOTHING_VISIBLE


def test_a_writer_without_the_right_is_told_so_soon(objects: ScriptedObjects) -> None:
    ledger = a_ledger(objects)
    objects.answers = [denied] * 100

    with pytest.raises(ObjectAccessDeniedError):
        ledger.commit(commit_of(3))

    assert len(objects.answers) == 97


def test_a_right_that_is_lost_after_a_lost_answer_leaves_the_outcome_unknown(
    objects: ScriptedObjects,
) -> None:
    ledger = a_ledger(objects)
    objects.answers = [landed_without_an_answer, *[denied] * 100]

    with pytest.raises(OutcomeUnknownError):
        ledger.commit(commit_of(3), timeout_ms=5000)


# Tombstones.


def buried(objects: ScriptedObjects, *numbers: int) -> None:
    for number in numbers:
        tombstone = encode(tombstone_of(read_entry(objects, number)))
        cluster_of(objects).put(names.entry_name(number), tombstone)


def test_one_who_was_away_goes_on_from_the_newest_checkpoint(objects: ScriptedObjects) -> None:
    away = a_ledger(objects)
    grow(a_ledger(objects, every=4), 12)
    buried(objects, *range(2, 11))

    assert away.follow().number == 13
    assert ends(away) == (6, 6)
    grow(away, 1)
    assert ends(a_ledger(objects)) == (7, 6)


def test_ones_own_id_in_a_tombstone_means_that_it_is_committed(objects: ScriptedObjects) -> None:
    ledger = a_ledger(objects)

    def landed_and_buried(objects: ScriptedObjects, name: str, data: bytes):  # type: ignore[no-untyped-def]
        objects.plainly(name, data)
        script, objects.answers = objects.answers, []
        grow(a_ledger(objects, every=4, seed=7), 8)
        buried(objects, *range(8))
        objects.answers = script
        return lost(objects, name, data)

    objects.answers = [landed_and_buried]

    entry = ledger.commit(commit_of(3))

    assert entry is not None
    assert entry.number == 2
    assert ledger.follow().number == 10
    assert ends(ledger) == (7, 4)


def test_anothers_id_in_a_tombstone_means_that_it_is_lost(objects: ScriptedObjects) -> None:
    ledger = a_ledger(objects, seed=99)

    def beaten_and_buried(objects: ScriptedObjects, name: str, data: bytes):  # type: ignore[no-untyped-def]
        script, objects.answers = objects.answers, []
        grow(a_ledger(objects, every=4, seed=7), 8)
        buried(objects, *range(8))
        objects.answers = script
        return lost(objects, name, data)

    objects.answers = [beaten_and_buried]

    entry = ledger.commit(commit_of(3))

    assert entry is not None
    assert entry.number == 10
    assert ends(ledger) == (7, 4)


# Corruption.


def replaced(objects: ScriptedObjects, number: int, **values: object) -> None:
    entry = read_entry(objects, number)._replace(**values)  # type: ignore[arg-type]
    cluster_of(objects).put(names.entry_name(number), encode(entry))


def cut(objects: ScriptedObjects) -> None:
    name = names.entry_name(4)
    cluster_of(objects).put(name, (cluster_of(objects).get(name) or b"")[:-20])


def moved(objects: ScriptedObjects) -> None:
    data = cluster_of(objects).get(names.entry_name(5)) or b""
    cluster_of(objects).put(names.entry_name(4), data)


DAMAGES: dict[str, tuple[Callable[[ScriptedObjects], object], str]] = {
    "cut off": (cut, "sum"),
    "another number": (moved, "it is entry 5"),
    "another id before": (lambda objects: replaced(objects, 4, before="f" * 32), "before it"),
    "another id": (lambda objects: replaced(objects, 3, entry_id="f" * 32), "before it"),
    "a refused content": (
        lambda objects: replaced(objects, 4, content=TopicCreation(TOPIC_ID, "events", (0,))),
        "already exists",
    ),
    "missing before others": (
        lambda objects: cluster_of(objects).delete([names.entry_name(4)]),
        "missing",
    ),
    "missing before a later one that a list shows": (
        lambda objects: cluster_of(objects).delete([*map(names.entry_name, range(4, 60))]),
        "a list shows later",
    ),
    "a tombstone without a checkpoint": (
        lambda objects: buried(objects, 4),
        "no checkpoint that can be read is after it",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_ledger_stops_readers_and_writers(objects: ScriptedObjects, damage: str) -> None:
    grow(a_ledger(objects), 60)
    harm, reason = DAMAGES[damage]
    harm(objects)
    objects.created.clear()

    with pytest.raises(CorruptLedgerError, match=reason) as raised:
        a_ledger(objects)

    assert raised.value.name.startswith(names.LEDGER)
    assert objects.created == []


def test_an_entry_that_is_missing_below_a_checkpoint_stops_readers(
    objects: ScriptedObjects,
) -> None:
    grow(a_ledger(objects, every=4), 7)
    cluster_of(objects).delete([names.entry_name(8)])

    with pytest.raises(CorruptLedgerError, match="it is missing, and checkpoints/"):
        a_ledger(objects)


def test_a_checkpoint_of_another_ledger_stops_readers(objects: ScriptedObjects) -> None:
    grow(a_ledger(objects, every=4), 8)
    replaced(objects, 8, entry_id="f" * 32)

    with pytest.raises(CorruptLedgerError, match="has ffff") as raised:
        a_ledger(objects)

    assert raised.value.name == names.root_name(8)


# Later versions.


@pytest.mark.parametrize(
    ("values", "why"),
    [({"kind": "later"}, "kind 'later'"), ({"v": 1}, "its 'v' is 1; known is 2")],
)
def test_an_entry_of_another_version_stops_those_who_do_not_know_it(
    objects: ScriptedObjects, values: dict[str, object], why: str
) -> None:
    """As of a cluster that was created before the format was what it is."""
    other = json.loads(encode(read_entry(objects, 1)._replace(number=2)).splitlines()[0])
    cluster_of(objects).put(names.entry_name(2), checksummed_json.encode({**other, **values}))

    with pytest.raises(UnsupportedLedgerError, match=why):
        a_ledger(objects)


def test_a_writer_that_does_not_know_the_format_writes_no_more_and_reads(
    objects: ScriptedObjects,
) -> None:
    ledger = a_ledger(objects)
    ledger.commit(lambda _: NewFormat(2))

    with pytest.raises(UnsupportedLedgerError, match="writers need format 2"):
        ledger.commit(commit_of(3))
    assert a_ledger(objects).state.format == 2


# Hints.


@pytest.mark.parametrize(
    "hint",
    [
        pytest.param(None, id="none"),
        pytest.param(b"", id="empty"),
        pytest.param(checksummed_json.encode({"checkpoint": 4, "entry": 4}), id="old"),
        pytest.param(checksummed_json.encode({"checkpoint": 5, "entry": 1}), id="no checkpoint"),
        pytest.param(
            checksummed_json.encode({"checkpoint": 10**9, "entry": 10**9}), id="beyond the end"
        ),
        pytest.param(checksummed_json.encode({"checkpoint": -7}), id="no number"),
        pytest.param(checksummed_json.encode({}), id="nothing"),
    ],
)
def test_a_hint_changes_nothing_but_where_to_look(
    objects: ScriptedObjects, hint: bytes | None
) -> None:
    grow(a_ledger(objects, every=4), 13)
    buried(objects, *range(12))
    cluster_of(objects).delete([names.HINT])
    if hint is not None:
        cluster_of(objects).put(names.HINT, hint)

    found = a_ledger(objects)

    assert ends(found) == (7, 6)
    assert found.state.checkpoint == 12


def test_a_hint_of_the_newest_checkpoint_is_left(objects: ScriptedObjects) -> None:
    grow(a_ledger(objects, every=4), 13)

    assert cluster_of(objects).get(names.HINT) == checksummed_json.encode(
        {"checkpoint": 12, "entry": 12}
    )


# Opening.


@pytest.mark.parametrize(("count", "requests_max"), [(10, 24), (300, 60)])
def test_a_cold_open_reads_one_checkpoint_and_what_came_after(
    objects: ScriptedObjects, count: int, requests_max: int
) -> None:
    ledger = a_ledger(objects)
    grow(ledger, count)
    objects.requests.clear()

    found = a_ledger(objects)

    assert found.state.number == ledger.state.number
    assert len(objects.requests) <= requests_max


def test_entries_are_asked_for_in_windows(objects: ScriptedObjects) -> None:
    grow(a_ledger(objects, every=10**6), 200)
    began_ms = objects.time.now_ms

    a_ledger(objects, every=10**6)

    # One round trip for each window, as the entries of one are asked for at once.
    assert objects.time.now_ms - began_ms <= 25 * ROUND_TRIP_MS


def test_an_entry_that_is_created_while_a_window_is_read_is_not_missing(
    objects: ScriptedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = a_ledger(objects)
    writer = a_ledger(objects)
    grow(writer, 1)
    real = ScriptedObjects.get_many

    def get_many(self: ScriptedObjects, wanted: list[str]) -> list[bytes | None]:
        found = real(self, wanted[:1])
        if len(wanted) > 1 and found[0] is None:
            monkeypatch.setattr(ScriptedObjects, "get_many", real)
            grow(writer, 2)
        return found + real(self, wanted[1:])

    monkeypatch.setattr(ScriptedObjects, "get_many", get_many)

    assert reader.follow().number == 4


def test_two_who_start_a_ledger_start_it_once() -> None:
    objects = ScriptedObjects()
    create_cluster(objects, CLUSTER_ID, "", objects.time.sleep)
    both = [a_ledger(objects, seed=seed) for seed in (1, 2)]

    for ledger in both:
        ledger.start({"a.limit": 7})

    assert [ledger.state.number for ledger in both] == [0, 0]
    assert a_ledger(objects).state.limits == {"a.limit": 7}


def test_who_only_follows_rests_on_checkpoints_that_others_make(objects: ScriptedObjects) -> None:
    writer, reader = a_ledger(objects), a_ledger(objects)
    for _ in range(5):
        for _ in range(50):
            writer.commit(commit_of(1))
        reader.follow()

    assert reader.state.checkpoint > 100
    assert len(reader.state.extents[TOPIC_ID].changes) < 150
    assert (
        reader.changes(TOPIC_ID) == writer.changes(TOPIC_ID) == a_ledger(objects).changes(TOPIC_ID)
    )
    objects.requests.clear()
    reader.changes(TOPIC_ID)
    assert objects.requests == []  # parts of a checkpoint are asked for once


# The cluster at the place.


def test_after_a_quiet_minute_a_process_notices_that_the_cluster_is_another_one(
    objects: ScriptedObjects,
) -> None:
    ledger = a_ledger(objects)
    objects.delete([names.CLUSTER])
    create_cluster(objects, "d2" * 16, "", objects.time.sleep)
    ledger.follow()

    objects.time.now_ms += QUIET_MS
    with pytest.raises(ClusterReplacedError, match="d2d2"):
        ledger.follow()


def test_writers_who_see_each_others_entries_notice_that_the_cluster_is_another_one(
    objects: ScriptedObjects,
) -> None:
    both = [a_ledger(objects, seed=seed) for seed in (1, 2)]
    objects.delete([names.CLUSTER])
    create_cluster(objects, "d2" * 16, "", objects.time.sleep)

    for number in range(3):
        objects.time.now_ms += QUIET_MS // 4
        both[number % 2].commit(commit_of(1))
    objects.time.now_ms += QUIET_MS // 4
    for ledger in both:
        with pytest.raises(ClusterReplacedError, match="d2d2"):
            ledger.commit(commit_of(1))


def test_a_writer_who_never_asks_for_news_notices_that_the_cluster_is_another_one(
    objects: ScriptedObjects,
) -> None:
    ledger = a_ledger(objects)
    objects.delete([names.CLUSTER])
    create_cluster(objects, "d2" * 16, "", objects.time.sleep)
    for _ in range(3):
        objects.time.now_ms += QUIET_MS // 4
        ledger.commit(commit_of(1), is_followed=True)

    objects.time.now_ms += QUIET_MS // 4
    with pytest.raises(ClusterReplacedError, match="d2d2"):
        ledger.commit(commit_of(1), is_followed=True)


def test_a_quiet_minute_costs_one_request_more(objects: ScriptedObjects) -> None:
    ledger = a_ledger(objects)
    objects.time.now_ms += QUIET_MS
    objects.requests.clear()

    ledger.follow()
    ledger.follow()

    assert [name for _, name in objects.requests].count(names.CLUSTER) == 1
    assert len(objects.requests) == 3


def test_of_two_clusters_at_one_place_the_first_stays() -> None:
    objects = ScriptedObjects()

    first = create_cluster(objects, CLUSTER_ID, "passed", objects.time.sleep)
    second = create_cluster(objects, "d2" * 16, "passed", objects.time.sleep)

    assert first == second == read_cluster(objects) == CLUSTER_ID


@pytest.mark.parametrize("version", [1, 3])
def test_a_cluster_of_another_version_is_not_opened(version: int) -> None:
    objects = ScriptedObjects()
    objects.put(
        names.CLUSTER, checksummed_json.encode({"id": CLUSTER_ID, "probe": "", "v": version})
    )

    with pytest.raises(UnsupportedLedgerError, match=f"its 'v' is {version}; known is 2"):
        read_cluster(objects)


def test_a_cluster_is_not_created_where_the_store_never_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = ScriptedObjects()
    monkeypatch.setattr(ScriptedObjects, "create", lost)

    with pytest.raises(ObjectStoreError, match="no answer"):
        create_cluster(objects, CLUSTER_ID, "", objects.time.sleep)
