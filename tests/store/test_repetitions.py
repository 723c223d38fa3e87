"""A micro-batch is skipped if it is a repetition, and for no other reason; docs/streams.md has the cases.

The table there is what is tested: each of its rows, in a folder and in a bucket, with a checkpoint that is read and
with one that cannot be.
"""

from __future__ import annotations

import itertools
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.errors import CommitError
from tests.conftest import REPOSITORY
from tests.support.bucket_objects import CountingObjects, a_url
from tests.support.spark_streams import PlannedBatch, SparkCheckpoint, SparkDriver

_SECTION = "Checkpoints are never copied nor restored"
_numbers = itertools.count()


def table() -> list[tuple[str, str, str]]:
    """Return the rows of the section's table: what happened, and the two outcomes."""
    page = (REPOSITORY / "docs/streams.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {_SECTION}\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [(what.strip(), read.strip(), unread.strip()) for what, read, unread in rows[2:]]


@pytest.fixture(scope="module", params=["folder", "bucket"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "folder":
        return str(tmp_path_factory.mktemp("cluster"))
    return a_url(CountingObjects())


class Scene:
    """A query, its checkpoint and its topics, which no other test has."""

    def __init__(self, address: str, folder: Path, *, is_read: bool) -> None:
        self.address, self.is_read, self.folder = address, is_read, folder
        self.topic, self.other = (f"{name}-{next(_numbers)}" for name in ("out", "other"))
        self.checkpoint = SparkCheckpoint(folder / "checkpoint")
        self.driver = SparkDriver(address, self.topic)
        self.app_id, self.query_id = f"app-{self.topic}", str(uuid.uuid4())

    @staticmethod
    def rows(start: int, end: int) -> list[str]:
        return [f"{number:03d}" for number in range(start, end)]

    @staticmethod
    def changed(start: int, end: int) -> list[str]:
        return [f"{number:03d} changed" for number in range(start, end)]

    def run(self, available: int, **more: Any) -> PlannedBatch:
        given = {"is_read": self.is_read, "rows": self.rows, "driver": self.driver} | more
        driver, checkpoint = given.pop("driver"), given.pop("checkpoint", self.checkpoint)
        planned: PlannedBatch = driver.micro_batch(checkpoint, available, **given)
        return planned

    def older_driver(self, available: int) -> Callable[[], object]:
        """Plan and stage a micro-batch, and return what commits it."""
        planned, query_id = self.checkpoint.plan(available), self.checkpoint.query_id
        messages = self.driver.stage(self.rows(planned.start, planned.end), query_id)
        folder = str(self.checkpoint.folder) if self.is_read else ""
        return lambda: self.driver.commit(messages, planned.number, folder)

    def version(
        self, number: int, values: Sequence[str], *, topic: str = "", query_id: str | None = ""
    ) -> None:
        named = {"txnAppId": self.app_id, "txnVersion": number}
        of_query = self.query_id if query_id == "" else query_id
        SparkDriver(self.address, topic or self.topic, **named).batch(values, of_query)

    def written(self) -> dict[str, list[str]]:
        with spark_kbatch.open(self.address) as cluster:
            return {
                name: values_of(cluster, name)
                for name in (self.topic, self.other)
                if name in cluster.topic_names()
            }

    def outcome(self, act: Callable[[], object]) -> str:
        """Return what becomes of a micro-batch."""
        before, refused = self.written(), None
        try:
            act()
        except CommitError as error:
            refused = error
        is_same = self.written() == before
        if refused is None:
            return "skipped" if is_same else "written"
        assert is_same
        assert refused.outcome == "nothing is visible"
        assert "restored, copied or shared checkpoint" in str(refused)
        return "refused"


def values_of(cluster: Cluster, topic: str) -> list[str]:
    found = cluster.read(topic, columns=["value"]).read_all().column("value").to_pylist()
    return [value.decode() for value in found]


def died(scene: Scene) -> Iterator[object]:
    yield scene.run(3, is_noted=False)
    yield lambda: scene.run(5)


def died_after_empty_ones(scene: Scene) -> Iterator[object]:
    yield scene.run(3), scene.run(3), scene.run(3), scene.run(5, is_noted=False)
    yield lambda: scene.run(7)


def died_and_rows_differ(scene: Scene) -> Iterator[object]:
    yield scene.run(3, is_noted=False)
    yield lambda: scene.run(5, rows=scene.changed)


def died_and_topic_recreated(scene: Scene) -> Iterator[object]:
    yield scene.run(3, is_noted=False)
    with spark_kbatch.open(scene.address) as cluster:
        cluster.delete_topic(scene.topic)
        cluster.create_topic(scene.topic)
    yield lambda: scene.run(5)


def died_and_topic_changed(scene: Scene) -> Iterator[object]:
    yield scene.run(3, is_noted=False)
    yield lambda: scene.run(5, driver=SparkDriver(scene.address, scene.other))


def zombie_of_the_same(scene: Scene) -> Iterator[object]:
    commit = scene.older_driver(3)
    yield scene.run(5)
    yield commit


def zombie_after_the_next(scene: Scene) -> Iterator[object]:
    commit = scene.older_driver(3)
    yield scene.run(5), scene.run(7)
    yield commit


def restored(scene: Scene, behind: int, more: int) -> Iterator[object]:
    yield scene.run(3)
    copy = scene.checkpoint.copied_to(scene.folder / "copy")
    for number in range(behind):
        yield scene.run(5 + number)
    yield copy.copied_to(scene.checkpoint.folder)
    yield lambda: scene.run(4 + behind + more)


def last_plan_deleted(scene: Scene) -> Iterator[object]:
    yield scene.run(3), scene.run(5)
    for kind in ("offsets", "commits"):
        (scene.checkpoint.folder / kind / "1").unlink()
    yield lambda: scene.run(5)


def both_folders_deleted(scene: Scene) -> Iterator[object]:
    yield scene.run(3), scene.run(5)
    for kind in ("offsets", "commits"):
        shutil.rmtree(scene.checkpoint.folder / kind)
    yield lambda: scene.run(7)


def copied(scene: Scene, topic: str, is_first: bool) -> Iterator[object]:
    yield scene.run(3)
    copy = scene.checkpoint.copied_to(scene.folder / "copy")
    driver = SparkDriver(scene.address, topic)
    if not is_first:
        yield scene.run(5)
    yield lambda: scene.run(6, checkpoint=copy, driver=driver)


def moved(scene: Scene) -> Iterator[object]:
    yield scene.run(3)
    moved_to = SparkCheckpoint(scene.checkpoint.folder.rename(scene.folder / "moved"))
    yield lambda: scene.run(5, checkpoint=moved_to)


def versions(
    scene: Scene, *numbers: int, again: int = 2, values: str = "ab", **more: Any
) -> Iterator[object]:
    for number in numbers or (0, 1, 2):
        yield scene.version(number, ["a", "b"])
    more = {key: scene.other if key == "topic" else value for key, value in more.items()}
    yield lambda: scene.version(again, [*values], **more)


def batch_job_from_the_start(scene: Scene) -> Iterator[object]:
    for number in (0, 1, 2):
        yield scene.version(number, [f"{number}"], query_id=None)
    yield lambda: [scene.version(n, [f"{n} again"], query_id=None) for n in (0, 1)]
    yield lambda: scene.version(2, ["2"], query_id=None)


CASES: dict[str, Callable[[Scene], Iterator[object]]] = {
    "the driver died after the commit, and the query is started again": died,
    "the same, after micro-batches without rows": died_after_empty_ones,
    "the same, and the rows differ, as after a join with a table that has changed": (
        died_and_rows_differ
    ),
    "the same, and the topic was deleted and created again": died_and_topic_recreated,
    "the same, with another option `topic`": died_and_topic_changed,
    "an older driver that still runs commits the same micro-batch later": zombie_of_the_same,
    "an older driver that still runs commits after the next micro-batch": zombie_after_the_next,
    "a checkpoint was restored that is one micro-batch behind, and new rows came": (
        lambda scene: restored(scene, 1, 3)
    ),
    "a checkpoint was restored that is one micro-batch behind, and no rows came": (
        lambda scene: restored(scene, 1, 0)
    ),
    "a checkpoint was restored that is two or more micro-batches behind": (
        lambda scene: restored(scene, 2, 0)
    ),
    "the last file of `offsets` was deleted, and no rows came": last_plan_deleted,
    "`offsets` and `commits` were deleted, and `metadata` was kept": both_folders_deleted,
    "a copied checkpoint, the same topic: the second query to reach a number, with other rows": (
        lambda scene: copied(scene, scene.topic, is_first=False)
    ),
    "a copied checkpoint, another topic: the second query to reach a number": (
        lambda scene: copied(scene, scene.other, is_first=False)
    ),
    "a copied checkpoint: the first query to reach a number": (
        lambda scene: copied(scene, scene.other, is_first=True)
    ),
    "the checkpoint was moved to another folder, with the query stopped": moved,
    "`foreachBatch`, the driver died, and the query is started again": versions,
    "`foreachBatch`, the same, and the rows differ": lambda scene: versions(scene, values="abc"),
    "`foreachBatch`, an older checkpoint was restored": lambda scene: versions(scene, again=1),
    "`foreachBatch`, a new checkpoint under the same name": (
        lambda scene: versions(scene, again=0, query_id="another")
    ),
    "`foreachBatch`, one name for two topics": lambda scene: versions(scene, 2, topic="other"),
    "a batch job runs through its versions from the first one on": batch_job_from_the_start,
}


def test_the_page_has_these_cases() -> None:
    assert [what for what, _, _ in table()] == [*CASES]


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("row", table(), ids=lambda row: row[0])
def test_a_micro_batch_is_written_skipped_or_refused_as_the_page_says(
    address: str, tmp_path: Path, row: tuple[str, str, str], is_read: bool
) -> None:
    what, *expected = row
    scene = Scene(address, tmp_path, is_read=is_read)

    for step in CASES[what](scene):
        if callable(step):
            assert scene.outcome(step) == expected[not is_read]
