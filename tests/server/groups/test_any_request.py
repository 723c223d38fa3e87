"""Requests with any values are answered; nothing invalid is stored, and nothing fails."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch import Cluster
from spark_kbatch.cluster.groups import read_groups
from spark_kbatch.cluster.offsets_store import OffsetsStore
from spark_kbatch.wire import protocol
from spark_kbatch.wire.codec import Structure
from spark_kbatch.wire.protocol import ApiKey
from tests.support.disk import Disk, DiskFiles
from tests.support.group_members import UNSTORABLE, Asked, Coordinated, subscribed_to, versions
from tests.support.jobs import PATH

INT32 = st.sampled_from([0, 1, 2, -1, -2, 10_000, 2**31 - 1, -(2**31)])
INT64 = st.sampled_from([0, 1, -1, -2, 10_000, 2**63 - 1, -(2**63)])
PARTITIONS = st.sampled_from([0, 0, 1, 1, 2, -1, 2**31 - 1])
GROUPS = st.sampled_from(["g", "g", "h", "", "grüppe ✓", UNSTORABLE])
TOPICS = st.sampled_from(
    ["events", "events", "events", "none", "", "../x", "__consumer_offsets", "é" * 200]
)
NAMES = st.sampled_from(["range", "sticky", "", UNSTORABLE])
BYTES = st.sampled_from([b"", subscribed_to("events"), b"\0\1\xff\xff\xff\xff", b"\0" * 5])
INSTANCES = st.none() | st.sampled_from(["i-1", "i-2", "", UNSTORABLE])
TYPES = st.sampled_from(["consumer", "consumer", "connect", ""])
METADATA = st.none() | st.sampled_from(["", "m", "✓" * 4_096, UNSTORABLE])
FEW = {"max_size": 3}

REQUESTS: dict[ApiKey, Any] = {
    ApiKey.JOIN_GROUP: st.fixed_dictionaries(
        {
            "group_id": GROUPS,
            "session_timeout_ms": INT32,
            "rebalance_timeout_ms": INT32,
            "group_instance_id": INSTANCES,
            "protocol_type": TYPES,
            "protocols": st.lists(
                st.builds(
                    protocol.JoinGroupRequest.JoinGroupRequestProtocol, name=NAMES, metadata=BYTES
                ),
                **FEW,  # type: ignore[arg-type]
            ),
        }
    ),
    ApiKey.SYNC_GROUP: st.fixed_dictionaries(
        {
            "group_id": GROUPS,
            "generation_id": INT32,
            "group_instance_id": INSTANCES,
            "protocol_type": st.none() | TYPES,
            "protocol_name": st.none() | NAMES,
            "assignments": st.lists(
                st.builds(
                    protocol.SyncGroupRequest.SyncGroupRequestAssignment,
                    member_id=NAMES,
                    assignment=BYTES,
                ),
                **FEW,  # type: ignore[arg-type]
            ),
        }
    ),
    ApiKey.HEARTBEAT: st.fixed_dictionaries(
        {"group_id": GROUPS, "generation_id": INT32, "group_instance_id": INSTANCES}
    ),
    ApiKey.LEAVE_GROUP: st.fixed_dictionaries(
        {
            "group_id": GROUPS,
            "members": st.lists(
                st.builds(
                    protocol.LeaveGroupRequest.MemberIdentity,
                    member_id=NAMES,
                    group_instance_id=INSTANCES,
                ),
                **FEW,  # type: ignore[arg-type]
            ),
        }
    ),
    ApiKey.OFFSET_COMMIT: st.fixed_dictionaries(
        {
            "group_id": GROUPS,
            "generation_id_or_member_epoch": INT32,
            "group_instance_id": INSTANCES,
            "retention_time_ms": INT64,
            "topics": st.lists(
                st.builds(
                    protocol.OffsetCommitRequest.OffsetCommitRequestTopic,
                    name=TOPICS,
                    partitions=st.lists(
                        st.builds(
                            protocol.OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition,
                            partition_index=PARTITIONS,
                            committed_offset=INT64,
                            committed_leader_epoch=INT32,
                            committed_metadata=METADATA,
                        ),
                        **FEW,  # type: ignore[arg-type]
                    ),
                ),
                **FEW,  # type: ignore[arg-type]
            ),
        }
    ),
    ApiKey.OFFSET_FETCH: st.fixed_dictionaries(
        {
            "group_id": GROUPS,
            "topics": st.lists(
                st.builds(
                    protocol.OffsetFetchRequest.OffsetFetchRequestTopic,
                    name=TOPICS,
                    partition_indexes=st.lists(PARTITIONS, **FEW),  # type: ignore[arg-type]
                ),
                **FEW,  # type: ignore[arg-type]
            ),
            "groups": st.lists(
                st.builds(
                    protocol.OffsetFetchRequest.OffsetFetchRequestGroup,
                    group_id=GROUPS,
                    topics=st.none(),
                ),
                **FEW,  # type: ignore[arg-type]
            ),
        }
    ),
    ApiKey.OFFSET_DELETE: st.fixed_dictionaries(
        {
            "group_id": GROUPS,
            "topics": st.lists(
                st.builds(
                    protocol.OffsetDeleteRequest.OffsetDeleteRequestTopic,
                    name=TOPICS,
                    partitions=st.lists(
                        st.builds(
                            protocol.OffsetDeleteRequest.OffsetDeleteRequestTopic.OffsetDeleteRequestPartition,
                            partition_index=PARTITIONS,
                        ),
                        **FEW,  # type: ignore[arg-type]
                    ),
                ),
                **FEW,  # type: ignore[arg-type]
            ),
        }
    ),
    ApiKey.LIST_GROUPS: st.fixed_dictionaries(
        {"states_filter": st.lists(st.sampled_from(["Stable", "empty", "?"]), **FEW)}  # type: ignore[arg-type]
    ),
    ApiKey.DESCRIBE_GROUPS: st.fixed_dictionaries({"groups": st.lists(GROUPS, **FEW)}),  # type: ignore[arg-type]
    ApiKey.DELETE_GROUPS: st.fixed_dictionaries({"groups_names": st.lists(GROUPS, **FEW)}),  # type: ignore[arg-type]
}
HELD = (
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
)  # answered only after others have joined, or the leader has assigned


@st.composite
def requests(draw: st.DrawFn) -> tuple[ApiKey, int, dict[str, Any]]:
    api_key = draw(st.sampled_from(sorted(REQUESTS)))
    version = draw(st.sampled_from(versions(ApiKey(api_key))))
    return ApiKey(api_key), version, draw(REQUESTS[api_key])


def is_encodable(api_key: ApiKey, version: int, fields: dict[str, Any]) -> bool:
    """Return True if this version can encode the request: long texts fit only into flexible versions."""
    longest = max((len(text) for text in texts_in(fields)), default=0)
    first_flexible = {
        ApiKey.JOIN_GROUP: 6, ApiKey.SYNC_GROUP: 4, ApiKey.HEARTBEAT: 4, ApiKey.LEAVE_GROUP: 4,
        ApiKey.OFFSET_COMMIT: 8, ApiKey.OFFSET_FETCH: 6, ApiKey.OFFSET_DELETE: 99,
        ApiKey.LIST_GROUPS: 3, ApiKey.DESCRIBE_GROUPS: 5, ApiKey.DELETE_GROUPS: 2,
    }[api_key]  # fmt: skip
    return longest < 10_000 or version >= first_flexible


def texts_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for one in value.values() for text in texts_in(one)]
    if isinstance(value, list):
        return [text for one in value for text in texts_in(one)]
    fields = value.FIELDS if isinstance(value, Structure) else ()
    return [text for one in fields for text in texts_in(getattr(value, one.name))]


@given(st.lists(requests().filter(lambda one: is_encodable(*one)), min_size=1, max_size=12), st.data())  # fmt: skip
def test_any_request_is_answered(
    asked: list[tuple[ApiKey, int, dict[str, Any]]], data: st.DataObject
) -> None:
    cluster = Cluster(PATH, create=True, files=DiskFiles(Disk()))
    cluster.create_topic("events", partitions=2)
    groups = Coordinated(cluster)
    known = ["", "who", "m" * 30_000]
    held: list[Asked] = []
    with pytest.MonkeyPatch.context() as patched:
        failures: list[Any] = []
        logger = logging.getLogger("spark_kbatch.server.groups.coordinator")
        patched.setattr(logger, "exception", lambda *args, **_: failures.append(args))
        for api_key, version, fields in asked:
            member_id = data.draw(st.sampled_from(known))
            answered = groups.ask(api_key, version, **fields, member_id=member_id)
            assert answered.is_answered or api_key in HELD
            if not answered.is_answered:
                held.append(answered)
            elif api_key is ApiKey.JOIN_GROUP and len(answered.answer.member_id) < 10_000:
                known.append(answered.answer.member_id)
            groups.advance(data.draw(st.sampled_from([0, 1_000, 20_000])), step_ms=5_000)
        groups.advance(4_000_000, step_ms=100_000)
        groups.coordinator.close()
        assert failures == []
    assert all(one.is_answered for one in held)
    assert OffsetsStore(groups.backend).load() == groups.store.contents
    assert len(read_groups(groups.backend)) <= 3
