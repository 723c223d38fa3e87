"""A mirror into an embedded cluster has each record once and in order, whenever it died before."""

from __future__ import annotations

import itertools
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kbatch import Cluster
from spark_kbatch.commit import sequences
from spark_kbatch.commit.internal_topics import TRANSACTION_STATE
from spark_kbatch.errors import (
    ConfigError,
    DataLossError,
    MirrorFencedError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.files import Files
from spark_kbatch.mirroring.copying import Mirror, MirrorProgress
from spark_kbatch.mirroring.into_path import PathTarget
from spark_kbatch.model import TopicPartition
from spark_kbatch.opening.stores import begin_job, open_reader
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.options.write import parse_write_options
from tests.support import builders, reference
from tests.support.broker_dirs import a_batch, a_partition
from tests.support.crashes import EVERY_STEP, Crash, Recording
from tests.support.disk import Disk, DiskFiles
from tests.support.log_histories import History, data_batch, histories, marker_batch
from tests.support.mirrors import (
    MIRROR,
    as_mirrored,
    ensure_goes_on_after_aborted_records,
    mirror_settings,
    mirrored,
    with_gaps,
)
from tests.support.soundness import ensure_sound
from tests.support.store import store_of

PATH = "/simulated/cluster"


@pytest.fixture
def source(tmp_path: Path) -> Cluster:
    cluster = builders.a_cluster(tmp_path / "source", topics={"events": 2})
    write(cluster)
    return cluster


@pytest.fixture
def target(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "target", create=True)


def write(cluster: Cluster, topic: str = "events") -> None:
    """Append two batches to each partition."""
    for seed in range(2):
        for partition in range(cluster.topic(topic).partitions):
            batch = builders.batch(n=3 + partition, seed=seed, compression="zstd")
            builders.append_records(cluster, {(topic, partition): batch})


def rest(target: Cluster, source: Cluster) -> None:
    """Check that the target has what the source has."""
    assert builders.contents(target) == as_mirrored(source.path)


# What is copied.


def test_a_topic_is_made_with_the_sources_partitions_and_filled(
    source: Cluster, target: Cluster
) -> None:
    done = mirrored(source.path, target)

    rest(target, source)
    assert target.topic("events").partitions == 2
    assert done.topics_created == ("events",)
    assert (done.records_count, done.units, done.offsets_left) == (14, 1, 0)
    assert (done.batches_kept, done.batches_encoded) == (4, 0)


def test_the_next_run_copies_only_what_is_new(source: Cluster, target: Cluster) -> None:
    mirrored(source.path, target)
    write(source)

    done = mirrored(source.path, target)

    assert done.records_count == 14
    rest(target, source)
    assert mirrored(source.path, target).units == 0


def test_bytes_after_the_header_are_those_of_the_source(source: Cluster, target: Cluster) -> None:
    mirrored(source.path, target)

    for partition in range(2):
        logs = [
            cluster.path / f"broker-0/events-{partition}/{0:020d}.log"
            for cluster in (source, target)
        ]
        mine, copied = ([*reference.split_batches(log.read_bytes())] for log in logs)
        assert [batch[61:] for batch in copied] == [batch[61:] for batch in mine]


def test_the_history_says_that_a_mirror_wrote(source: Cluster, target: Cluster) -> None:
    mirrored(source.path, target)

    (commit,) = target.history()

    assert (commit.transactional_id, commit.author.application_id) == (MIRROR, "kbatch mirror")
    assert commit.records_count == 14


def test_a_brokers_logs_lose_gaps_markers_and_aborted_records(
    tmp_path: Path, target: Cluster
) -> None:
    held = [
        *with_gaps(),
        data_batch(base_offset=21, n=2, producer_id=3, transactional=True),  # still open
    ]
    a_partition(tmp_path / "broker" / "events-0", {5: held}, index=False)

    done = mirrored(tmp_path / "broker", target)

    found = builders.contents(target)[TopicPartition("events", 0)]
    assert [record.offset for record in found] == list(range(6))
    assert [(record.value or b"")[:8] for record in found] == [
        b"8", b"9", b"value 12", b"value 14", b"value 17", b"v",
    ]  # fmt: skip
    assert (done.batches_kept, done.batches_encoded) == (1, 2)


def test_a_mirror_goes_on_after_what_an_open_transaction_held_back(
    tmp_path: Path, target: Cluster
) -> None:
    directory = tmp_path / "broker" / "events-0"
    held = [
        data_batch(base_offset=0, n=2),
        data_batch(base_offset=2, n=3, producer_id=1, transactional=True),
    ]
    a_partition(directory, {0: held}, index=False)
    assert mirrored(tmp_path / "broker", target).records_count == 2

    held += [marker_batch(base_offset=5, producer_id=1, abort=False), data_batch(base_offset=6)]
    a_partition(directory, {0: held}, index=False)

    assert mirrored(tmp_path / "broker", target).records_count == 4
    found = builders.contents(target)[TopicPartition("events", 0)]
    assert [record.value for record in found] == [b"0", b"1", b"2", b"3", b"4", b"6"]


def test_records_before_the_sources_start_are_left_out(source: Cluster, target: Cluster) -> None:
    source.delete_records({("events", 0): 2})

    mirrored(source.path, target)

    rest(target, source)


def test_a_topic_of_an_older_format_is_written_in_it(source: Cluster, target: Cluster) -> None:
    target.create_topic("events", partitions=2, config=TopicConfig(message_format_version="0.10.0"))
    gzip = builders.batch(n=2, compression="gzip")
    other = builders.a_cluster(source.path.parent / "gzip", topics={"events": 2})
    builders.append_records(other, {("events", 1): gzip})

    mirrored(other.path, target)

    rest(target, other)
    assert (target.path / f"broker-0/events-1/{0:020d}.log").read_bytes()[16] == 1


def test_batches_above_the_targets_limit_are_divided(source: Cluster, target: Cluster) -> None:
    config = TopicConfig(max_message_bytes=400)
    target.create_topic("events", partitions=2, config=config)
    large = builders.batch(n=20, seed=3)
    builders.append_records(source, {("events", 0): large})

    done = mirrored(source.path, target)

    rest(target, source)
    assert done.batches_encoded > 5


def test_a_record_above_the_targets_limit_leaves_the_unit_undone(
    source: Cluster, target: Cluster
) -> None:
    config = TopicConfig(max_message_bytes=1000)
    target.create_topic("events", partitions=2, config=config)
    builders.append_records(source, {("events", 1): builders.batch(n=1, value_bytes=2000)})

    with pytest.raises(RecordTooLargeError, match=r"offset 8 of events-1.*max.message.bytes=1000"):
        mirrored(source.path, target)

    assert not any(builders.contents(target).values())
    assert not list((target.path / "staging-0").iterdir())


def test_units_end_where_they_are_large_enough(source: Cluster, target: Cluster) -> None:
    seen: list[MirrorProgress] = []

    done = mirrored(source.path, target, unit_bytes=1, on_progress=seen.append)

    assert done.units == len(list(target.history())) == 2  # a fetch of each partition
    assert [one.offsets_left for one in seen] == [8, 8, 0, 0, 0]
    rest(target, source)


def test_a_mirror_that_follows_copies_what_comes_until_it_is_stopped(
    source: Cluster, target: Cluster
) -> None:
    stop, written = threading.Event(), threading.Event()

    def on_progress(done: MirrorProgress) -> None:
        if done.units and not written.is_set():
            written.set()
            write(source)
        elif done.records_count == 28:
            stop.set()

    mirror = Mirror(
        open_reader(source.path).source, PathTarget(target._store, MIRROR),
        mirror_settings(MIRROR, "source", follow=True, unit_ms=1), on_progress, stop=stop,
    )  # fmt: skip
    assert mirror.run(["events"]).records_count == 28
    rest(target, source)


# What is refused.


def test_a_topic_with_records_and_no_progress_is_refused(source: Cluster, target: Cluster) -> None:
    mirrored(source.path, target)

    with pytest.raises(ConfigError, match=r"events-0 of .* is not empty.*'another' is stored"):
        mirrored(source.path, target, name="another")

    rest(target, source)


def a_job(target: Cluster, version: int) -> None:
    """Write a record to topic "mine" by a job with the name that mirrors have here."""
    job = begin_job(
        parse_write_options(
            {
                "path": str(target.path),
                "topic": "mine",
                "txnAppId": MIRROR,
                "txnVersion": str(version),
            }
        ),
        overwrite=False,
    )
    rows = pa.RecordBatch.from_pydict({"value": [f"{version}"]})
    job.commit_batch([job.stage(iter([rows]))])


def test_a_job_and_a_mirror_of_one_name_do_not_know_each_other(
    source: Cluster, target: Cluster
) -> None:
    target.create_topic("mine")
    a_job(target, 5)
    mirrored(source.path, target, on_progress=lambda _done: a_job(target, 6))
    a_job(target, 7)
    write(source)
    mirrored(source.path, target)

    assert len(builders.contents(target).pop(TopicPartition("mine", 0))) == 3
    target.delete_topic("mine")
    rest(target, source)


def test_a_mirrors_progress_is_no_version_of_a_name(source: Cluster, target: Cluster) -> None:
    mirrored(source.path, target)
    target.create_topic("mine")
    a_job(target, 0)
    assert len(builders.contents(target)[TopicPartition("mine", 0)]) == 1


def test_of_two_mirrors_that_begin_together_one_is_refused(
    source: Cluster, target: Cluster
) -> None:
    def another(_done: MirrorProgress) -> None:
        if not any(builders.contents(target).values()):
            mirrored(source.path, target, name="another")

    with pytest.raises(ConfigError, match=r"events-0 of .* was written to by another process"):
        mirrored(source.path, target, on_progress=another)
    rest(target, source)
    assert not list((target.path / "staging-0").iterdir())
    with pytest.raises(ConfigError, match=r"is not empty.*'a-mirror' is stored"):
        mirrored(source.path, target)

    write(source)
    mirrored(source.path, target, name="another")
    rest(target, source)


def test_a_mirror_that_has_not_written_to_a_topic_yet_does_not_add_to_what_others_wrote(
    source: Cluster, target: Cluster
) -> None:
    source.create_topic("clicks", partitions=1)
    mirrored(source.path, target, ["events", "clicks"])  # stores progress of both
    write(source, "clicks")
    mirrored(source.path, target, ["clicks"], name="another")

    with pytest.raises(
        ConfigError, match=r"topic 'clicks' of .* has records, and mirror 'a-mirror'"
    ):
        mirrored(source.path, target, ["events", "clicks"])

    rest(target, source)


def test_others_may_write_to_a_topic_that_the_mirror_has_begun(
    source: Cluster, target: Cluster
) -> None:
    mirrored(source.path, target)
    builders.append_records(target, {("events", 0): builders.batch(n=1)})
    write(source)

    assert mirrored(source.path, target).records_count == 14


def test_other_partition_counts_are_refused(source: Cluster, target: Cluster) -> None:
    target.create_topic("events", partitions=3)

    with pytest.raises(ConfigError, match=r"'events' has 2 partitions in .* and 3 in"):
        mirrored(source.path, target)


def test_new_partitions_are_copied_once_both_have_them(source: Cluster, target: Cluster) -> None:
    mirrored(source.path, target)
    source.create_partitions("events", 3)
    write(source)
    with pytest.raises(ConfigError, match=r"3 partitions in .* and 2 in"):
        mirrored(source.path, target)

    target.create_partitions("events", 3)
    mirrored(source.path, target)

    rest(target, source)


@pytest.mark.parametrize("place", ["source", "target"])
def test_a_topic_that_was_created_again_is_refused(
    source: Cluster, target: Cluster, place: str
) -> None:
    mirrored(source.path, target)
    cluster = {"source": source, "target": target}[place]
    cluster.delete_topic("events")
    cluster.create_topic("events", partitions=2)

    with pytest.raises(ConfigError, match=f"created again in {cluster.path}"):
        mirrored(source.path, target)


def test_a_topic_that_was_deleted_in_the_target_is_not_made_again(
    source: Cluster, target: Cluster
) -> None:
    mirrored(source.path, target)
    target.delete_topic("events")

    with pytest.raises(ConfigError, match=r"was deleted in .*another name"):
        mirrored(source.path, target)

    assert target.topic_names() == []


def test_a_topic_that_is_created_again_while_it_is_mirrored_is_noticed(
    source: Cluster, target: Cluster
) -> None:
    def recreate(_done: MirrorProgress) -> None:
        source.delete_topic("events")
        source.create_topic("events", partitions=2)
        write(source)

    with pytest.raises(UnknownTopicOrPartitionError, match=r"created again in .* while"):
        mirrored(source.path, target, on_progress=recreate)

    assert not any(builders.contents(target).values())


def test_records_deleted_before_they_were_copied_are_told(
    source: Cluster, target: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    mirrored(source.path, target)
    write(source)
    source.delete_records({("events", 0): 8})

    with pytest.raises(DataLossError, match=r"offset 6 of events-0.*--no-fail-on-data-loss"):
        mirrored(source.path, target)
    mirrored(source.path, target, fail_on_data_loss=False)

    assert "offsets 6 to 7 of events-0 were deleted" in caplog.text
    found, held = builders.contents(target), builders.contents(source)
    tp = TopicPartition("events", 0)
    assert [r.value for r in found[tp][6:]] == [r.value for r in held[tp]]


def test_a_source_that_ends_before_what_was_copied_is_refused(
    tmp_path: Path, target: Cluster
) -> None:
    directory = tmp_path / "broker" / "events-0"
    a_partition(directory, {0: [a_batch(0, 1), a_batch(2)]}, index=False)
    mirrored(tmp_path / "broker", target)
    a_partition(directory, {0: [a_batch(0, 1)]}, index=False)

    with pytest.raises(DataLossError, match=r"offset 3 of events-0.*lost records"):
        mirrored(tmp_path / "broker", target)


def test_a_source_that_lost_its_end_and_grew_again_is_refused(
    source: Cluster, target: Cluster, tmp_path: Path
) -> None:
    shutil.copytree(source.path, tmp_path / "older")
    builders.append_records(source, {("events", 0): builders.batch(n=3, seed=8)})
    mirrored(source.path, target)
    copied = builders.contents(target)
    for seed in (10, 11):
        another = builders.batch(n=3, seed=seed)
        builders.append_records(Cluster(tmp_path / "older"), {("events", 0): another})
    shutil.rmtree(source.path)
    shutil.move(tmp_path / "older", source.path)

    with pytest.raises(DataLossError, match=r"offset 8 of events-0 of .*lost records.*got others"):
        mirrored(source.path, target)

    assert builders.contents(target) == copied


def test_a_log_dir_with_some_of_the_partitions_is_refused(tmp_path: Path, target: Cluster) -> None:
    for partition in (0, 2):
        a_partition(tmp_path / f"broker/events-{partition}", {0: [a_batch(0)]}, index=False)

    with pytest.raises(ConfigError, match="has the partitions 0, 2; a mirror needs all"):
        mirrored(tmp_path / "broker", target)


def test_an_internal_topic_is_refused(source: Cluster, target: Cluster) -> None:
    with pytest.raises(ConfigError, match="cluster's own"):
        mirrored(source.path, target, ["__commits"])


# Progress.


def test_of_two_mirrors_with_one_name_the_second_to_commit_stops(
    source: Cluster, target: Cluster
) -> None:
    first = PathTarget(target._store, MIRROR)

    def another(_done: MirrorProgress) -> None:
        mirrored(source.path, target)

    with pytest.raises(MirrorFencedError, match="taken over by another process"):
        mirrored(source.path, first, on_progress=another)

    rest(target, source)


@pytest.mark.parametrize("expiration_ms", [None, 1], ids=["kept", "expiring"])
def test_progress_stays_when_its_topic_is_rewritten(
    source: Cluster,
    target: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    expiration_ms: int | None,
) -> None:
    mirrored(source.path, target)
    monkeypatch.setattr(sequences, "REWRITE_BYTES", 1)
    manager = store_of(target).manager
    with store_of(target).coordinator(flush=False).settled():
        sequences.LastSequences(manager, flush=True).maybe_rewrite(
            now_ms=2**50, expiration_ms=expiration_ms
        )
    log = manager.log(TRANSACTION_STATE)
    assert log.state().log_start_offset > 0
    write(source)

    mirrored(source.path, target)

    rest(target, source)


def test_progress_is_stored_where_a_source_had_only_aborted_records(
    tmp_path: Path, target: Cluster
) -> None:
    broker = tmp_path / "broker"
    ensure_goes_on_after_aborted_records(broker, lambda: mirrored(broker, target))

    found = builders.contents(target)[TopicPartition("events", 0)]
    assert [record.value for record in found] == [b"0", b"1", b"6"]
    assert [commit.records_count for commit in target.history()] == [1, 0, 2]


def test_progress_of_topics_that_are_not_mirrored_this_time_is_kept(
    source: Cluster, target: Cluster
) -> None:
    source.create_topic("clicks", partitions=1)
    write(source, "clicks")
    mirrored(source.path, target)
    mirrored(source.path, target, ["clicks"])
    write(source)

    mirrored(source.path, target)

    rest(target, source)


def test_staged_files_of_a_dead_process_are_removed(source: Cluster, target: Cluster) -> None:
    def die(_done: MirrorProgress) -> None:
        raise KeyboardInterrupt

    dead = PathTarget(target._store, MIRROR)
    dead.abandon = lambda: None  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        mirrored(source.path, dead, on_progress=die)
    assert list((target.path / "staging-0").iterdir())

    mirrored(source.path, target)

    assert not list((target.path / "staging-0").iterdir())
    rest(target, source)


# Crashes.


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cluster, Recording]:
    """Return a source, and every step of its mirror in two units after a first one."""
    folder = tmp_path_factory.mktemp("crashes")
    source = builders.a_cluster(folder, topics={"events": 2})
    write(source)
    files = DiskFiles(Disk())
    Cluster(PATH, create=True, files=files)
    mirrored(source.path, Cluster(PATH, files=files))
    write(source)
    return source, Recording(files.disk.settled(), mirror_of(source))


def mirror_of(source: Cluster) -> Callable[[Files], object]:
    return lambda files: mirrored(source.path, Cluster(PATH, files=files), unit_bytes=1)


def ensure_goes_on(source: Cluster, crash: Crash) -> None:
    """Check that after a crash whole units are there, and that the next run adds the others."""
    with crash.met():
        files = crash.files()
        cluster = Cluster(PATH, files=files)
        counts = [len(found) for found in builders.contents(cluster).values()]
        assert counts in ([6, 8], [12, 8], [12, 16]), crash
        mirror_of(source)(files)
        assert builders.contents(cluster) == as_mirrored(source.path), crash
        assert files.list(cluster.path / "staging-0") == [], crash
        for topic_partition in [*builders.contents(cluster), TRANSACTION_STATE]:
            ensure_sound(store_of(cluster).manager.log(topic_partition))


@pytest.mark.more_in_soak
@pytest.mark.parametrize("how", ["kills", "torn_kills", "power_losses"])
def test_a_mirror_that_crashes_at_any_step_goes_on(
    recorded: tuple[Cluster, Recording], caplog: pytest.LogCaptureFixture, how: str
) -> None:
    caplog.set_level(logging.ERROR)
    source, recording = recorded
    crashes = list(getattr(recording, how)())
    assert len(crashes) > 3
    for crash in crashes:
        ensure_goes_on(source, crash)


@pytest.mark.slow
@pytest.mark.parametrize("seed", EVERY_STEP)
def test_a_mirror_that_crashes_in_random_ways_goes_on(
    recorded: tuple[Cluster, Recording], caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    caplog.set_level(logging.ERROR)
    source, recording = recorded
    for crash in itertools.chain(
        recording.power_losses(seed), recording.kills(seed), recording.torn_kills(seed)
    ):
        ensure_goes_on(source, crash)


# Any history of transactions.


@given(history=histories(), data=st.data())
@settings(max_examples=15)
def test_of_any_history_the_committed_records_are_there_however_it_grew(
    history: History, data: st.DataObject
) -> None:
    cluster = Cluster(PATH, create=True, files=DiskFiles(Disk()))
    grown = data.draw(st.lists(st.integers(1, len(history.written)), max_size=3, unique=True))
    with tempfile.TemporaryDirectory() as folder:
        for count in [*sorted(grown), len(history.written)]:
            log = Path(folder) / "events-0" / f"{0:020d}.log"
            log.parent.mkdir(exist_ok=True)
            log.write_bytes(b"".join(one.data for one in history.written[:count]))
            mirrored(Path(folder), cluster)

    found = builders.contents(cluster)[TopicPartition("events", 0)]
    assert [record.value for record in found] == [b"%d" % n for n in history.committed()]
    assert [record.offset for record in found] == list(range(len(found)))
