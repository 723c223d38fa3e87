"""What each operation does while one disk of three, or PATH, is in one of these states.

    done      as if nothing were wrong
    rest      by the other disks; that one's replica is not in sync
    names     the command says what is wrong
    refused   with an error; nothing has changed
    waits     until the disk answers, and is done then

Of two words with a stroke between them the first is for the disk of the leader, the other for a follower's.

state                  append   idempotent  commit   overwrite  delete-records  create   alter    grow     delete
---------------------  -------  ----------  -------  ---------  --------------  -------  -------  -------  -------
online                 done     done        done     done       done            done     done     done     done
away                   rest     rest        rest     rest       rest            refused  done     refused  done
back, equal            done     done        done     done       done            done     done     done     done
back, behind           done     done        done     done       done            done     done     done     done
back, missed a change  done     done        done     done       done            done     done     done     done
an older image         done     done        done     done       done            done     done     done     done
an empty one           rest     rest        rest     rest       rest            refused  done     refused  done
another cluster's      rest     rest        rest     rest       rest            refused  done     refused  done
swapped with another   rest     rest        rest     rest       rest            refused  done     refused  done
at two places          rest     rest        rest     rest       rest            refused  done     refused  done
full                   rest     rest        rest     rest       rest            refused  done     refused  done
read-only              rest     rest        rest     rest       rest            refused  done     refused  done
failed                 rest     rest        rest     rest       rest            refused  done     refused  done
hanging                waits    waits       waits    waits      waits           waits    waits    waits    waits
lost power             done     done        done     done       done            done     done     done     done
PATH away              refused  refused     refused  refused    refused         refused  refused  refused  refused
PATH older             refused  refused     refused  refused    refused         refused  refused  refused  refused
PATH restored          done     done        done     done       done            done     done     done     done
PATH at two places     done     done        done     done       done            done     done     done     done

state                  read     verify   replicate  replace  repair      open
---------------------  -------  -------  ---------  -------  ----------  ----
online                 done     done     done       refused  done        done
away                   done     names    names      done     done        done
back, equal            done     done     done       refused  done        done
back, behind           done     names    done       refused  done        done
back, missed a change  done     names    done       refused  done        done
an older image         done     names    done       refused  done        done
an empty one           done     names    names      done     done        done
another cluster's      done     names    names      refused  done        done
swapped with another   done     names    names      refused  done        done
at two places          done     names    names      refused  done        done
full                   done     done     names      refused  done        done
read-only              done     done     names      refused  done        done
failed                 done     names    names      refused  done        done
hanging                waits    waits    waits      refused  waits       waits
lost power             done     names    done       refused  names/done  done
PATH away              refused  refused  refused    refused  refused     done
PATH older             refused  refused  refused    refused  refused     done
PATH restored          done     done     done       refused  done        done
PATH at two places     done     done     done       refused  done        done

Whatever it was: once the disk is back, mended or replaced, or PATH is back and opened, and `replicate` has
run, all three disks have everything that was acknowledged, at its offset, and nothing that was refused or
deleted. Nothing is left to repair, and appends go on.

A disk may also fail within an operation, at any change of a file, once or from then on.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.errors import CommitError, KafkaStorageError, KBatchError
from spark_kbatch.log.state import LogState
from spark_kbatch.model import TopicPartition
from spark_kbatch.replica.partition import Partition
from tests.support import builders
from tests.support.crashes import another_boot, stride_of
from tests.support.disk_states import (
    FOLDER,
    OPERATIONS,
    PATH,
    STATES,
    Case,
    Said,
    be_broken,
    be_mended,
    come_back,
    disks_come_back,
    disks_go_away,
    go_away,
    outcome,
    take_image,
)
from tests.support.failing_disks import (
    BROKEN,
    EVENTS,
    FULL,
    READ_ONLY,
    Killed,
    partition,
    with_clock,
)
from tests.support.reference import Record, encode_batch
from tests.support.store import store_of

LEADER, FOLLOWER = 0, 1
STEPS_MAX = 200


def _expected() -> dict[str, dict[str, str]]:
    """Return the words of the tables above by state and operation."""
    found: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for line in (__doc__ or "").splitlines():
        words = re.split(r"  +", line.strip())
        if words[0] == "state":
            columns = words[1:]
        elif columns and words[0] in STATES:
            found.setdefault(words[0], {}).update(zip(columns, words[1:], strict=True))
    return found


EXPECTED = _expected()


def test_the_table_has_all_states_and_operations() -> None:
    assert [*EXPECTED] == [*STATES]
    assert {tuple(row) for row in EXPECTED.values()} == {tuple(OPERATIONS)}


@pytest.mark.parametrize("node", [LEADER, FOLLOWER], ids=["leader", "follower"])
@pytest.mark.parametrize("state", STATES)
def test_an_operation_does_what_the_table_says_and_nothing_is_lost(state: str, node: int) -> None:
    happens, is_put_right = STATES[state]
    seen = {}
    for operation in OPERATIONS:
        case = Case(node)
        with case.boots:
            happens(case)
            seen[operation] = outcome(case, operation)
            is_put_right(case)
            try:
                case.ensure_whole()
            except (AssertionError, KBatchError, Said) as error:
                error.add_note(f"{state}, {operation}: {seen[operation]}, {case.error!r}")
                raise
    expected = {of: words.split("/")[-1 if node else 0] for of, words in EXPECTED[state].items()}
    assert seen == expected


@pytest.mark.more_in_soak
@pytest.mark.parametrize("node", [LEADER, FOLLOWER], ids=["leader", "follower"])
@pytest.mark.parametrize("lasts", [True, False], ids=["for good", "once"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_disk_may_fail_at_any_change_within_an_operation(
    operation: str, lasts: bool, node: int
) -> None:
    """Or right after it: readers find all that it did on the other disks."""
    failed = True
    for at in range(0, STEPS_MAX, stride_of(15)):
        if not failed:
            return
        case = Case(node)
        failed = False

        def fail(case: Case = case) -> None:
            nonlocal failed
            failed = True
            be_broken(case)
            if not lasts:
                case.disks.look_at, case.disks.look = 0, lambda: case.disks.mend(case.own)

        case.disks.look_at, case.disks.look = at, fail
        ended = outcome(case, operation)
        if not failed:
            be_broken(case)
        try:
            if ended != "refused" and not case.is_deleted:
                case.read()
            be_mended(case)
            case.ensure_whole()
        except (AssertionError, KBatchError, Said) as error:
            error.add_note(f"{operation} that failed at {at}: {ended}, {case.error!r}")
            raise
    pytest.fail(f"it has more than {STEPS_MAX} steps")


@pytest.mark.more_in_soak
@pytest.mark.parametrize("operation", ["append", "commit", "overwrite", "delete-records"])
def test_a_leaders_disk_may_fail_at_any_change_while_another_one_is_away(operation: str) -> None:
    """The one that is left takes everything, and jobs, too."""
    failed = True
    for at in range(0, 2 * STEPS_MAX, stride_of(4)):
        if not failed:
            return
        case = Case(LEADER)
        disks_go_away(case, 2)
        case.append(b"missed")
        failed = False

        def fail(case: Case = case) -> None:
            nonlocal failed
            failed = True
            be_broken(case)

        case.disks.look_at, case.disks.look = at, fail
        ended = outcome(case, operation)
        try:
            if ended != "refused":
                case.read()
            case.wait()
            case.commit()
            case.read()
            case.open()
            case.commit()
            be_mended(case)
            disks_come_back(case, 2)
            case.ensure_whole()
        except (AssertionError, KBatchError) as error:
            error.add_note(f"{operation} that failed at {at}: {ended}, {case.error!r}")
            raise
    pytest.fail(f"it has more than {2 * STEPS_MAX} steps")


def test_copies_are_not_newer_than_a_path_whose_writer_died_before_it_was_flushed() -> None:
    for at in range(STEPS_MAX):
        case = Case(LEADER)
        case.disks.kill_at = at
        try:
            case.alter()
            return
        except Killed:
            case.disks.kill_at = None
        case.open()  # which refreshes the copies
        size = case.process.topic("events").config.max_message_bytes
        case.disks.disk = case.disks.disk.after_power_loss_of(PATH.name)
        with another_boot():
            files = store_of(case.process).metadata.json_files
            assert files.newer_mirror() is None, f"killed at {at}"
            case.open()
            assert case.process.topic("events").config.max_message_bytes == size, f"killed at {at}"


def test_copies_know_who_is_in_sync_though_power_was_lost_and_path_with_it() -> None:
    """Also the first that are made for a topic, with their folders: that was flushed, too."""
    case = Case(FOLLOWER)
    go_away(case)
    case.append(b"missed")
    case.disks.disk = case.disks.disk.after_power_loss_of("disk-0", "disk-2")
    case.disks.take_away(PATH)
    come_back(case)
    with another_boot():
        case.open()
        with case.away(0, 2), pytest.raises(KafkaStorageError, match="events-0 has no in-sync"):
            builders.contents(case.process)
        case.ensure_whole()


@pytest.mark.parametrize("refresh", [Case.open, Case.replicate])
def test_a_disk_that_missed_changes_stands_in_for_all_others_once_it_was_refreshed(
    refresh: Callable[[Case], None],
) -> None:
    case = Case(FOLLOWER)
    case.process.create_topic("gone", replication_factor=3)
    go_away(case)
    case.process.delete_topic("gone")
    case.alter()
    case.append(b"missed")
    come_back(case)
    refresh(case)
    case.append(b"together")
    for lost in (PATH, case.disk(0), case.disk(2)):
        case.disks.take_away(lost)
    case.open(without_nodes=[0, 2])
    assert case.process.topic_names() == ["events"]
    assert case.process.topic("events").config.max_message_bytes == case.size
    case.read()
    case.process.create_topic("gone")
    assert not builders.contents(case.process)[TopicPartition("gone", 0)]


# Older images, when more than one disk is not as it should be.


def _die(*_: object, **__: object) -> None:
    raise Killed


def _made_again(case: Case) -> None:
    """Delete the topic, and make another one of its name, with one record."""
    case.delete()
    case.process.create_topic("events", replication_factor=3)
    case.values, case.start, case.is_deleted = [], 0, False
    case.append(b"new")


def _ensure_whole(case: Case) -> None:
    case.disks.failing.clear()
    case.wait()
    case.ensure_whole()


@pytest.mark.parametrize("error", [FULL, READ_ONLY])
def test_what_only_a_disk_has_that_cannot_be_written_is_read_and_not_given_up(error: int) -> None:
    case = Case(LEADER)
    case.disks.mount_at(case.disk(2), FOLDER / "away")
    case.append(b"third")
    take_image(case)
    case.append(b"fourth")
    come_back(case)
    case.disks.fail(case.disk(1), error)
    case.open()
    case.read()
    with pytest.raises(KafkaStorageError, match="cannot be written"):
        case.append(b"refused")
    case.read()
    case.disks.mount_at(FOLDER / "away", case.disk(2))
    _ensure_whole(case)


@pytest.mark.parametrize("error", [FULL, READ_ONLY])
def test_what_only_a_follower_has_that_cannot_be_written_is_not_given_up_for_an_image(
    error: int,
) -> None:
    """A follower's high watermark is that of its last copy: it tells too little of what was shown."""
    case = Case(2)
    take_image(case)
    case.append(b"third")
    come_back(case)
    case.disks.fail(case.disk(1), error)
    case.open()
    with case.away(LEADER), pytest.raises(KafkaStorageError, match="cannot be written"):
        case.append(b"refused")
    case.append(b"fourth")
    case.read()
    _ensure_whole(case)


def test_a_reader_that_saw_an_image_alone_sees_the_rest_once_others_are_back() -> None:
    case = Case(LEADER)
    take_image(case)
    case.append(b"third")
    come_back(case)
    for node in (1, 2):
        case.disks.mount_at(case.disk(node), FOLDER / f"away-{node}")
    case.open()
    assert len(builders.contents(case.process)[EVENTS]) == 2  # No one can tell.
    for node in (1, 2):
        case.disks.mount_at(FOLDER / f"away-{node}", case.disk(node))
    case.wait()
    case.read()
    _ensure_whole(case)


def test_a_reader_that_finds_a_leader_as_it_saw_it_last_still_looks_at_the_others() -> None:
    case = Case(LEADER)
    reader = with_clock(case.process, case.clock)
    assert len(builders.contents(reader)[EVENTS]) == 2
    take_image(case)
    case.append(b"third")
    come_back(case)
    case.process = reader
    case.read()
    _ensure_whole(case)


@pytest.mark.parametrize("node", [LEADER, FOLLOWER], ids=["leader", "follower"])
@pytest.mark.parametrize("command", ["read", "append", "replicate"])
def test_a_commit_is_decided_and_a_disk_is_an_image_from_before_it_was_placed(
    monkeypatch: pytest.MonkeyPatch, node: int, command: str
) -> None:
    case = Case(node)
    take_image(case)
    with monkeypatch.context() as patches:
        patches.setattr(Coordinator, "_flip", _die)
        with pytest.raises(Killed):
            case.commit()
    case.values.append(b"committed")
    come_back(case)
    case.open()
    getattr(case, command)()
    case.read()
    _ensure_whole(case)


def test_the_only_member_is_an_image_from_before_a_commit_that_is_kept_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No one has the commit's records any more: that is said, and the rest can be used again."""
    case = Case(LEADER)
    for node in (1, 2):
        case.disks.mount_at(case.disk(node), FOLDER / f"away-{node}")
    case.append(b"alone")
    take_image(case)
    flip = Partition.flip_locked

    def fail(partition: Partition, states: Mapping[int, LogState], *, flush: bool) -> None:
        if partition.topic_partition == EVENTS:
            case.disks.fail(case.own, BROKEN)
        flip(partition, states, flush=flush)

    with monkeypatch.context() as patches:
        patches.setattr(Partition, "flip_locked", fail)
        with pytest.raises(CommitError, match="the data is committed"):
            case.commit()
    case.disks.mend(case.own)
    come_back(case)
    for node in (1, 2):
        case.disks.mount_at(FOLDER / f"away-{node}", case.disk(node))
    case.wait()
    case.open()
    with pytest.raises(KafkaStorageError):
        builders.contents(case.process)
    with pytest.raises(Said, match="the log ends at offset 3 instead of 4"):
        case.repair()
    case.wait()
    case.append(b"afterwards")
    assert [one.value for one in builders.contents(case.process)[EVENTS]] == case.values


def test_a_commit_is_not_shown_in_part_if_a_disk_fails_while_it_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(LEADER)
    case.process.create_topic("one", 3, replication_factor=1)
    partitions = case.process.partitions("one")
    data = encode_batch([Record(0, case.clock.now_ms, None, b"committed")])
    extents = builders.staged(case.process, {tuple(tp): [data] for tp in partitions}, flush=False)
    manager = store_of(case.process).manager
    committer = Coordinator(manager, case.clock, adopt_min_bytes=0, flush=False)
    with monkeypatch.context() as patches:
        patches.setattr(Coordinator, "_flip", _die)
        with pytest.raises(Killed):
            committer.commit(extents, transactional_id=builders.JOB)
    with another_boot():
        reader = with_clock(case.process, case.clock)
        opened = case.disks.opened

        def fail(path: Path, **more: Any) -> Any:
            if path.match("one-1/*.log"):
                raise OSError(BROKEN, "broken", str(path))
            return opened(path, **more)

        monkeypatch.setattr(case.disks, "opened", fail)
        monkeypatch.setattr(store_of(reader).snapshots, "_elect", lambda _: None)
        with pytest.raises(KafkaStorageError, match="one-1 has no in-sync replica"):
            store_of(reader).snapshots.replicas(partitions)


@pytest.mark.parametrize("which", ["leader", "all"])
def test_disks_fail_while_decided_commits_are_read_from_them(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(LEADER)
    with monkeypatch.context() as patches:
        patches.setattr(Coordinator, "_flip", _die)
        with pytest.raises(Killed):
            case.commit()
    case.values.append(b"committed")
    with another_boot():
        reader = with_clock(case.process, case.clock)
        leader = partition(reader, TRANSACTION_STATE).view.state().leader
        failing = [case.disk(node) for node in (range(3) if which == "all" else [leader])]
        opened = case.disks.opened

        def fail(path: Path, **more: Any) -> Any:
            if path.match("__transaction_state-0/*.log") and path.parents[2] in failing:
                raise OSError(BROKEN, "broken", str(path))
            return opened(path, **more)

        monkeypatch.setattr(case.disks, "opened", fail)
        monkeypatch.setattr(store_of(reader).snapshots, "_elect", lambda _: None)
        if which == "all":
            with pytest.raises(KafkaStorageError, match="__transaction_state-0 has no in-sync"):
                builders.contents(reader)
        else:
            assert [one.value for one in builders.contents(reader)[EVENTS]] == case.values


def test_what_no_one_was_shown_does_not_stop_writes_beside_a_disk_that_cannot_be_written() -> None:
    """A third member that lacks it shows that it was not acknowledged."""
    for at in range(30):
        case = Case(LEADER)
        case.disks.kill_at = at
        with contextlib.suppress(Killed):
            case.append(b"third", flush=False)
        case.disks.kill_at = None
        ends = [partition(case.process).view.log_of(node).state().log_end_offset for node in (1, 2)]
        if ends != [3, 2]:
            continue
        case.disks.disk = case.disks.disk.after_power_loss_of(case.own.name)
        with another_boot():
            case.open()
            case.disks.fail(case.disk(1), READ_ONLY)
            case.append(b"instead")
            case.read()
        return
    pytest.fail("no process died between its copies to two followers")


def test_a_reader_gets_what_the_furthest_of_two_images_has() -> None:
    case = Case(LEADER)
    for node in (0, 1):
        case.disks.clone(case.disk(node), FOLDER / f"image-{node}")
    for value in (b"third", b"fourth", b"fifth"):
        case.append(value)
    for node in (0, 1):
        case.disks.take_away(case.disk(node))
        case.disks.mount_at(FOLDER / f"image-{node}", case.disk(node))
    case.wait()
    case.open()
    case.read()
    _ensure_whole(case)


def test_a_log_that_was_made_again_is_not_newer_by_its_number_than_an_image_of_the_former_one() -> (
    None
):
    """The states of a log count from one again when it is made again."""
    case = Case(LEADER)
    for number in range(5):
        case.append(b"%d" % number)
    take_image(case)
    case.disks.remove_dir(case.own / "broker-0/events-0")
    case.append(b"without it")
    assert case.process.replicate() == []
    for node in (1, 2):
        case.disks.fail(case.disk(node), BROKEN)
    case.append(b"led by it")
    case.disks.failing.clear()
    case.wait()
    assert case.process.replicate() == []
    case.read()
    come_back(case)
    case.read()
    _ensure_whole(case)


@pytest.mark.parametrize("node", [LEADER, FOLLOWER], ids=["leader", "follower"])
def test_the_image_of_a_topic_that_was_deleted_is_not_followed(node: int) -> None:
    case = Case(node)
    for number in range(5):
        case.append(b"old %d" % number)
    take_image(case)
    _made_again(case)
    come_back(case)
    case.open()
    case.read()
    case.append(b"newer")
    case.read()
    _ensure_whole(case)


def test_the_image_of_a_deleted_topic_is_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the leader has not taken the epoch that another member's leaving has brought."""
    case = Case(FOLLOWER)
    for number in range(4):
        case.append(b"old %d" % number)
    take_image(case)
    _made_again(case)
    place = Partition.place_locked

    def fail(partition: Partition, placed: Any) -> dict[int, LogState]:
        if partition.topic_partition == EVENTS:
            case.disks.fail(case.disk(2), BROKEN)
        return place(partition, placed)

    with monkeypatch.context() as patches:
        patches.setattr(Partition, "place_locked", fail)
        case.commit()
    come_back(case)
    case.read()
    case.open()
    case.read()
    case.append(b"newer")
    case.read()
    case.disks.mend(case.disk(2))
    _ensure_whole(case)


def test_repair_keeps_what_only_a_damaged_replica_has() -> None:
    case = Case(LEADER)
    take_image(case)
    for number in range(3):
        case.append(b"%d" % number)
    come_back(case)
    log = case.disk(1) / "broker-1/events-0"
    name = max(name for name in case.disks.list(log) if name.endswith(".log"))
    data = bytearray(case.disks.read(log / name))
    data[-1] ^= 1
    case.disks.replace(log / name, bytes(data))
    case.disks.mount_at(case.disk(2), FOLDER / "away")
    case.open()
    with pytest.raises(Said):
        case.repair()
    case.disks.mount_at(FOLDER / "away", case.disk(2))
    case.wait()
    case.open()
    case.read()
