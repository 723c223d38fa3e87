"""Consumer groups, as users of a cluster see them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.files import Files
from spark_kbatch.model import GroupMember, GroupOffset, TopicPartition
from spark_kbatch.store.groups import assigned_partitions
from tests.support import builders, stored_groups

EVENTS = [TopicPartition("events", number) for number in range(3)]
AT = stored_groups.COMMITTED_MS


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = builders.a_cluster(tmp_path, topics={"events": 3})
    batches = {("events", number): builders.batch() for number in range(3)}
    builders.append_records(cluster, batches)
    return cluster


def test_a_cluster_without_clients_has_no_groups(cluster: Cluster) -> None:
    assert cluster.groups() == []


def test_a_group_has_its_members_offsets_and_lag(cluster: Cluster) -> None:
    app = stored_groups.member("app", {"events": [1, 2]})
    stored_groups.store(cluster, "billing", {("events", 0): 1, ("events", 1): 3}, [app])
    stored_groups.store(cluster, "audit", {("events", 0): 0})

    audit, billing = cluster.groups()

    assert (audit.group_id, audit.state, audit.members, audit.lag) == ("audit", "Empty", (), 3)
    assert (billing.state, billing.protocol, billing.generation) == ("Stable", "range", 3)
    assert billing.members == (GroupMember("app-1", None, "app", "127.0.0.1", tuple(EVENTS[1:])),)
    assert billing.offsets == {
        EVENTS[0]: GroupOffset(1, 3, 2, "a note", AT),
        EVENTS[1]: GroupOffset(3, 3, 0, "a note", AT),
        EVENTS[2]: GroupOffset(None, 3, None, "", -1),
    }
    assert billing.lag == 2


def test_a_group_past_overwritten_records_has_no_lag(cluster: Cluster) -> None:
    stored_groups.store(cluster, "billing", {("events", 0): 9})

    (group,) = cluster.groups()

    assert (group.offsets[EVENTS[0]].lag, group.lag) == (0, 0)


def test_offsets_of_a_deleted_topic_are_left_out(cluster: Cluster) -> None:
    cluster.create_topic("other")
    app = stored_groups.member("app", {"events": [0], "other": [0]})
    stored_groups.store(cluster, "billing", {("events", 0): 1, ("other", 0): 0}, [app])
    cluster.delete_topic("events")

    (group,) = cluster.groups()

    assert group.offsets == {
        EVENTS[0]: GroupOffset(None, None, None, "", -1),  # The member has it assigned still.
        TopicPartition("other", 0): GroupOffset(0, 0, 0, "a note", AT),
    }


def test_other_processes_see_where_a_cluster_is_served(cluster: Cluster) -> None:
    assert cluster.running_server() is None
    with cluster.serve() as server:
        found = Cluster(cluster.path).running_server()
        assert found is not None
        assert found.bootstrap_servers == server.bootstrap_servers
    assert cluster.running_server() is None


def test_users_who_may_only_read_get_the_address_that_the_server_wrote(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with cluster.serve() as server:
        reader = Cluster(cluster.path)
        with monkeypatch.context() as patch:
            patch.setattr(Files, "flock", refuse)
            found = reader.running_server()

    assert found is not None
    assert found.bootstrap_servers == server.bootstrap_servers


def test_an_assignment_has_its_partitions() -> None:
    data = stored_groups.assignment({"b": [1], "a": [0, 2]})

    assert [tuple(one) for one in assigned_partitions(data)] == [("a", 0), ("a", 2), ("b", 1)]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(stored_groups.assignment({"a": [0, 1]})[:-9], id="cut"),
        pytest.param(struct.pack(">hih", 0, 1, -1), id="a negative size"),
        pytest.param(struct.pack(">hih1si", 0, 1, 1, b"a", -1), id="a negative count"),
        pytest.param(struct.pack(">hih1si", 0, 1, 1, b"a", 2**31 - 1), id="a huge count"),
        pytest.param(struct.pack(">hih1s", 0, 1, 1, b"\xff"), id="a name that is not UTF-8"),
        pytest.param(struct.pack(">hi", 0, -1), id="a negative number of topics"),
    ],
)
def test_bytes_that_are_not_an_assignment_have_no_partitions(data: bytes) -> None:
    assert assigned_partitions(data) == ()
