"""A topic's file is lost: nothing overwrites its logs, and a repair recreates the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.catalog import topic_files
from spark_kbatch.errors import ConfigError, KafkaStorageError, UnknownTopicOrPartitionError
from spark_kbatch.files import Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.options.write import parse_write_options
from tests.support import builders, stored_groups
from tests.support.builders import append_records, batch, contents
from tests.support.reference import Record
from tests.support.store import store_of
from tests.support.topics_of_writes import find_or_create_topic

EVENTS = TopicPartition("events", 0)
Contents = dict[TopicPartition, list[Record]]


def a_filled_cluster(tmp_path: Path) -> tuple[Cluster, Contents]:
    cluster = builders.a_cluster(tmp_path, topics={"events": 3, "others": 1})
    builders.write(cluster, {("events", 0): [batch()], ("events", 2): [batch(seed=1)]})
    append_records(cluster, {("events", 1): batch(seed=2), ("others", 0): batch(seed=3)})
    return cluster, contents(cluster)


def lose(cluster: Cluster, name: str = "events") -> Path:
    file = cluster.path / "topics" / f"{name}.json"
    file.unlink()
    return file


def another(cluster: Cluster) -> Cluster:
    return Cluster(str(cluster.path))


def segments(cluster: Cluster) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(cluster.path.rglob("events-*/*.log"))}


@pytest.mark.parametrize("way", ["create", "write"])
@pytest.mark.parametrize("partitions", [1, 3], ids=["fewer", "as many"])
def test_a_topic_is_not_created_over_records(tmp_path: Path, way: str, partitions: int) -> None:
    cluster, _ = a_filled_cluster(tmp_path)
    before, file = segments(cluster), lose(cluster)
    # A topic of one partition is not blocked by records of the first, but by those of the others.
    shutil.rmtree(cluster.path / "broker-0" / "events-0")
    del before[cluster.path / "broker-0" / "events-0" / f"{0:020}.log"]
    options = parse_write_options({"path": "/x", "num.partitions": str(partitions)})
    other = another(cluster)
    create = {
        "create": lambda: other.create_topic("events", partitions=partitions),
        "write": lambda: find_or_create_topic(store_of(other), "events", options),
    }[way]
    with pytest.raises(KafkaStorageError) as error:
        create()

    assert f"{cluster.path / 'broker-0' / 'events-1'} holds records" in str(error.value)
    assert f"`kbatch repair {cluster.path}`" in str(error.value)
    assert segments(cluster) == before
    assert not file.exists()


@pytest.mark.parametrize("left", ["state", "bytes"])
def test_a_log_of_which_one_half_is_left_is_not_removed(tmp_path: Path, left: str) -> None:
    cluster = builders.a_cluster(tmp_path)
    builders.write(cluster, {("events", 0): [batch()]})
    lose(cluster)
    directory = cluster.path / "broker-0" / "events-0"
    (directory / ("kbatch.state" if left == "bytes" else f"{0:020}.log")).unlink()
    with pytest.raises(KafkaStorageError, match="holds records"):
        another(cluster).create_topic("events")

    assert directory.exists()


def test_an_unfinished_creation_is_taken_over(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 3})
    lose(cluster)
    (cluster.path / "broker-0" / "events-1" / "kbatch.state").write_bytes(b"torn")
    another(cluster).create_topic("events", partitions=2)
    append_records(cluster, {("events", 1): batch()})

    assert len(contents(another(cluster))["events", 1]) == 3


def test_a_read_of_a_topic_without_its_file_names_the_repair(tmp_path: Path) -> None:
    cluster, _ = a_filled_cluster(tmp_path)
    file = lose(cluster)
    with pytest.raises(UnknownTopicOrPartitionError) as error:
        list(another(cluster).read("events"))

    assert f"{file} is not there, though" in str(error.value)
    assert f"`kbatch repair {cluster.path}` recreates the file" in str(error.value)


def test_a_producer_creates_nothing_over_a_topic_without_its_file(tmp_path: Path) -> None:
    cluster, _ = a_filled_cluster(tmp_path)
    file = lose(cluster)
    with another(cluster).producer() as producer:
        with pytest.raises(
            UnknownTopicOrPartitionError, match=r"events\.json is not there, though"
        ):
            producer.send("events", "v")
    assert not file.exists()


@pytest.mark.parametrize("meanwhile", ["created", "deleted", "removed"])
def test_a_topic_that_changes_while_it_is_looked_up_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    cluster, _ = a_filled_cluster(tmp_path)
    topics = store_of(cluster).metadata.topics
    looks = topic_files.holds_records

    def change_and_look(files: Files, directory: Path) -> bool:
        if meanwhile == "created":
            file.write_bytes(data)
        found = looks(files, directory)
        if meanwhile == "deleted":
            file.write_bytes(data)
            another(cluster).delete_topic("events")
        return found

    def remove_and_list(directory: Path) -> list[str]:
        shutil.rmtree(cluster.path / "broker-0" / "events-0")
        return lists(directory)

    file = cluster.path / "topics" / "events.json"
    data = file.read_bytes()
    file.unlink()
    assert topics.why_lost("events")
    files = store_of(cluster).files
    lists = files.list
    if meanwhile == "removed":
        monkeypatch.setattr(files, "list", remove_and_list)
    else:
        monkeypatch.setattr(topic_files, "holds_records", change_and_look)
    assert not topics.why_lost("events")


def test_repair_makes_a_lost_file_again(tmp_path: Path) -> None:
    cluster, before = a_filled_cluster(tmp_path)
    topic, file = cluster.topic("events"), lose(cluster)
    reports = {report.topic_partition: report for report in another(cluster).repair()}

    assert another(cluster).topic("events") == topic
    assert contents(cluster) == contents(another(cluster)) == before
    for partition in range(3):
        assert reports["events", partition].found == (
            f"{file} is lost: recreated from the directories of 3 partitions; its settings are not "
            "known, so they are the defaults",
        )
    assert not reports["others", 0].found
    assert [report.found for report in another(cluster).repair() if report.found] == []


def test_a_dry_run_only_says_so(tmp_path: Path) -> None:
    cluster, _ = a_filled_cluster(tmp_path)
    file = lose(cluster)
    reports = [one for one in another(cluster).repair(dry_run=True) if one.found or one.damaged]

    assert [one.topic_partition.partition for one in reports] == [0, 1, 2]
    assert all(one.found[0].startswith(f"{file} is lost: ") for one in reports)
    assert not file.exists()


@pytest.mark.parametrize("version", ["0.9.0", "0.10.2", "3.0"])
def test_the_format_of_the_records_is_kept(tmp_path: Path, version: str) -> None:
    cluster = builders.a_cluster(tmp_path, config=TopicConfig(message_format_version=version))
    with cluster.producer(enable_idempotence=False) as producer:
        producer.send("events", value="x").result()
    before = contents(cluster)
    lose(cluster)
    found = [report.found for report in another(cluster).repair() if report.found]

    assert contents(another(cluster)) == before
    assert (f"message.format.version={version}" in found[0][0]) == (version != "3.0")


def test_a_copy_in_a_mirror_has_the_settings(tmp_path: Path) -> None:
    folders = [tmp_path / f"disk-{number}" for number in range(2)]
    for folder in folders:
        folder.mkdir()
    cluster = Cluster(str(tmp_path / "cluster"), create=True, log_dirs=folders)
    topic = cluster.create_topic(
        "events", partitions=3, replication_factor=2, config={"retention.ms": 7}
    )
    file = lose(cluster)
    (report, *_) = [one for one in another(cluster).repair() if one.found]

    assert report.found == (f"{file} is lost: recreated from its copy in a mirror",)
    assert file.exists()
    assert another(cluster).topic("events") == topic


def test_replicas_are_found_on_all_disks_the_longest_first(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"small": 1})
    cluster.create_topic("events", partitions=4, replication_factor=2)
    append_records(cluster, {("events", p): batch(seed=p) for p in range(4)})
    before = contents(cluster)
    lose(cluster)
    list(another(cluster).repair())

    replicas = another(cluster).topic("events").replicas
    assert [sorted(nodes) for nodes in replicas] == [[0, 1]] * 4
    assert contents(another(cluster)) == before


@pytest.mark.parametrize("doubt", ["a gap", "two topics", "an offline disk"])
def test_a_topic_that_cannot_be_known_is_reported_and_others_are_repaired(
    tmp_path: Path, doubt: str
) -> None:
    cluster, _ = a_filled_cluster(tmp_path)
    file, broker = lose(cluster), cluster.path / "broker-0"
    if doubt == "a gap":
        shutil.rmtree(broker / "events-1")
    elif doubt == "two topics":
        shutil.copy(broker / "others-0" / "partition.metadata", broker / "events-1")
    else:
        cluster.create_topic("copied", replication_factor=2)
        (cluster.path / "broker-1").rename(cluster.path / "elsewhere")
    (broker / "others-0" / "kbatch.state").unlink()
    reports = {report.topic_partition: report for report in another(cluster).repair()}

    (why,) = reports[EVENTS].damaged
    assert str(file) in why
    assert not file.exists()
    assert reports["others", 0].found


def test_a_creation_removes_what_an_interrupted_one_left(tmp_path: Path) -> None:
    cluster, _ = a_filled_cluster(tmp_path)
    broker = cluster.path / "broker-0"
    cluster.create_topic("new", partitions=5)
    lose(cluster, "new")
    topic = another(cluster).create_topic("new", partitions=2)
    assert sorted(path.name for path in broker.glob("new-*")) == ["new-0", "new-1"]
    lose(cluster, "new")
    shutil.copytree(broker / "events-0", broker / "new-3")
    with pytest.raises(KafkaStorageError, match="new-3 holds records"):
        another(cluster).create_topic("new")
    assert sorted(path.name for path in broker.glob("new-*")) == ["new-0", "new-1", "new-3"]
    shutil.rmtree(broker / "new-3")
    assert another(cluster).create_topic("new", partitions=2).topic_id != topic.topic_id


DAMAGES = {"cut off": "{", "empty": "", "of another kind": '{"partitions": 3}'}


@pytest.mark.parametrize("text", DAMAGES.values(), ids=[*DAMAGES])
def test_a_damaged_topic_file_is_recreated_from_the_directories(tmp_path: Path, text: str) -> None:
    cluster, before = a_filled_cluster(tmp_path)
    topic, file = cluster.topic("events"), cluster.path / "topics" / "events.json"
    file.write_text(text)
    with pytest.raises(KafkaStorageError, match=r"events\.json is damaged.*`kbatch repair .*`"):
        another(cluster).delete_topic("events")
    planned = {report.topic_partition: report for report in another(cluster).repair(dry_run=True)}
    assert file.read_text() == text
    reports = {report.topic_partition: report for report in another(cluster).repair()}
    for report in (planned[EVENTS], reports[EVENTS]):
        assert "events.json is damaged: recreated from the directories of 3" in report.found[0]
        assert not report.damaged
    assert (file.parent / "events.json.damaged").read_text() == text
    assert contents(another(cluster)) == before
    assert another(cluster).delete_topic("events").topic_id == topic.topic_id
    assert another(cluster).topic_names() == ["others"]


def test_a_damaged_topic_file_is_recreated_from_its_mirror(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    cluster = Cluster(str(tmp_path / "cluster"), create=True, log_dirs=[str(disk)])
    cluster.create_topic("events", partitions=2)
    cluster.alter_topic("events", {"retention.ms": 5})
    topic, file = cluster.topic("events"), cluster.path / "topics" / "events.json"
    sound = json.loads(file.read_text())
    file.write_text("")
    (report, _) = (r for r in another(cluster).repair() if r.topic_partition.topic == "events")
    assert "is damaged: recreated from its copy in a mirror" in report.found[0]
    assert another(cluster).topic("events") == topic
    assert json.loads(file.read_text())["generation"] == sound["generation"] + 1


def test_a_damaged_topic_file_without_a_log_is_reported(tmp_path: Path) -> None:
    cluster, _ = a_filled_cluster(tmp_path)
    (cluster.path / "topics" / "nothing.json").write_text("{")
    (cluster.path / "broker-0" / "others-0" / "kbatch.state").unlink()
    reports = {report.topic_partition: report for report in another(cluster).repair()}
    assert "restore it from a backup" in reports["nothing", 0].damaged[0]
    assert reports["others", 0].found


def test_a_damaged_topic_file_stops_no_garbage_of_others(tmp_path: Path) -> None:
    cluster, _ = a_filled_cluster(tmp_path)
    (cluster.path / "topics" / "events.json").write_text("{")
    for dry_run in (True, False):
        garbage = another(cluster).collect_garbage(dry_run=dry_run)
        assert [*garbage.partitions] == [("others", 0)]
        assert "kbatch repair" in garbage.damaged_topics["events"]
    with pytest.raises(KafkaStorageError, match="is damaged"):
        another(cluster).collect_garbage(["events"])


def test_a_cluster_whose_own_file_is_lost_is_not_made_again_over_its_topics(tmp_path: Path) -> None:
    cluster, before = a_filled_cluster(tmp_path)
    text = (cluster.path / "cluster.json").read_text()
    (cluster.path / "cluster.json").unlink()
    with pytest.raises(ConfigError, match=r"its cluster\.json is lost; restore it from a backup"):
        Cluster(str(cluster.path), create=True)
    (cluster.path / "cluster.json").write_text(text)

    assert (
        json.loads(text)["cluster_id"]
        == store_of(another(cluster)).metadata.cluster_file.cluster_id()
    )
    assert contents(another(cluster)) == before


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__commits"])
@pytest.mark.parametrize("fault", ["lost", "damaged"])
def test_the_file_of_an_internal_topic_is_recreated_with_its_settings(
    tmp_path: Path, topic: str, fault: str
) -> None:
    cluster, before = a_filled_cluster(tmp_path)
    stored_groups.store(cluster, "a-group", {("events", 0): 3})
    commits, groups = list(cluster.history()), cluster.groups()
    file = cluster.path / "topics" / f"{topic}.json"
    text = file.read_text()
    if fault == "lost":
        file.unlink()
    else:
        file.write_text("{")
    found = {one.topic_partition: one.found for one in another(cluster).repair() if one.found}

    assert found == {
        (topic, 0): (
            f"{file} is {fault}: recreated from the directories of 1 partition; its settings are "
            "those of every internal topic",
        )
    }
    assert json.loads(file.read_text()) == json.loads(text)
    assert contents(another(cluster)) == before
    assert list(another(cluster).history()) == commits
    assert another(cluster).groups() == groups != []
    builders.write(another(cluster), {("events", 0): [batch()]})
