"""A task that reads several ranges of a real cluster asks for all of them at once, and each comes complete."""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from collections.abc import Iterator

import pytest

from spark_kbatch.errors import DataLossError, RequestTimedOutError
from spark_kbatch.model import text_of_uuid
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import SUPPORTED, ApiKey
from tests.support.many_partitions import NODES, PARTITIONS, ManyPartitions, batches, pieces


@pytest.fixture
def cluster() -> Iterator[ManyPartitions]:
    with ManyPartitions() as cluster:
        yield cluster


def read(cluster: ManyPartitions, end: int = 2) -> list[tuple[int, int]]:
    """Return partition and offset of each row of all partitions."""
    return [
        row
        for batch in batches(cluster, pieces(end))
        for row in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    ]


def expected(end: int = 2) -> list[tuple[int, int]]:
    return [(number, offset) for number in range(PARTITIONS) for offset in range(end)]


def again(cluster: ManyPartitions) -> list[dict[int, int]]:
    """Return the fetches of one partition alone."""
    assert sum(len(one) > 1 for one in cluster.asked_for) == NODES
    return [one for one in cluster.asked_for if len(one) == 1]


def test_each_leader_is_asked_once_for_all_its_partitions(cluster: ManyPartitions) -> None:
    assert read(cluster) == expected()
    assert [*map(len, cluster.asked_for)] == [PARTITIONS // NODES] * NODES
    # The id of the topic before and after, and no request for a partition by itself: so many times the latency.
    assert sum(map(cluster.asked, SUPPORTED)) - cluster.asked(ApiKey.API_VERSIONS) <= NODES + 3


def test_a_rack_does_not_keep_leaders_from_sending_the_starts(cluster: ManyPartitions) -> None:
    found = batches(cluster, pieces(end=2), client_rack="b")
    assert sum(batch.num_rows for batch in found) == len(expected())
    assert [*map(len, cluster.asked_for)] == [PARTITIONS // NODES] * NODES


def test_nothing_is_read_of_a_topic_that_was_recreated_before_the_starts_came(
    cluster: ManyPartitions, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = uuid.UUID(int=1), uuid.UUID(int=2)
    cluster.ids = [before, after]
    wanted = pieces(end=2, topic_id=text_of_uuid(before.bytes))
    assert [*batches(cluster, wanted, fail="false")] == []
    assert "deleted and created again" in caplog.text


def test_what_does_not_fit_into_the_shared_answer_is_asked_for_again(
    cluster: ManyPartitions,
) -> None:
    cluster.room = 3
    assert read(cluster) == expected()
    assert again(cluster) == [{n: 0} for n in range(PARTITIONS) if n // NODES >= 3]


def test_all_ranges_go_on_at_once_after_their_first_answers(cluster: ManyPartitions) -> None:
    with contextlib.closing(batches(cluster, pieces(end=4))) as found:
        next(found)  # of the first range
        deadline = time.monotonic() + 10
        while len(cluster.asked_for) < NODES + PARTITIONS:
            assert time.monotonic() < deadline, cluster.asked_for
            time.sleep(0.001)
    assert sorted(map(str, again(cluster))) == sorted(str({n: 2}) for n in range(PARTITIONS))


def test_ranges_are_read_to_their_ends(cluster: ManyPartitions) -> None:
    assert read(cluster, end=4) == expected(4)
    assert len(again(cluster)) == PARTITIONS


def test_an_error_in_the_shared_answer_is_that_of_its_partition_alone(
    cluster: ManyPartitions,
) -> None:
    def refuse(count: int, partition: int) -> int:
        is_refused = partition == 5 and count > 1
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if is_refused else ErrorCode.NONE

    cluster.refuse = refuse
    assert read(cluster) == expected()
    assert again(cluster) == [{5: 0}]


def test_a_range_that_is_lost_is_named(cluster: ManyPartitions) -> None:
    cluster.refuse = lambda _, partition: (
        ErrorCode.OFFSET_OUT_OF_RANGE if partition == 5 else ErrorCode.NONE
    )
    with pytest.raises(DataLossError, match="events-5 from offset 0 to 2"):
        read(cluster)


def test_a_leader_that_cannot_be_reached_is_the_error_of_its_own_ranges(
    cluster: ManyPartitions,
) -> None:
    cluster.addresses[2] = "127.0.0.1:1"
    given = {"default_api_timeout_ms": "500", "request_timeout_ms": "400"}
    found = batches(cluster, pieces(end=2), **given)
    first = [batch["partition"][0].as_py() for batch in itertools.islice(found, 2)]

    with pytest.raises(RequestTimedOutError, match=r"events-2 .*127\.0\.0\.1:1"):
        next(found)
    assert first == [0, 1]
