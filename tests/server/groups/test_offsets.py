"""Offsets that groups commit can be fetched, in all versions, until they expire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.groups import read_groups
from spark_kbatch.model import TopicPartition
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from tests.support import builders, stored_groups
from tests.support.group_members import (
    NOW,
    OK,
    UNSTORABLE,
    Client,
    Coordinated,
    subscribed_to,
    versions,
)
from tests.support.store import store_of

PLACE = TopicPartition("events", 0)
OTHER = TopicPartition("events", 1)
NOTHING = (-1, -1, "")
DAY_MS = 24 * 60 * 60_000
WEEK_MS = 7 * DAY_MS


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return builders.a_cluster(tmp_path, topics={"events": 3, "more": 1})


@pytest.fixture
def groups(cluster: Cluster) -> Coordinated:
    return Coordinated(cluster)


def later(groups: Coordinated, ms: int) -> None:
    """Let time pass in a few steps."""
    groups.advance(ms, step_ms=600_000)


def alive(groups: Coordinated, member: Client, ms: int) -> None:
    """Let time pass while a member sends heartbeats."""
    for _ in range(ms // 1_200_000):
        later(groups, 1_200_000)
        assert member.heartbeat() is OK


# Committing and fetching.


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_offsets_are_committed_in_all_versions(groups: Coordinated, version: int) -> None:
    assert groups.commit({PLACE: (5, "so far ✓"), OTHER: 0}, version) == {PLACE: OK, OTHER: OK}

    epoch = 3 if version >= 6 else -1
    assert groups.fetch() == {PLACE: (5, epoch, "so far ✓"), OTHER: (0, epoch, "")}


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_offsets_are_fetched_in_all_versions(groups: Coordinated, version: int) -> None:
    groups.commit({PLACE: (5, "so far")})
    epoch = 3 if version >= 5 else -1
    expected = {PLACE: (5, epoch, "so far"), OTHER: NOTHING}

    assert groups.fetch([PLACE, OTHER], version) == expected
    if version >= 2:
        assert groups.fetch(None, version) == {PLACE: expected[PLACE]}


def test_a_fetch_of_several_groups_answers_each(groups: Coordinated) -> None:
    groups.commit({PLACE: 1}, group="a")
    groups.commit({PLACE: 2}, group="b")
    group_of = protocol.OffsetFetchRequest.OffsetFetchRequestGroup
    asked = [group_of(group_id=name, topics=None) for name in "abc"]

    answer = groups.ask(ApiKey.OFFSET_FETCH, groups=asked).answer

    found = {one.group_id: [topic.partitions[0].committed_offset for topic in one.topics] for one in answer.groups}  # fmt: skip
    assert found == {"a": [1], "b": [2], "c": []}


def test_the_last_commit_counts_even_after_a_restart(groups: Coordinated) -> None:
    for offset in (3, 9, 7):
        groups.commit({PLACE: (offset, f"at {offset}")})

    groups.restart()

    assert groups.fetch() == {PLACE: (7, 3, "at 7")}


def test_null_metadata_comes_back_empty(groups: Coordinated) -> None:
    groups.commit({PLACE: (1, None)})

    assert groups.fetch() == {PLACE: (1, 3, "")}


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_metadata_above_the_limit_is_refused_for_its_partition(
    groups: Coordinated, version: int
) -> None:
    found = groups.commit({PLACE: (1, "✓" * 4096), OTHER: (1, "✓" * 4096 + "m")}, version)

    assert found == {PLACE: OK, OTHER: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert groups.fetch([PLACE, OTHER])[OTHER] == NOTHING


@pytest.mark.parametrize(
    "place",
    [("none", 0), ("events", 3), ("events", -1), ("no/topic", 0), ("", 0)],
    ids=["no such topic", "no such partition", "a negative one", "no topic's name", "no name"],
)
def test_an_offset_of_an_unknown_partition_is_refused(
    groups: Coordinated, place: tuple[str, int]
) -> None:
    found = groups.commit({place: 1, PLACE: 2})

    assert found == {place: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, PLACE: OK}
    assert groups.fetch([place]) == {place: NOTHING}


def test_nothing_is_created_for_offsets_of_unknown_partitions(groups: Coordinated) -> None:
    groups.commit({("none", 0): 1})

    assert "__consumer_offsets" not in groups.backend.metadata.topics.names(internal=True)
    assert groups.ask(ApiKey.LIST_GROUPS).answer.groups == []


def test_the_group_with_an_empty_name_may_commit(groups: Coordinated) -> None:
    assert groups.commit({PLACE: 1}, group="") == {PLACE: OK}
    assert groups.fetch(group="") == {PLACE: (1, 3, "")}


def test_a_group_id_that_cannot_be_stored_is_refused(groups: Coordinated) -> None:
    assert groups.commit({PLACE: 1}, group=UNSTORABLE) == {PLACE: ErrorCode.INVALID_GROUP_ID}


# Who may commit.


@pytest.mark.parametrize(
    ("version", "error"),
    [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)],
    ids=["an old client", "a new client"],
)
def test_a_member_of_no_group_cannot_commit(
    groups: Coordinated, version: int, error: ErrorCode
) -> None:
    found = groups.commit({PLACE: 1}, version, member_id="who", generation_id_or_member_epoch=4)

    assert found == {PLACE: error}


def test_only_members_can_commit_while_there_are_members(groups: Coordinated) -> None:
    member = groups.client()
    groups.stable(member)

    assert groups.commit({PLACE: 1}) == {PLACE: ErrorCode.UNKNOWN_MEMBER_ID}
    assert groups.commit({PLACE: 1}, member_id="who", generation_id_or_member_epoch=1) == {
        PLACE: ErrorCode.UNKNOWN_MEMBER_ID
    }
    assert member.commit({PLACE: 1}) == {PLACE: OK}
    member.leave()
    assert member.commit({PLACE: 2}) == {PLACE: ErrorCode.UNKNOWN_MEMBER_ID}
    assert groups.commit({PLACE: 3}) == {PLACE: OK}


def test_members_can_commit_until_they_rejoin(groups: Coordinated) -> None:
    member = groups.client()
    groups.stable(member)
    other = groups.join()
    assert groups.state() == "PreparingRebalance"

    assert member.commit({PLACE: 1}) == {PLACE: OK}
    member.join()
    assert groups.state() == "CompletingRebalance"
    assert member.commit({PLACE: 2}) == {PLACE: ErrorCode.REBALANCE_IN_PROGRESS}
    groups.finish([member, other])
    assert member.commit({PLACE: 3}) == {PLACE: OK}


def test_a_commit_keeps_the_members_session(groups: Coordinated) -> None:
    member = groups.client()
    groups.stable(member)
    for offset in range(5):
        groups.advance(9_000, step_ms=1_000)
        assert member.commit({PLACE: offset}) == {PLACE: OK}


# Deleting.


def delete(groups: Coordinated, *places: tuple[str, int], group: str = "g") -> Any:
    topic_of = protocol.OffsetDeleteRequest.OffsetDeleteRequestTopic
    partition_of = topic_of.OffsetDeleteRequestPartition
    topics = [
        topic_of(name=name, partitions=[partition_of(partition_index=number)])
        for name, number in places
    ]
    answer = groups.ask(ApiKey.OFFSET_DELETE, group_id=group, topics=topics).answer
    if answer.error_code:
        return ErrorCode(answer.error_code)
    return {
        TopicPartition(topic.name, one.partition_index): ErrorCode(one.error_code)
        for topic in answer.topics
        for one in topic.partitions
    }


def test_offsets_are_deleted(groups: Coordinated) -> None:
    groups.commit({PLACE: 1, OTHER: 2})

    assert delete(groups, PLACE, ("none", 0), ("events", 2)) == {
        PLACE: OK,
        ("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("events", 2): OK,
    }

    assert groups.fetch() == {OTHER: (2, 3, "")}
    groups.restart()
    assert groups.fetch() == {OTHER: (2, 3, "")}


def test_offsets_of_topics_that_members_read_are_not_deleted(groups: Coordinated) -> None:
    member = groups.client()
    groups.stable(member)
    member.commit({PLACE: 1, ("more", 0): 2})

    assert delete(groups, PLACE, ("more", 0)) == {
        PLACE: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("more", 0): OK,
    }


def test_offsets_of_members_that_are_not_consumers_are_not_deleted(groups: Coordinated) -> None:
    member = groups.client(protocol_type="connect", protocols=[("default", b"?")])
    groups.stable(member)
    member.commit({PLACE: 1})

    assert delete(groups, PLACE) is ErrorCode.NON_EMPTY_GROUP
    assert delete(groups, PLACE, group="none") is ErrorCode.GROUP_ID_NOT_FOUND
    assert delete(groups, PLACE, group="") is ErrorCode.INVALID_GROUP_ID


def test_a_group_is_deleted_with_its_offsets(groups: Coordinated) -> None:
    member = groups.client()
    groups.stable(member)
    member.commit({PLACE: 1})

    assert groups.delete_group() is ErrorCode.NON_EMPTY_GROUP
    member.leave()
    assert groups.delete_group() is OK
    assert groups.delete_group() is ErrorCode.GROUP_ID_NOT_FOUND
    assert groups.fetch() == {}
    groups.restart()
    assert groups.fetch() == {}
    assert groups.state() == "Dead"


# Expiry.


def test_a_simple_groups_offsets_expire_each_after_its_commit(groups: Coordinated) -> None:
    groups.commit({PLACE: 1})
    later(groups, DAY_MS)
    groups.commit({OTHER: 2})

    later(groups, WEEK_MS - DAY_MS - 600_000)
    assert groups.fetch().keys() == {PLACE, OTHER}
    later(groups, 1_200_000)
    assert groups.fetch().keys() == {OTHER}
    later(groups, DAY_MS)
    assert groups.fetch() == {}
    assert groups.state() == "Dead"
    groups.restart()
    assert groups.ask(ApiKey.LIST_GROUPS).answer.groups == []


def test_a_groups_offsets_expire_after_the_last_member_has_left(groups: Coordinated) -> None:
    member = groups.client(session_timeout_ms=1_800_000)
    groups.stable(member)
    member.commit({PLACE: 1})
    alive(groups, member, WEEK_MS + DAY_MS)
    assert groups.fetch().keys() == {PLACE}
    member.leave()

    later(groups, WEEK_MS - 1_200_000)
    assert groups.fetch().keys() == {PLACE}
    later(groups, 2_400_000)
    assert groups.fetch() == {}
    assert groups.state() == "Dead"


def test_offsets_of_a_topic_that_members_no_longer_read_expire(groups: Coordinated) -> None:
    member = groups.client(session_timeout_ms=1_800_000)
    member.protocols = [("range", subscribed_to("events", "more"))]
    groups.stable(member)
    member.commit({PLACE: 1, ("more", 0): 2})
    member.protocols = [("range", subscribed_to("events"))]
    groups.stable(member)
    alive(groups, member, WEEK_MS + 1_200_000)

    assert groups.fetch().keys() == {PLACE}
    groups.restart()
    assert groups.fetch().keys() == {PLACE}


@pytest.mark.parametrize("version", range(2, 5))
def test_offsets_expire_at_the_time_that_the_client_asked_for(
    groups: Coordinated, version: int
) -> None:
    groups.commit({PLACE: 1}, version, retention_time_ms=DAY_MS)
    groups.commit({OTHER: 1}, version)
    groups.restart()

    later(groups, DAY_MS - 600_000)
    assert groups.fetch().keys() == {PLACE, OTHER}
    later(groups, 1_200_000)
    assert groups.fetch().keys() == {OTHER}


@pytest.mark.parametrize("retention_ms", [2**63 - 1, -(2**63)], ids=["the longest", "the shortest"])
def test_every_retention_time_of_a_client_is_accepted(
    groups: Coordinated, retention_ms: int
) -> None:
    assert groups.commit({PLACE: 1}, 4, retention_time_ms=retention_ms) == {PLACE: OK}
    groups.restart()

    later(groups, 1_200_000)
    assert bool(groups.fetch()) == (retention_ms > 0)


def test_expiry_goes_on_with_the_stored_times_after_a_restart(groups: Coordinated) -> None:
    member = groups.client()
    groups.stable(member)
    member.commit({PLACE: 1})
    member.leave()
    for _ in range(6):
        later(groups, DAY_MS)
        groups.restart()

    assert groups.fetch().keys() == {PLACE}
    later(groups, DAY_MS + 600_000)
    assert groups.fetch() == {}


# Topics that are deleted.


def test_offsets_of_a_deleted_topic_are_not_shown(groups: Coordinated, cluster: Cluster) -> None:
    groups.commit({PLACE: 1, ("more", 0): 2})

    cluster.delete_topic("events")

    assert groups.fetch() == {("more", 0): (2, 3, "")}
    assert groups.fetch([PLACE]) == {PLACE: NOTHING}
    (found,) = read_groups(store_of(cluster))
    assert found.offsets.keys() == {("more", 0)}


def test_offsets_of_an_earlier_topic_with_the_same_name_are_not_shown(
    groups: Coordinated, cluster: Cluster
) -> None:
    groups.commit({PLACE: 1})
    groups.restart()
    cluster.delete_topic("events")
    cluster.create_topic("events")

    assert groups.fetch([PLACE]) == {PLACE: NOTHING}
    groups.commit({PLACE: 0})
    assert groups.fetch([PLACE]) == {PLACE: (0, 3, "")}


def test_offsets_are_shown_and_kept_while_the_clusters_folder_is_away(
    groups: Coordinated, cluster: Cluster
) -> None:
    groups.commit({PLACE: 5})
    aside = cluster.path.with_name("aside")
    cluster.path.rename(aside)
    assert groups.fetch() == {PLACE: (5, 3, "")}
    later(groups, DAY_MS)
    aside.rename(cluster.path)
    later(groups, DAY_MS)

    assert groups.fetch() == {PLACE: (5, 3, "")}
    (found,) = read_groups(store_of(cluster))
    assert found.offsets[PLACE].committed_offset == 5


def test_offsets_are_loaded_once_the_clusters_folder_is_there(cluster: Cluster) -> None:
    Coordinated(cluster).commit({PLACE: 5})
    aside = cluster.path.with_name("aside")
    cluster.path.rename(aside)
    restarted = Coordinated(cluster)
    assert restarted.commit({PLACE: 6}) == {PLACE: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    aside.rename(cluster.path)
    later(restarted, 2000)

    assert restarted.fetch() == {PLACE: (5, 3, "")}


def test_groups_are_loaded_again_after_others_could_change_them(
    groups: Coordinated, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups.commit({PLACE: 5})
    stored_groups.store(cluster, "g", {PLACE: 7})  # as after PATH was restored
    assert groups.fetch()[PLACE][0] == 5

    monkeypatch.setattr(groups.coordinator, "_term", lambda: 1)
    assert groups.fetch()[PLACE][0] == 7

    monkeypatch.setattr(groups.coordinator, "_term", lambda: None)
    assert groups.commit({PLACE: 8}) == {PLACE: ErrorCode.COORDINATOR_NOT_AVAILABLE}


def test_offsets_of_a_deleted_topic_are_dropped(groups: Coordinated, cluster: Cluster) -> None:
    groups.commit({PLACE: 1, ("more", 0): 2})
    groups.commit({PLACE: 1}, group="another")
    cluster.delete_topic("events")

    later(groups, 1_200_000)

    assert {one: set(found) for one, found in groups.store.contents.offsets.items()} == {
        "g": {("more", 0)}
    }
    groups.restart()
    assert groups.fetch(group="another") == {}


def test_times_of_commits_are_the_coordinators(groups: Coordinated) -> None:
    groups.advance(5_000)
    groups.commit({PLACE: 1})

    (found,) = read_groups(groups.backend)
    assert found.offsets[PLACE].commit_timestamp == NOW + 5_000


def test_offsets_of_a_topic_that_has_lost_its_file_stay(
    groups: Coordinated, cluster: Cluster
) -> None:
    builders.append_records(cluster, {("events", 0): builders.batch()})
    groups.commit({PLACE: 5})
    file = store_of(cluster).metadata.paths.topics_dir / "events.json"
    kept = file.read_bytes()
    file.unlink()
    later(groups, 3_600_000)

    file.write_bytes(kept)  # as a repair does
    assert groups.fetch()[PLACE][0] == 5
    assert Coordinated(cluster).fetch()[PLACE][0] == 5
