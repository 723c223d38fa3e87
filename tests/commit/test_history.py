"""The history of commits: what `__commits` says of each, and that it has a commit exactly if its data is visible."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.commit import coordinator, history
from spark_kbatch.commit.coordinator import Coordinator
from spark_kbatch.commit.internal_topics import COMMITS
from spark_kbatch.errors import ConfigError, CorruptRecordError
from spark_kbatch.files import Files
from spark_kbatch.model import AppendOrigin, TopicPartition
from spark_kbatch.options.read import parse_read_options
from spark_kbatch.options.write import COMMITS_RETENTION_BYTES
from spark_kbatch.record import scalar
from spark_kbatch.store.commits import Author, Commit
from tests.support import builders
from tests.support.faults import Fault, FaultyFiles, ReadOnlyFiles, died
from tests.support.reference import Record, encode_batch
from tests.support.soundness import ensure_sound
from tests.support.store import reader_of, store_of

TOPICS = {"clicks": 3, "views": 2}
BATCH = builders.batch(n=2)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return builders.a_cluster(tmp_path, topics=TOPICS)


def write(
    cluster: Cluster,
    *places: tuple[str, int],
    transaction: str = "job",
    retention: int = COMMITS_RETENTION_BYTES,
    **named: object,
) -> None:
    """Commit a batch of two records to each of these partitions."""
    extents = builders.staged(cluster, {place: [BATCH] for place in places})
    coordinator = Coordinator(
        store_of(cluster).manager,
        lambda: builders.FIRST_TIMESTAMP_MS,
        adopt_min_bytes=1 << 20,
        flush=False,
        commits_retention_bytes=retention,
    )
    coordinator.commit(extents, transactional_id=transaction, **named)  # type: ignore[arg-type]


def changed(**fields: object) -> str:
    commit = Commit(0, 0, False, "job", -1, Author(), 2, 3, {}, {})
    value = commit.as_json() | {"version": 1} | fields
    return json.dumps(value)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", id="empty"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param("[]", id="list"),
        pytest.param("7", id="number"),
        pytest.param(changed(time="2024-01-01"), id="time"),
        pytest.param(changed(records="[/b]"), id="records"),
        pytest.param(changed(records=True), id="boolean"),
        pytest.param(changed(user=["\x1b[2J"]), id="user"),
        pytest.param(changed(ends={"clicks": 3}), id="no partitions"),
        pytest.param(changed(ends={"clicks": {"x": 3}}), id="partition"),
        pytest.param(changed(offsets={"clicks": {"0": [1]}}), id="half a range"),
        pytest.param(changed(version=2), id="version"),
    ],
)
def test_the_error_names_a_record_that_is_not_a_commit(cluster: Cluster, value: str) -> None:
    data = encode_batch([Record(0, 0, b"job", value.encode())])
    builders.append_records(
        cluster, {COMMITS: data}, internal_topics_allowed=True, origin=AppendOrigin.COORDINATOR
    )
    with pytest.raises(
        CorruptRecordError, match=r"commit 0 in __commits( is damaged: |: expected 1, found 2)"
    ):
        list(cluster.history())


def test_a_commit_without_a_change_is_not_damaged(cluster: Cluster) -> None:
    data = encode_batch([Record(0, 0, b"job", changed().encode())])
    builders.append_records(
        cluster, {COMMITS: data}, internal_topics_allowed=True, origin=AppendOrigin.COORDINATOR
    )
    assert [commit.transactional_id for commit in cluster.history()] == ["job"]


def test_a_commit_says_who_wrote_what_where_and_how_its_topics_ended(cluster: Cluster) -> None:
    write(cluster, ("clicks", 0), ("clicks", 1), ("views", 0))
    author = Author("local-17", "a-query", "jane")
    write(cluster, ("clicks", 1), ("clicks", 2), transaction="höhe", sequence=7, author=author)

    newest, first = cluster.history()
    assert newest == Commit(
        number=1,
        time_ms=builders.FIRST_TIMESTAMP_MS,
        overwrite=False,
        transactional_id="höhe",
        sequence=7,
        author=author,
        records_count=4,
        size_in_bytes=2 * len(BATCH),
        offsets={TopicPartition("clicks", 1): (2, 4), TopicPartition("clicks", 2): (0, 2)},
        ends={TopicPartition("clicks", n): end for n, end in enumerate([2, 4, 2])},
    )
    assert (first.number, first.topics, first.sequence) == (0, ["clicks", "views"], -1)
    assert cluster.find_commit(1) == newest
    assert cluster.find_commit(0) == first


def test_a_part_of_the_history_is_read_by_numbers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_PAGE", 2)
    for topic in ("clicks", "views", "clicks", "clicks", "views"):
        write(cluster, (topic, 0))

    def numbers(*of: int, topic: str | None = None) -> list[int]:
        return [commit.number for commit in cluster.history(topic, numbers=range(*of))]

    assert numbers(1, 4) == [3, 2, 1]
    assert numbers(1, 4, topic="clicks") == [3, 2]
    assert numbers(3, 5) == numbers(3, 99) == [4, 3]
    assert numbers(5, 99) == numbers(0) == numbers(3, 3) == numbers(3, 2) == []
    assert cluster.commit_numbers() == range(5)
    for wrong in (range(-1, 2), range(0, 4, 2), [1, 2]):
        with pytest.raises(ConfigError, match="without steps"):
            cluster.history(numbers=wrong)  # type: ignore[arg-type]


def test_the_history_of_a_topic_leaves_out_other_topics(cluster: Cluster) -> None:
    for topic in ("clicks", "views", "clicks"):
        write(cluster, (topic, 0))
    assert [commit.number for commit in cluster.history("clicks")] == [2, 0]
    assert [commit.number for commit in cluster.history("views")] == [1]


def test_a_long_history_is_read_in_full_and_in_order(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_PAGE", 3)
    for _ in range(7):
        write(cluster, ("clicks", 0))
    assert [commit.number for commit in cluster.history()] == list(range(6, -1, -1))
    assert [commit.number for commit in itertools.islice(cluster.history(), 2)] == [6, 5]


def test_a_duplicate_commit_leaves_no_second_record(cluster: Cluster) -> None:
    for _ in range(2):
        write(cluster, ("clicks", 0), transaction="query", sequence=0)
    assert len(list(cluster.history())) == 1


def test_the_ends_of_a_commit_as_ending_offsets_give_the_topic_as_it_was(cluster: Cluster) -> None:
    write(cluster, ("clicks", 0), ("clicks", 1))
    before = builders.contents(cluster)
    write(cluster, ("clicks", 1), ("clicks", 2))
    text = cluster.find_commit(0).ending_offsets()

    options = parse_read_options(
        {"path": str(cluster.path), "subscribe": "clicks", "endingOffsets": text}
    )
    found = {
        one.planned.topic_partition: one.planned.end for (one,) in reader_of(cluster).plan(options)
    }
    assert found == {tp: len(before[tp]) for tp in found}
    assert sum(found.values()) == 4


def test_ending_offsets_of_one_topic_leave_out_other_topics(cluster: Cluster) -> None:
    write(cluster, ("clicks", 2), ("views", 0))
    commit = cluster.find_commit(0)
    assert json.loads(commit.ending_offsets("views")) == {"views": {"0": 2, "1": 0}}
    assert json.loads(commit.ending_offsets()) == {
        "clicks": {"0": 0, "1": 0, "2": 2},
        "views": {"0": 2, "1": 0},
    }
    with pytest.raises(ConfigError, match="did not touch topic 'other'; it touched: clicks, views"):
        commit.ending_offsets("other")


def test_a_number_that_no_commit_has_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="there is no commit 0; there is none"):
        cluster.find_commit(0)
    write(cluster, ("clicks", 0))
    with pytest.raises(ConfigError, match="there is no commit 1; there are commits 0 to 0"):
        cluster.find_commit(1)


def test_the_history_of_a_read_only_cluster_is_read(cluster: Cluster) -> None:
    write(cluster, ("clicks", 0))
    reader = Cluster(str(cluster.path), files=ReadOnlyFiles())
    assert [commit.number for commit in reader.history()] == [0]


def test_a_commit_killed_at_any_step_is_in_the_history_exactly_if_its_data_is_visible(
    tmp_path: Path,
) -> None:
    cluster = builders.a_cluster(tmp_path / "before", topics=TOPICS)
    write(cluster, ("clicks", 0))
    extents = builders.staged(cluster, {("clicks", 0): [BATCH], ("views", 1): [BATCH]})

    def job(path: Path, files: Files) -> None:
        builders.commit(Cluster(str(path), files=files), extents)

    dry_run = FaultyFiles()
    shutil.copytree(cluster.path, tmp_path / "dry")
    job(tmp_path / "dry", dry_run)
    seen = set()
    for at in range(len(dry_run.steps)):
        path = tmp_path / str(at)
        shutil.copytree(cluster.path, path)
        assert died(lambda path=path, at=at: job(path, FaultyFiles(Fault(at))))
        crashed = Cluster(str(path))
        ends = [len(records) for records in builders.contents(crashed).values()]
        numbers = [commit.number for commit in crashed.history()]
        assert (sum(ends), numbers) in ((2, [0]), (6, [1, 0])), dry_run.steps[at]
        seen.add(len(numbers))
        write(crashed, ("views", 0))
        assert len(list(crashed.history())) == len(numbers) + 1
        ensure_sound(store_of(crashed).manager.log(COMMITS))
        shutil.rmtree(path)
    assert seen == {1, 2}


# Retention.


def test_the_oldest_commits_are_deleted_and_numbers_go_on(cluster: Cluster) -> None:
    limit = 8192
    for number in range(60):
        write(cluster, ("clicks", number % 3), transaction=f"job {number}", retention=limit)
    kept = [commit.number for commit in cluster.history()]
    assert kept == list(range(59, kept[-1] - 1, -1))
    assert 10 < len(kept) < 40
    assert cluster.first_commit() == kept[-1]
    log = store_of(cluster).manager.log(COMMITS)
    assert limit - limit // 8 <= log.size_in_bytes(log.state()) <= limit + limit // 4
    ensure_sound(log)
    assert cluster.find_commit(kept[-1]).transactional_id == f"job {kept[-1]}"
    with pytest.raises(
        ConfigError, match=f"commit 3 is no longer kept.*{kept[-1]} to 59.*commits.retention"
    ):
        cluster.find_commit(3)
    with pytest.raises(ConfigError, match="there is no commit 60"):
        cluster.find_commit(60)


def test_commits_are_deleted_with_their_segment_only_if_a_limit_is_set(cluster: Cluster) -> None:
    for number in range(20):
        write(cluster, ("clicks", 0), transaction=f"job {number}", retention=-1)
    assert len([*cluster.history()]) == 20
    log = store_of(cluster).manager.log(COMMITS)
    assert log.segments.bases(log.state()) == [0]


def test_a_history_whose_oldest_commits_are_deleted_during_a_read_gives_the_rest(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_PAGE", 4)
    for number in range(30):
        write(cluster, ("clicks", 0), transaction=f"job {number}", retention=1 << 20)
    log = store_of(cluster).manager.log(COMMITS)
    reading = cluster.history()
    found = [next(reading).number for _ in range(4)]
    for number in range(3):
        write(cluster, ("clicks", 0), transaction=f"later {number}", retention=500)
    assert cluster.first_commit() == log.state().log_start_offset >= 30
    assert found + [commit.number for commit in reading] == [29, 28, 27, 26]


def test_all_replicas_of_the_history_delete_the_same_commits(tmp_path: Path) -> None:
    cluster = Cluster(
        str(tmp_path / "cluster"), create=True, log_dirs=[str(tmp_path / "a"), str(tmp_path / "b")]
    )
    cluster.create_topic("clicks", partitions=1)
    for number in range(40):
        write(cluster, ("clicks", 0), transaction=f"job {number}", retention=4096)
    first = cluster.first_commit()
    assert first > 0
    starts = {
        int(min(path.stem for path in (tmp_path / disk).rglob("__commits-0/*.log")))
        for disk in "ab"
    }
    assert starts == {first}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("[" * 100_000, "it is not JSON: nested too deeply", id="brackets"),
        pytest.param("[]", "it is a list of 0; expected a JSON object", id="a list"),
        pytest.param('{"version": 1}', "it has no time", id="fields missing"),
        pytest.param('{"time": "x"}', "time is 'x'; expected", id="a time"),
        pytest.param(
            '{"ends": {"clicks": {"0": -1}}}', "ends.clicks.0 is -1; expected", id="an end"
        ),
        pytest.param(
            '{"ends": {"clicks": {"x": 0}}}', "ends.clicks.x is 0; expected", id="a number"
        ),
        pytest.param('{"ends": {"clicks": 7}}', "ends.clicks is 7; expected", id="a topic"),
        pytest.param('{"offsets": {"clicks": {"0": [5]}}}', "offsets.clicks.0 is", id="a range"),
        pytest.param('{"user": null}', "user is None; expected text", id="an author"),
    ],
)
def test_the_error_names_a_record_with_impossible_fields(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    def pack(commit: Commit) -> bytearray:
        value = commit.as_json() | {"version": 1}
        found = text
        if text.startswith("{") and "version" not in text:
            found = json.dumps(value | json.loads(text))
        return scalar.encode([(b"job", found.encode())], commit.time_ms)

    monkeypatch.setattr(coordinator, "pack", pack)
    write(cluster, ("clicks", 0))
    with pytest.raises(CorruptRecordError) as error:
        list(cluster.history())

    assert f"commit 0 in __commits is damaged: {words}" in str(error.value)


def test_text_that_is_not_utf8_does_not_stop_a_commit(cluster: Cluster) -> None:
    odd = "caf\udce9 \\ud800 \ud800"
    author = Author(odd, "a-query", odd)
    write(cluster, ("clicks", 0), author=author)
    (found,) = cluster.history()
    assert found.author == author
