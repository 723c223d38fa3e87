"""States of one disk of a replicated cluster, or of PATH, and what users do meanwhile.

Everything is in memory. One process has had the cluster open since before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest

from spark_kbatch import Cluster
from spark_kbatch.catalog.log_dirs import RETRY_MS
from spark_kbatch.commit.coordinator import Coordinator, Overwrite
from spark_kbatch.errors import ConfigError, KBatchError
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.store.reports import RepairReport
from tests.support import builders
from tests.support.crashes import another_boot
from tests.support.failing_disks import (
    BROKEN,
    EVENTS,
    FULL,
    READ_ONLY,
    Clock,
    MemoryDisks,
    a_replicated_cluster,
    partition,
    replicas,
    with_clock,
)
from tests.support.reference import Record, encode_batch
from tests.support.store import reader_of, store_of

NODES = [0, 1, 2]
FOLDER = Path("/simulated")
PATH, ASIDE = FOLDER / "cluster", FOLDER / "aside"
NEW_SIZE = 1_234_567


class Case:
    """A cluster on three disks; one of them is `own`, the disk that something happens to."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.disks, self.clock = MemoryDisks(), Clock()
        # A segment for each batch, so that deletions remove files.
        config = TopicConfig(segment_bytes=100)
        made = a_replicated_cluster(FOLDER, self.disks, config=config)
        self.process = with_clock(made, self.clock)
        self.boots = contextlib.ExitStack()
        self.values: list[bytes] = []  # acknowledged, in order from offset 0
        self.start = 0  # below it everything is deleted
        self.error: KBatchError | None = None  # of an operation that was refused
        self.is_deleted, self.is_created, self.is_replaced = False, False, False
        self.partitions, self.size = 1, TopicConfig.max_message_bytes
        for value in [b"first", b"second"]:
            self.append(value)
        self.disks.disk.settled()

    # What users do.

    def append(self, value: bytes = b"appended", *, flush: bool = True) -> None:
        record = Record(0, self.clock.now_ms, None, value)
        self._append(value, encode_batch([record]), flush=flush)

    def append_idempotent(self) -> None:
        self._append(b"sent", builders.idempotent_batch(base_sequence=0, value=b"sent"), flush=True)

    def _append(self, value: bytes, data: bytes, *, flush: bool) -> None:
        result = builders.append_records(self.process, {tuple(EVENTS): data}, flush=flush)[EVENTS]
        if result.error is not None:
            raise result.error
        assert result.base_offset == len(self.values), "an offset is given again, or left out"
        self.values.append(value)

    def commit(self) -> None:
        self._commit(b"committed")

    def overwrite(self) -> None:
        before = len(self.values)
        self._commit(b"instead", Overwrite(self.process.topic("events"), delete_delay_ms=0))
        self.start = before

    def _commit(self, value: bytes, overwrite: Overwrite | None = None) -> None:
        data = encode_batch([Record(0, self.clock.now_ms, None, value)])
        extents = builders.staged(self.process, {tuple(EVENTS): [data]}, flush=True)
        manager = store_of(self.process).manager
        committer = Coordinator(manager, self.clock, adopt_min_bytes=0, flush=True)
        committer.commit(extents, transactional_id=builders.JOB, overwrite=overwrite)
        committer.discard(extents, builders.JOB)
        self.values.append(value)

    def delete_records(self) -> None:
        self.process.delete_records({EVENTS: 1})
        self.start = 1

    def create(self) -> None:
        self.process.create_topic("new", 2, replication_factor=3)
        self.is_created = True

    def alter(self, size: int = NEW_SIZE) -> None:
        self.process.alter_topic("events", {"max.message.bytes": size})
        self.size = size

    def grow(self) -> None:
        self.process.create_partitions("events", 2)
        self.partitions = 2

    def delete(self) -> None:
        self.process.delete_topic("events")
        self.is_deleted = True

    def read(self) -> None:
        found = reader_of(self.process).edges([EVENTS])[EVENTS]
        assert (found.log_start_offset, found.high_watermark) == (self.start, len(self.values))
        records = builders.contents(self.process)[EVENTS]
        shown = [(one.offset, one.value) for one in records]
        assert shown == [*enumerate(self.values)][self.start :]

    def replicate(self) -> None:
        behind = self.process.replicate()
        if behind:
            raise Said(behind)

    def verify(self) -> None:
        self._said(self.process.verify())

    def repair(self) -> None:
        self._said(self.process.repair())

    def _said(self, reports: Iterable[RepairReport]) -> None:
        found = [what for one in reports for what in (*one.damaged, *one.found, *one.offline)]
        if found:
            raise Said(found)

    def replace(self) -> None:
        self.process.replace_log_dir(self.node)
        self.is_replaced = True

    def open(self, without_nodes: Collection[int] | None = None) -> None:
        made = Cluster(
            str(PATH),
            create=True,
            log_dirs=[self.disk(node) for node in NODES],
            without_nodes=without_nodes,
            files=self.disks,
        )
        self.process = with_clock(made, self.clock)

    # What is so afterwards.

    def all_in_sync(self) -> bool:
        return self.is_deleted or all(one.in_sync for one in replicas(self.process))

    def ensure_whole(self) -> None:
        """Check that all disks have everything, that it is read, and that writes go on."""
        process = self.process
        assert process.replicate() == []
        self.verify()
        assert ("new" in process.topic_names()) == self.is_created
        assert ("events" in process.topic_names()) != self.is_deleted
        if self.is_deleted:
            process.create_topic("events", replication_factor=3)
            self.values, self.start = [], 0
        else:
            topic = process.topic("events")
            assert (topic.partitions, topic.config.max_message_bytes) == (
                self.partitions,
                self.size,
            )
            self.read()
        self.append(b"afterwards")
        self.read()
        assert self.all_in_sync()
        logs = [partition(process).view.log_of(node).state() for node in NODES]
        assert len({(one.log_start_offset, one.log_end_offset) for one in logs}) == 1

    # Disks.

    @property
    def own(self) -> Path:
        return self.disk(self.node)

    @property
    def neighbour(self) -> Path:
        return self.disk((self.node + 1) % len(NODES))

    def disk(self, node: int) -> Path:
        return FOLDER / f"disk-{node}"

    @contextlib.contextmanager
    def away(self, *nodes: int) -> Iterator[None]:
        """These disks are not mounted."""
        for node in nodes:
            self.disks.mount_at(self.disk(node), FOLDER / f"away-{node}")
        self.wait()
        yield
        for node in nodes:
            self.disks.mount_at(FOLDER / f"away-{node}", self.disk(node))
        self.wait()

    def wait(self) -> None:
        """Let the time pass in which a disk that failed is not tried again."""
        self.clock.now_ms += 2 * RETRY_MS


class Said(Exception):  # noqa: N818  it is no error
    """A command did its work and named what is wrong."""


Change: TypeAlias = Callable[[Case], object]


def nothing(case: Case) -> None:
    pass


# States of a disk.


def go_away(case: Case) -> None:
    case.disks.mount_at(case.own, ASIDE)


def come_back(case: Case) -> None:
    if not case.is_replaced:
        case.disks.take_away(case.own)
        case.disks.mount_at(ASIDE, case.own)
    case.wait()


def be_away_for_a_while(case: Case) -> None:
    go_away(case)
    case.wait()
    come_back(case)


def miss_an_append(case: Case) -> None:
    go_away(case)
    case.append(b"missed")
    come_back(case)


def miss_a_change(case: Case) -> None:
    go_away(case)
    case.alter(1_111_111)
    come_back(case)


def take_image(case: Case) -> None:
    """Keep the disk as it is, for `come_back`."""
    case.disks.clone(case.own, ASIDE)


def be_an_older_image(case: Case) -> None:
    take_image(case)
    case.append(b"after the image")
    come_back(case)


def be_an_empty_disk(case: Case) -> None:
    go_away(case)
    case.disks.make_dir(case.own)


def be_anothers(case: Case) -> None:
    go_away(case)
    other = FOLDER / "other"
    Cluster(str(other), create=True, log_dirs=[case.own], files=case.disks).create_topic("events")


def be_swapped(case: Case) -> None:
    go_away(case)
    case.disks.mount_at(case.neighbour, case.own)
    case.disks.mount_at(ASIDE, case.neighbour)


def be_at_two_places(case: Case) -> None:
    """The disk is mounted where another one should be, too."""
    case.disks.mount_at(case.neighbour, ASIDE)
    case.disks.clone(case.own, case.neighbour)


def be_at_one_place(case: Case) -> None:
    case.disks.take_away(case.neighbour)
    case.disks.mount_at(ASIDE, case.neighbour)
    case.wait()


def be_full(case: Case) -> None:
    case.disks.fail(case.own, FULL)


def be_read_only(case: Case) -> None:
    case.disks.fail(case.own, READ_ONLY)


def be_broken(case: Case) -> None:
    case.disks.fail(case.own, BROKEN)


def hang(case: Case) -> None:
    case.disks.hang(case.own)


def be_mended(case: Case) -> None:
    case.disks.look_at = None
    case.disks.mend(case.own)
    case.wait()


def lose_power(case: Case) -> None:
    """The disk alone loses what was not flushed."""
    case.append(b"not flushed", flush=False)
    case.disks.disk = case.disks.disk.after_power_loss_of(case.own.name)
    case.boots.enter_context(another_boot())
    case.open()


def replace_it(case: Case) -> None:
    if not case.is_replaced:
        case.replace()
    case.wait()


def disks_go_away(case: Case, *nodes: int) -> None:
    for node in nodes:
        case.disks.mount_at(case.disk(node), FOLDER / f"away{node}")
    case.wait()


def disks_come_back(case: Case, *nodes: int) -> None:
    for node in nodes:
        case.disks.mount_at(FOLDER / f"away{node}", case.disk(node))
    case.wait()


# States of PATH.


def path_goes_away(case: Case) -> None:
    case.disks.mount_at(PATH, ASIDE)


def path_comes_back(case: Case) -> None:
    was_made_again = case.disks.has(PATH)
    case.disks.take_away(PATH)
    case.disks.mount_at(ASIDE, PATH)
    case.wait()
    if was_made_again:
        case.open()  # which brings the one that is back up to date


def path_is_older(case: Case) -> None:
    case.disks.clone(PATH, ASIDE)
    miss_a_change_of_path(case)
    case.disks.take_away(PATH)
    case.disks.mount_at(ASIDE, PATH)


def miss_a_change_of_path(case: Case) -> None:
    case.alter(1_111_111)
    case.append(b"after the image")


def path_is_restored(case: Case) -> None:
    case.disks.take_away(PATH)
    process = case.process
    case.open()
    case.process = process  # which had the lost one open


def path_is_copied(case: Case) -> None:
    """There is a second one, which no one can open: its locks would not be those of the first."""
    case.disks.clone(PATH, ASIDE)
    for create in (False, True):
        log_dirs = [case.disk(node) for node in NODES if create]
        with pytest.raises(ConfigError, match="is a copy of the kbatch cluster"):
            Cluster(str(ASIDE), create=create, log_dirs=log_dirs, files=case.disks)


def open_it(case: Case) -> None:
    case.open()
    case.wait()


# By name: what happens, and what is done about it in the end.
STATES: dict[str, tuple[Change, Change]] = {
    "online": (nothing, nothing),
    "away": (go_away, come_back),
    "back, equal": (be_away_for_a_while, nothing),
    "back, behind": (miss_an_append, nothing),
    "back, missed a change": (miss_a_change, nothing),
    "an older image": (be_an_older_image, nothing),
    "an empty one": (be_an_empty_disk, replace_it),
    "another cluster's": (be_anothers, come_back),
    "swapped with another": (be_swapped, lambda case: (be_swapped(case), case.wait())),
    "at two places": (be_at_two_places, be_at_one_place),
    "full": (be_full, be_mended),
    "read-only": (be_read_only, be_mended),
    "failed": (be_broken, be_mended),
    "hanging": (hang, be_mended),
    "lost power": (lose_power, nothing),
    "PATH away": (path_goes_away, path_comes_back),
    "PATH older": (path_is_older, open_it),
    "PATH restored": (path_is_restored, open_it),
    "PATH at two places": (path_is_copied, nothing),
}

OPERATIONS: dict[str, Change] = {
    "append": Case.append,
    "idempotent": Case.append_idempotent,
    "commit": Case.commit,
    "overwrite": Case.overwrite,
    "delete-records": Case.delete_records,
    "create": Case.create,
    "alter": Case.alter,
    "grow": Case.grow,
    "delete": Case.delete,
    "read": Case.read,
    "verify": Case.verify,
    "replicate": Case.replicate,
    "replace": Case.replace,
    "repair": Case.repair,
    "open": Case.open,
}


# Of these it is seen at once which replicas have them.
RECORDS = ["append", "idempotent", "commit", "overwrite", "delete-records"]


def outcome(case: Case, operation: str) -> str:
    """Run an operation; return how it ended: by one of the words of the tables in test_disk_states."""
    if case.disks.hanging is not None:
        return _outcome_beside_a_hanging_disk(case, operation)
    try:
        OPERATIONS[operation](case)
    except Said:
        return "names"
    except KBatchError as error:
        case.error = error
        return "refused"
    finally:
        case.disks.look_at = None
    return "rest" if operation in RECORDS and not case.all_in_sync() else "done"


def _outcome_beside_a_hanging_disk(case: Case, operation: str) -> str:
    """Return waits, if the operation does so until the disk is mended; else how it ended."""
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(OPERATIONS[operation], case)
        running.add_done_callback(lambda _: case.disks.is_waited_for.set())
        case.disks.is_waited_for.wait()
        waits = not running.done()
        case.disks.mend(case.own)
        try:
            running.result()
        except KBatchError as error:
            case.error = error
            return "refused"
    return "waits" if waits else "done"
