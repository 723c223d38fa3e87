"""A micro-batch is skipped if it is a repetition, and for no other reason; docs/streams.md has the cases.

The table there is what is tested: each of its rows, in a folder, in a bucket and in a real cluster, with a checkpoint
that is read and with one that cannot be. Where a real cluster does otherwise, docs/exactly-once.md says so.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import pickle
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.bucket.ledger import CHECKPOINT_EVERY
from spark_kbatch.bucket.shared_ledger import SharedLedger
from spark_kbatch.cluster.job import coordinator_for
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.errors import CommitError, ConfigError
from spark_kbatch.ledger.entries import LedgerCommit, MicroBatch
from spark_kbatch.model import TopicPartition
from spark_kbatch.opening.stores import begin_job
from spark_kbatch.options.remote import is_address
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.spark.writer import planned_offsets
from spark_kbatch.store.commits import Author, Commit
from spark_kbatch.store.repetitions import UNREAD, Attempt, Evidence, RowSums
from tests.conftest import REPOSITORY
from tests.support.bucket_objects import CountingObjects, a_url
from tests.support.spark_streams import PREFIX, PlannedBatch, SparkCheckpoint, SparkDriver
from tests.support.transactional_cluster import TransactionalCluster

_numbers = itertools.count()
_HEAD = "| what happened | the checkpoint is read | it cannot be read |\n|---|---|---|\n"


def table(page: str) -> dict[str, tuple[str, str]]:
    """Return the rows of a page's table: what happened, and the two outcomes."""
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    rows = text.partition(_HEAD)[2].partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {what: (read, unread) for what, read, unread in cells}


@pytest.fixture(params=["folder", "bucket", "real cluster"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place."""
    match request.param:
        case "folder":
            yield str(tmp_path / "cluster")
        case "bucket":
            yield a_url(CountingObjects())
        case _:
            with TransactionalCluster() as brokers:
                yield brokers.address


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

    def another(self, topic: str = "") -> SparkDriver:
        """Return the driver of another query: in a real cluster it has a prefix of its own."""
        return SparkDriver(self.address, topic or self.topic, transactional_id_prefix="another")

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
        """Return the values of topics that have some: a task creates a topic of a real cluster."""
        with spark_kbatch.open(self.address) as cluster:
            names = {self.topic, self.other} & {*cluster.topic_names()}
            return {name: values for name in names if (values := values_of(cluster, name))}

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
        assert "See docs/streams.md" in str(refused)
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


def batch_job_with_other_rows(scene: Scene) -> Iterator[object]:
    yield scene.version(2, ["a", "b"], query_id=None)
    yield lambda: scene.version(2, ["a", "b", "late"], query_id=None)


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
    "a batch job writes its last version again, and the rows differ": batch_job_with_other_rows,
}


OUTCOMES = table("streams.md")
OTHERS_IN_A_REAL_CLUSTER = table("exactly-once.md")


def test_the_pages_have_these_cases() -> None:
    assert [*OUTCOMES] == [*CASES]
    assert OTHERS_IN_A_REAL_CLUSTER.keys() < OUTCOMES.keys()


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("what", OUTCOMES)
def test_a_micro_batch_is_written_skipped_or_refused_as_the_page_says(
    address: str, tmp_path: Path, what: str, is_read: bool
) -> None:
    others = OTHERS_IN_A_REAL_CLUSTER if is_address(address) else {}
    expected = others.get(what, OUTCOMES[what])
    scene = Scene(address, tmp_path, is_read=is_read)

    for step in CASES[what](scene):
        if callable(step):
            assert scene.outcome(step) == expected[not is_read]


# What the error says, and what a user may decide.


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(CommitError) as raised:
        act()
    again = pickle.loads(pickle.dumps(raised.value))
    assert str(again) == str(raised.value)
    return str(again)


def test_the_error_names_both_micro_batches_and_where_a_new_checkpoint_loses_nothing(
    address: str, tmp_path: Path
) -> None:
    scene = Scene(address, tmp_path, is_read=True)
    scene.run(3)
    copy = scene.checkpoint.copied_to(tmp_path / "copy")
    scene.run(5)

    later = SparkDriver(address, scene.topic)
    said = refusal(lambda: scene.run(9, checkpoint=copy, driver=later))

    query = scene.checkpoint.query_id
    assert f"micro-batch 1 of {query} is no repetition" in said
    assert f"Committed is 1: 2 rows to {scene.topic} with 0 + 6 bytes, 20" in said
    assert f"by run {scene.driver.run_id}" in said
    assert f"this has 6 rows to {scene.topic} with 0 + 18 bytes" in said
    assert f"by run {later.run_id}" in said
    assert 'without doubling from where 1 ended: {"log": 5}.' in said
    assert f"'skip {query} 1', if its rows are in the topic, or 'write {query} 1'" in said


def go_on(scene: Scene, start: int, topic: str) -> None:
    """Run another query, whose new checkpoint starts at an offset."""
    scene.run(
        9 - start,
        checkpoint=SparkCheckpoint(scene.folder / "new"),
        driver=scene.another(topic),
        rows=lambda first, last: scene.rows(start + first, start + last),
    )


def test_a_new_checkpoint_that_starts_where_the_error_says_loses_and_doubles_nothing(
    address: str, tmp_path: Path
) -> None:
    scene = Scene(address, tmp_path, is_read=True)
    scene.run(3)
    copy = scene.checkpoint.copied_to(tmp_path / "copy")
    scene.run(5)
    said = refusal(lambda: scene.run(9, checkpoint=copy))

    (start,) = map(int, re.findall(r'ended: {"log": ([0-9]+)}', said))
    go_on(scene, start, scene.topic)

    assert scene.written()[scene.topic] == scene.rows(0, 9)


def where_its_last_ended(scene: Scene, topic: str, checkpoint: SparkCheckpoint) -> int:
    """Find it as the pages say: the history, or the group, has the number, and the checkpoint has its end."""
    with spark_kbatch.open(scene.address) as cluster:
        names = [topic] if topic in cluster.topic_names() else []
        written = (
            [
                (at.committed_offset or 0) - 1
                for group in cluster.groups()
                for tp, at in group.offsets.items()
                if group.group_id == PREFIX and tp == (topic, 0)
            ]
            if cluster.is_remote
            else [
                commit.sequence
                for name in names
                for commit in cluster.history(name)
                if commit.author.query_id == checkpoint.query_id
            ]
        )
    number = max(written, default=checkpoint.newest("commits"))
    planned = (checkpoint.folder / "offsets" / f"{number}").read_text().splitlines()
    return int(json.loads(planned[2])["log"])


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("first", ["the first query", "the copy"])
def test_with_another_topic_a_new_checkpoint_that_starts_as_the_page_says_loses_nothing(
    address: str, tmp_path: Path, first: str, is_read: bool
) -> None:
    """The other topic lacks the rows of the micro-batch that went to the first one."""
    scene = Scene(address, tmp_path, is_read=is_read)
    scene.run(3)
    queries = [
        (scene.topic, scene.checkpoint, 0),
        (scene.other, scene.checkpoint.copied_to(tmp_path / "copy"), 3),
    ]
    if first == "the copy":
        queries.reverse()
    (faster, ahead, _), (topic, checkpoint, begins) = queries
    scene.run(5, checkpoint=ahead, driver=SparkDriver(address, faster))
    driver = SparkDriver(address, topic)

    said = refusal(lambda: scene.run(6, checkpoint=checkpoint, driver=driver))
    assert "ended: {" not in said
    assert f"from where the last micro-batch ended that it wrote to {topic}, which" in said

    go_on(scene, where_its_last_ended(scene, topic, checkpoint), topic)
    assert scene.written()[topic] == scene.rows(begins, 9)


def test_a_topic_that_a_query_left_goes_on_where_its_own_last_micro_batch_ended(
    address: str, tmp_path: Path
) -> None:
    """Its numbers went on in another topic before an older checkpoint was restored."""
    scene = Scene(address, tmp_path, is_read=True)
    scene.run(3)
    copy = scene.checkpoint.copied_to(tmp_path / "copy")
    scene.run(5)
    for available in (7, 9):
        scene.run(available, driver=SparkDriver(address, scene.other))

    assert "ended: {" not in refusal(lambda: scene.run(9, checkpoint=copy))
    go_on(scene, where_its_last_ended(scene, scene.topic, scene.checkpoint), scene.topic)
    assert scene.written()[scene.topic] == scene.rows(0, 9)


def test_another_try_of_a_batch_job_is_told_how_to_go_on(address: str, tmp_path: Path) -> None:
    scene = Scene(address, tmp_path, is_read=True)
    scene.version(2, ["a", "b"], query_id=None)
    said = refusal(lambda: scene.version(2, ["a", "b", "late"], query_id=None))

    assert "checkpoint" not in said
    assert "another try of the same job, let it skip" in said
    assert "give a higher txnVersion" in said
    assert f"Committed is 2: 2 rows to {scene.topic} with 0 + 2 bytes" in said
    assert f"this has 3 rows to {scene.topic} with 0 + 6 bytes" in said

    (skip,) = re.findall(r"'(skip [^']+)'", said)
    named = {"txnAppId": scene.app_id, "resolve.micro.batch": skip}
    SparkDriver(address, scene.topic, txnVersion=2, **named).batch(["a", "b", "late"])
    assert scene.written()[scene.topic] == ["a", "b"]
    SparkDriver(address, scene.topic, txnVersion=3, **named).batch(["late"])
    assert scene.written()[scene.topic] == ["a", "b", "late"]


def test_sources_that_are_long_are_not_kept(address: str, tmp_path: Path) -> None:
    scene = Scene(address, tmp_path, is_read=True)
    planned = scene.checkpoint.plan(3)
    path = scene.checkpoint.folder / "offsets/0"
    path.write_text(path.read_text() + "\n" + "x" * 5000)
    scene.run(3)
    path.unlink()
    (scene.checkpoint.folder / "commits/0").unlink()

    said = refusal(lambda: scene.run(3))
    assert f"that it wrote to {scene.topic}, which is not known here; the page says how" in said
    assert planned.number == 0


def decided(scene: Scene, what: str, number: int, query_id: str = "") -> SparkDriver:
    of_query = query_id or scene.checkpoint.query_id
    given = {"resolve_micro_batch": f"{what} {of_query} {number}"}
    return SparkDriver(scene.address, scene.topic, **given)


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("behind", [1, 2])
@pytest.mark.parametrize("what", ["skip", "write"])
def test_a_user_decides_about_one_micro_batch(
    address: str,
    tmp_path: Path,
    what: str,
    behind: int,
    is_read: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene(address, tmp_path, is_read=is_read)
    scene.run(3)
    copy = scene.checkpoint.copied_to(tmp_path / "copy")
    for number in range(behind):
        scene.run(5 + number)
    before = scene.written()[scene.topic]
    expected = before + scene.rows(3, 20) * (what == "write")

    for wrong in (decided(scene, what, 2 + behind), decided(scene, what, 1, "another")):
        refusal(lambda driver=wrong: scene.run(20, checkpoint=copy, driver=driver))
    scene.run(20, checkpoint=copy, driver=decided(scene, what, 1), is_noted=False)
    assert scene.written()[scene.topic] == expected
    warned = f"{'skipping duplicate' if what == 'skip' else 'writing'} transaction 1"
    assert caplog.text.count(warned) == 1
    assert "resolve.micro.batch says so, although" in caplog.text
    assert "not needed" not in caplog.text

    # The driver died before it noted that: what was decided holds.
    scene.run(20, checkpoint=copy, driver=decided(scene, what, 1))
    assert scene.written()[scene.topic] == expected
    if what == "write":
        scene.run(22, checkpoint=copy, driver=decided(scene, what, 1))
        assert scene.written()[scene.topic] == [*expected, *scene.rows(20, 22)]
        assert caplog.text.count("option 'resolve.micro.batch' is not needed any more") == 2


def test_a_user_decides_about_a_version_of_a_name(address: str, tmp_path: Path) -> None:
    scene = Scene(address, tmp_path, is_read=True)
    scene.version(4, ["a", "b"])
    said = refusal(lambda: scene.version(4, ["other"]))
    (wanted,) = re.findall(r"'(write [^']+)'", said)
    assert wanted == f"write {scene.app_id}@{scene.topic} 4"

    named = {"txnAppId": scene.app_id, "txnVersion": 4, "resolve.micro.batch": wanted}
    SparkDriver(address, scene.topic, **named).batch(["other"], scene.query_id)
    SparkDriver(address, scene.topic, **named).batch(["other"], scene.query_id)

    assert scene.written()[scene.topic] == ["a", "b", "other"]


@pytest.mark.parametrize(
    "value", ["skip", "skip 17", "drop a-query 17", "write a-query", "write a-query -1", ""]
)
def test_a_decision_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"resolve\.micro\.batch.*skip QUERY NUMBER"):
        parse_write_options({"path": "/logs", "resolve.micro.batch": value})


# What is counted.


def test_rows_and_bytes_are_counted_by_topic_however_tasks_divide_them(
    address: str, tmp_path: Path
) -> None:
    scene = Scene(address, tmp_path, is_read=False)
    topics, keys = [scene.topic, scene.other, scene.topic], ["k", None, "key"]
    rows = pa.record_batch({"topic": topics, "key": keys, "value": ["1", "22", None]})
    staged = [
        [rows],
        [rows.slice(2, 1), rows.slice(0, 0), rows.slice(0, 2)],
        [rows.cast(pa.schema([(name, pa.large_string()) for name in rows.schema.names]))],
    ]

    def job() -> Any:
        return begin_job(SparkDriver(address, None).options, is_micro_batch=True)

    found = [
        Evidence.of_tasks([job().stage(batches, query_id="q").rows for batches in tasks], None).sums
        for tasks in ([staged[0]], [[one] for one in staged[1]], [staged[2]])
    ]
    assert set(found) == {
        f"1 rows to {scene.other} with 0 + 2 bytes and 2 rows to {scene.topic} with 4 + 1 bytes"
    }


def test_sums_of_many_topics_are_short_and_differ_where_one_does(
    address: str, tmp_path: Path
) -> None:
    class Task(NamedTuple):
        sums: RowSums
        query_id: str | None = None
        run_id: str | None = None

    many = [(f"topic-{number}", number, 7, 9) for number in range(5000)]
    sums = Evidence.of_tasks([Task(many)], None).sums
    assert len(sums) < 200
    assert sums.startswith(f"{sum(range(5000))} rows to 5000 topics (")
    assert Evidence.of_tasks([Task(many[2500:]), Task(many[:2500])], None).sums == sums
    more = [*many[:-1], ("topic-4999", 4999, 8, 8)]
    assert Evidence.of_tasks([Task(more)], None).sums != sums


@pytest.mark.parametrize("count", [1, 8, 9, 50])
def test_the_history_tells_a_repetition_by_its_rows_in_each_topic(count: int) -> None:
    """It has neither the option `topic` nor bytes."""

    def commit(last: int) -> Commit:
        rows = {f"topic-{number}": 2 for number in range(count - 1)} | {f"topic-{count - 1}": last}
        offsets = {TopicPartition(name, 1): (5, 4 + of) for name, of in rows.items()}
        offsets |= {TopicPartition(name, 0): (7, 8) for name in rows}
        return Commit(0, 0, False, "q", 1, Author(query_id="q"), sum(rows.values()), 9, offsets, {})

    class Task(NamedTuple):
        sums: RowSums
        query_id: str = "q"
        run_id: str = "r"

    task = Task([(f"topic-{n}", 2, 7, 9) for n in range(count)])
    mine = Attempt("q", 1, Evidence.of_tasks([task], "topic-0" if count == 1 else None), None)
    assert mine.is_repetition((1, Evidence.of_commit(commit(2))))
    with pytest.raises(CommitError, match="its topic or its rows differ"):
        mine.is_repetition((1, Evidence.of_commit(commit(3))))


# What of a checkpoint is believed.


@pytest.fixture
def checkpoint(tmp_path: Path) -> SparkCheckpoint:
    found = SparkCheckpoint(tmp_path / "a checkpoint%20of mine")
    found.plan(3)
    return found


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_plain_path_is_read_as_hadoop_takes_it(checkpoint: SparkCheckpoint, prefix: str) -> None:
    planned = (checkpoint.folder / "offsets/0").read_bytes()
    digest, sources = planned_offsets(f"{prefix}{checkpoint.folder}", checkpoint.query_id, 0)
    assert digest == hashlib.sha256(planned).hexdigest()
    assert sources == '{"log": 3}'


def test_a_relative_path_is_read(
    checkpoint: SparkCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint.folder.parent)
    assert planned_offsets(checkpoint.folder.name, checkpoint.query_id, 0) != UNREAD


UNCERTAIN: dict[str, Callable[[SparkCheckpoint], object]] = {
    "another query's": lambda at: (at.folder / "metadata").write_text('{"id": "another"}'),
    "no metadata": lambda at: (at.folder / "metadata").unlink(),
    "damaged metadata": lambda at: (at.folder / "metadata").write_text("[]"),
    "a later plan": lambda at: (at.folder / "offsets/1").write_text("v1\n{}\n{}"),
    "committed": lambda at: at.note(0),
    "no plan": lambda at: (at.folder / "offsets/0").unlink(),
    "a plan that is cut": lambda at: (at.folder / "offsets/0").write_text("v1"),
}


@pytest.mark.parametrize("change", UNCERTAIN.values(), ids=[*UNCERTAIN])
def test_a_checkpoint_that_cannot_tell_is_not_believed(
    checkpoint: SparkCheckpoint, change: Callable[[SparkCheckpoint], object]
) -> None:
    query_id = checkpoint.query_id
    change(checkpoint)
    assert planned_offsets(str(checkpoint.folder), query_id, 0) == UNREAD


@pytest.mark.parametrize("location", ["", "hdfs://host{}", "s3a://bucket{}", "\0{}"])
def test_other_file_systems_are_not_read(checkpoint: SparkCheckpoint, location: str) -> None:
    found = planned_offsets(location.format(checkpoint.folder), checkpoint.query_id, 0)
    assert found == UNREAD


# What is kept.


def noted_by_its_number_alone(address: str, query_id: str, number: int, topic: str) -> None:
    """Commit a micro-batch without what tells a repetition of it."""
    options = SparkDriver(address, topic).options
    with spark_kbatch.open(address, create=True) as cluster:
        cluster.create_topic(topic)
        if "bucket" in address.partition(":")[0]:
            content = LedgerCommit(micro_batch=MicroBatch(query_id, number))
            cluster._store.ledger.commit(lambda _: content)
            return
    staged = begin_job(options).stage([pa.record_batch({"value": ["old"]})])
    coordinator = coordinator_for(FolderParts(address), options)
    assert coordinator.commit(staged.extents, transactional_id=query_id, sequence=number)


@pytest.mark.parametrize("address", ["folder", "bucket"], indirect=True)
def test_a_query_of_which_the_number_alone_is_known_goes_on(
    address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(address, tmp_path, is_read=True)
    noted_by_its_number_alone(address, scene.checkpoint.query_id, 0, scene.topic)
    before = scene.written()

    scene.run(3, is_noted=False)
    scene.run(3)
    assert scene.written() == before
    assert "its checkpoint could not be compared, only its number" in caplog.text
    scene.run(5)
    assert scene.written()[scene.topic][-2:] == scene.rows(3, 5)


def test_evidence_outlives_a_checkpoint_of_the_ledger(tmp_path: Path) -> None:
    objects = CountingObjects()
    scene = Scene(a_url(objects), tmp_path, is_read=True)
    scene.run(3, is_noted=False)
    for number in range(2 * CHECKPOINT_EVERY):
        scene.version(number, [f"{number}"])
    copied = CountingObjects()  # of which this machine knows nothing
    for one in objects.list(""):
        data = objects.get(one.name)
        assert data is not None
        copied.put(one.name, data)
    scene.address = a_url(copied)
    scene.driver = SparkDriver(scene.address, scene.topic)

    before = scene.written()
    scene.run(3, rows=scene.changed)
    assert scene.written() == before
    scene.version(2 * CHECKPOINT_EVERY - 1, [f"{2 * CHECKPOINT_EVERY - 1}"])
    refusal(lambda: scene.version(2 * CHECKPOINT_EVERY - 1, ["longer"]))


@pytest.mark.parametrize("is_same", [True, False], ids=["the same", "another"])
def test_what_another_process_committed_meanwhile_is_compared_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same: bool
) -> None:
    scene = Scene(a_url(CountingObjects()), tmp_path, is_read=False)
    scene.version(0, ["a"])
    real, rivals = SharedLedger.commit, [0]

    def commit(ledger: SharedLedger, *given: Any, **named: Any) -> Any:
        if rivals:
            rivals.pop()
            scene.version(1, ["b" if is_same else "longer"])
        return real(ledger, *given, **named)

    monkeypatch.setattr(SharedLedger, "commit", commit)
    if is_same:
        scene.version(1, ["b"])
        assert scene.written() == {scene.topic: ["a", "b"]}
    else:
        assert "its rows or its query differ" in refusal(lambda: scene.version(1, ["b"]))
        assert scene.written() == {scene.topic: ["a", "longer"]}
