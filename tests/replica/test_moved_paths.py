"""PATH is moved, copied, or mounted at several paths, while its log dirs lie on other disks."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.errors import ConfigError, KafkaStorageError
from tests.support import builders
from tests.support.disk_states import ASIDE, FOLDER, PATH, Case
from tests.support.failing_disks import EVENTS, Killed, with_clock
from tests.support.reference import Record, encode_batch
from tests.support.store import store_of

MOVED = FOLDER / "moved"
IS_A_COPY = "is a copy of the kbatch cluster at"


def opened(case: Case, path: Path) -> Cluster:
    return with_clock(Cluster(str(path), files=case.disks), case.clock)


def append(case: Case, cluster: Cluster, value: bytes) -> None:
    data = encode_batch([Record(0, 1, None, value)])
    found = builders.append_records(cluster, {tuple(EVENTS): data}, flush=True)[EVENTS]
    if found.error is not None:
        raise found.error
    assert found.base_offset == len(case.values)
    case.values.append(value)


def ensure_whole(case: Case, path: Path) -> None:
    case.process = opened(case, path)
    case.read()
    append(case, case.process, b"afterwards")
    assert case.process.replicate() == []
    case.verify()


def file_at(case: Case, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(case.disks.read(path / "cluster.json"))
    return found


def move(case: Case, source: Path = PATH, target: Path = MOVED) -> None:
    case.disks.mount_at(source, target)
    case.wait()


def test_a_copy_at_the_former_path_is_refused() -> None:
    case = Case(0)
    move(case)
    moved = opened(case, MOVED)
    append(case, moved, b"moved")
    case.disks.clone(MOVED, PATH)

    with pytest.raises(ConfigError, match=f"{PATH} {IS_A_COPY} {MOVED}"):
        opened(case, PATH)

    append(case, moved, b"still")
    ensure_whole(case, MOVED)


def test_a_former_copy_at_the_former_path_is_refused() -> None:
    case = Case(0)
    case.disks.clone(PATH, ASIDE)
    move(case)
    append(case, opened(case, MOVED), b"moved")
    move(case, ASIDE, PATH)

    with pytest.raises(ConfigError, match=f"{PATH} is a former PATH .* at {MOVED} now"):
        opened(case, PATH)

    ensure_whole(case, MOVED)


def test_a_process_that_has_the_former_path_open_does_not_write_to_a_copy_there() -> None:
    case = Case(0)
    before = opened(case, PATH)
    append(case, before, b"before")
    move(case)
    append(case, opened(case, MOVED), b"moved")
    case.disks.clone(MOVED, PATH)
    case.wait()

    with pytest.raises(KafkaStorageError, match=IS_A_COPY):
        append(case, before, b"refused")

    ensure_whole(case, MOVED)


def test_who_has_only_read_a_moved_one_does_not_write_once_a_copy_took_its_place() -> None:
    case = Case(0)
    move(case)
    reader = opened(case, MOVED)
    case.process = reader
    case.read()
    case.disks.clone(MOVED, PATH)
    append(case, opened(case, PATH), b"at the former path")

    with pytest.raises(KafkaStorageError, match=IS_A_COPY):
        append(case, reader, b"refused")

    case.disks.take_away(MOVED)
    ensure_whole(case, PATH)


@pytest.mark.parametrize("back", [False, True])
def test_path_may_be_moved(back: bool) -> None:
    case = Case(0)
    move(case)
    append(case, opened(case, MOVED), b"moved")
    if back:
        move(case, MOVED, PATH)
    ensure_whole(case, PATH if back else MOVED)


def test_path_may_be_restored_from_a_backup_where_it_was() -> None:
    case = Case(0)
    case.disks.clone(PATH, ASIDE)
    case.append(b"after the backup")
    case.disks.take_away(PATH)
    move(case, ASIDE, PATH)
    ensure_whole(case, PATH)


def test_path_may_be_mounted_at_several_paths() -> None:
    """Each process sees it at one of them alone, as in containers."""
    case = Case(0)
    at = [PATH, MOVED, FOLDER / "third"]
    processes = [opened(case, PATH)]
    for former, path in itertools.pairwise(at):
        move(case, former, path)
        processes.append(opened(case, path))
        append(case, processes[-1], b"first at %b" % bytes(path))
    is_at, generation = at[-1], file_at(case, at[-1])["generation"]
    for number in range(9):
        path = at[number % 3]
        move(case, is_at, path)
        is_at = path
        append(case, processes[number % 3], b"again %d" % number)
        append(case, opened(case, path), b"newly opened %d" % number)
    assert file_at(case, is_at)["generation"] == generation, "each path is noted once"
    ensure_whole(case, is_at)


def test_who_only_reads_changes_nothing() -> None:
    case = Case(0)
    move(case)
    before = file_at(case, MOVED)
    case.process = opened(case, MOVED)
    case.read()
    case.verify()
    assert file_at(case, MOVED) == before


def test_a_kill_while_a_path_is_noted_does_no_harm() -> None:
    killed = 0
    for step in range(0, 100, 5):
        case = Case(0)
        move(case)
        moved = opened(case, MOVED)
        cluster_file = store_of(moved).manager.metadata.cluster_file
        settle = cluster_file.settle

        def die_in_it(case: Case = case, step: int = step, settle: Any = settle) -> None:
            case.disks.kill_at = step
            settle()
            case.disks.kill_at = None

        cluster_file.settle = die_in_it  # type: ignore[method-assign]
        try:
            append(case, moved, b"moved")
            break
        except Killed:
            killed += 1
        case.disks.kill_at = None
        ensure_whole(case, MOVED)
        case.disks.clone(MOVED, PATH)
        with pytest.raises(ConfigError, match=IS_A_COPY):
            opened(case, PATH)
    assert killed > 3
