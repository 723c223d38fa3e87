"""Some records to look at, wherever topics are: which, in what order, where to go on, and for how many bytes."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch import Cluster, TopicPartition
from spark_kbatch.consumer.peeking import Peek
from spark_kbatch.errors import ConfigError, CorruptRecordError, OffsetOutOfRangeError
from spark_kbatch.model import OffsetRange
from spark_kbatch.opening.stores import open_for_reading
from tests.consumer.test_batch_reads import a_brokers_log
from tests.store.test_any_place import PLACES
from tests.support.bucket_objects import CountingObjects, a_bucket

MiB = 1 << 20


@pytest.fixture(params=[name for name in PLACES if "merged" not in name])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with PLACES[request.param](tmp_path) as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Cluster]:
    with PLACES["folder"](tmp_path) as cluster:
        yield cluster


def send(cluster: Cluster, count: int, *, partitions: int = 1, size: int = 0, **how: Any) -> None:
    """Send records 0 to count, one after another to each partition; record n has time 1000 + n."""
    cluster.create_topic("events", partitions, exist_ok=True)
    with cluster.producer(**how) as producer:
        for n in range(count):
            value = str(n).encode().ljust(size, b".")
            producer.send(
                "events", value, key=f"k{n % 5}", partition=n % partitions, timestamp=1000 + n
            )


def numbers(found: Peek) -> list[int]:
    return [int(value.rstrip(b".")) for value in found.rows["value"].to_pylist()]


def walked(cluster: Cluster, edge: str, **given: Any) -> list[int]:
    """Return the records of peeks that go on where the one before ended, until there are no more."""
    bound = "end" if edge == "start" else "start"
    given |= {} if edge == "start" else {"start": "earliest"}
    found = list[int]()
    for _ in range(1000):
        peek = cluster.peek("events", **given)
        found = numbers(peek) + found if edge == "start" else found + numbers(peek)
        given[bound] = {one.topic_partition.partition: getattr(one, edge) for one in peek.ranges}
        if not (peek.has_older if edge == "start" else peek.has_newer):
            return found
    raise AssertionError("there is no end to it")


def test_the_newest_of_all_partitions_are_shown_by_time(cluster: Cluster) -> None:
    send(cluster, 100, partitions=3)

    found = cluster.peek("events", count=5)

    assert numbers(found) == [95, 96, 97, 98, 99]
    assert found.rows.schema.names == [
        "key", "value", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    assert [one[1:] for one in found.ranges] == [(32, 34), (32, 33), (31, 33)]
    assert (found.has_older, found.has_newer, found.errors) == (True, False, {})
    assert found.size_in_bytes > 0


def test_the_first_from_an_offset_or_a_time_on(cluster: Cluster) -> None:
    send(cluster, 100, partitions=3)
    moment = datetime.datetime.fromtimestamp(1.050, datetime.UTC)

    assert numbers(cluster.peek("events", start=10, count=4)) == [30, 31, 32, 33]
    assert numbers(cluster.peek("events", start={0: 10, 1: 20, 2: 30}, count=3)) == [30, 33, 36]
    assert numbers(cluster.peek("events", start=moment, count=3)) == [50, 51, 52]
    assert numbers(cluster.peek("events", partitions=[2], start=10, count=2)) == [32, 35]
    assert numbers(cluster.peek("events", end=10, count=2)) == [28, 29]
    after_all = datetime.datetime.fromtimestamp(5, datetime.UTC)
    nothing = cluster.peek("events", start=after_all)
    assert (numbers(nothing), nothing.has_older, nothing.has_newer) == ([], True, False)


@pytest.mark.parametrize("edge", ["start", "end"], ids=["older", "newer"])
@pytest.mark.parametrize(
    "filtered", [{}, {"where": "key = 'k3'"}, {"where": "key = 'k3' AND offset >= 7"}]
)
def test_pages_one_after_another_have_each_record_once(
    cluster: Cluster, edge: str, filtered: dict[str, Any]
) -> None:
    send(cluster, 400, partitions=3, batch_size=700)
    expected = [n for n in range(400) if not filtered or n % 5 == 3]
    expected = [n for n in expected if "offset" not in filtered.get("where", "") or n // 3 >= 7]

    assert walked(cluster, edge, count=20, **filtered) == expected
    # With so few bytes that no page gets as far as it is asked to.
    assert sorted(walked(cluster, edge, count=20, max_bytes=3000, **filtered)) == expected


def test_each_partition_keeps_its_order_whatever_its_times_are(folder: Cluster) -> None:
    folder.create_topic("events", 2)
    with folder.producer() as producer:
        for n, time_ms in enumerate([5000, 1000, 6000, 6001]):
            producer.send("events", str(n), partition=0, timestamp=time_ms)
        producer.send("events", "9", partition=1, timestamp=5500)

    assert numbers(folder.peek("events")) == [0, 1, 9, 2, 3]
    assert walked(folder, "start", count=1) == walked(folder, "end", count=1) == [0, 1, 9, 2, 3]


def test_a_topic_without_records_has_none_and_no_others(cluster: Cluster) -> None:
    cluster.create_topic("events", 2)

    found = cluster.peek("events", where="key = 'a'")

    assert (numbers(found), found.has_older, found.has_newer) == ([], False, False)
    assert found.ranges == [OffsetRange(TopicPartition("events", n), 0, 0) for n in (0, 1)]


def test_a_condition_that_can_have_none_reads_nothing(cluster: Cluster) -> None:
    send(cluster, 10, partitions=2)

    found = cluster.peek("events", where="partition = 1 AND offset < 2")
    assert (numbers(found), found.has_older, found.has_newer) == ([1, 3], False, False)
    assert cluster.peek("events", where="partition = 7").size_in_bytes == 0


@pytest.mark.parametrize("newest", [True, False], ids=["newest", "oldest"])
def test_a_rare_key_ends_with_the_bytes_and_says_where_to_go_on(
    cluster: Cluster, newest: bool
) -> None:
    send(cluster, 2000, size=5000)
    where = {} if newest else {"start": 0}

    found = cluster.peek("events", where="key = 'none'", max_bytes=MiB, **where)

    assert (numbers(found), found.has_older, found.has_newer) == ([], newest, not newest)
    # A real cluster's answers are as large as its client asks for.
    assert found.size_in_bytes < (5 if cluster.is_remote else 1.2) * MiB
    ((_, start, end),) = found.ranges
    assert 50 < end - start < 1900
    assert (end == 2000) if newest else (start == 0)


def test_a_bucket_is_asked_for_few_bytes_and_no_list(tmp_path: Path) -> None:
    objects = _Weighed()
    with a_bucket(objects) as cluster:
        for _ in range(20):  # each an object, however fast this machine is
            send(cluster, 400, partitions=4, size=5000, batch_size=50_000)
        cluster.peek("events")
        for given in (
            {},
            {"end": 500},
            {"start": 100},
            {"where": "key = 'none'"},
            {"where": "value = 'a'"},
        ):
            objects.weighed.clear()
            objects.taken()
            cluster.peek("events", count=50, max_bytes=4 * MiB, **given)

            # Batches that lie in one object together are asked for whole.
            assert 0 < sum(objects.weighed) < 8 * MiB, given
            assert objects.taken().keys() <= {"get data", "get log", "get ledger", "get index"}


class _Weighed(CountingObjects):
    """Objects that count the bytes of what they answer, but for those of the ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.weighed = list[int]()

    def get_range(self, name: str, position: int, size_in_bytes: int) -> bytes | None:
        data = super().get_range(name, position, size_in_bytes)
        self.weighed.append(len(data or b""))
        return data


def test_large_records_are_fewer_and_the_last_comes_whatever_it_costs(cluster: Cluster) -> None:
    send(cluster, 12, size=900_000, max_request_size=MiB)

    found = cluster.peek("events", count=12, max_bytes=4 * MiB)
    assert numbers(found) == [*range(12)][-len(found.rows) :]
    assert 0 < len(found.rows) < 6
    assert found.size_in_bytes < 8 * MiB
    assert numbers(cluster.peek("events", max_bytes=1)) == [11]
    assert numbers(cluster.peek("events", max_bytes=1, start=0))[0] == 0
    assert walked(cluster, "start", max_bytes=MiB) == [*range(12)]


def test_what_a_batch_holds_counts_beside_its_bytes(folder: Cluster) -> None:
    folder.create_topic("events")
    with folder.producer(
        compression_type="zstd", batch_size=64 * MiB, linger_ms=1000, max_request_size=64 * MiB
    ) as producer:
        for _ in range(200):
            producer.send("events", b"0" * 200_000)

    found = folder.peek("events", where="key = 'none'", start=0, max_bytes=MiB)

    assert found.size_in_bytes < 2 * MiB
    assert found.has_newer


def test_aborted_and_open_transactions_are_left_out_as_a_read_does(tmp_path: Path) -> None:
    with open_for_reading(str(a_brokers_log(tmp_path / "logs"))) as logs:
        assert logs.peek("t").rows["offset"].to_pylist() == [0, 4]
        assert logs.peek("t", count=1).rows["offset"].to_pylist() == [4]
        assert logs.peek("t", start=1, count=1).rows["offset"].to_pylist() == [4]
        everything = logs.peek("t", isolation_level="read_uncommitted")
        assert everything.rows["offset"].to_pylist() == [0, 2, 4, 5]


@pytest.mark.parametrize("damaged", [0, 40, 99])
def test_records_on_both_sides_of_damage_are_shown_and_it_is_named(
    folder: Cluster, damaged: int
) -> None:
    send(folder, 100, batch_size=1)  # each a batch of its own
    log = next(folder.path.rglob("events-0/*.log"))
    data = bytearray(log.read_bytes())
    value = str(damaged).encode()
    place = data.index(b"k%d" % (damaged % 5) + bytes([2 * len(value)]) + value)
    data[place] ^= 1
    log.write_bytes(data)
    sound = [n for n in range(100) if n != damaged]

    for given in ({}, {"start": 0}):
        found = folder.peek("events", count=100, **given)
        rest = numbers(found)
        if found.has_newer and given:
            end = found.ranges[0].end
            rest += numbers(folder.peek("events", count=100, start=end))
        assert rest == sound
        (error,) = found.errors.values()
        assert isinstance(error, CorruptRecordError)


def test_a_topic_that_is_cut_short_or_deleted_meanwhile_has_what_is_left(
    folder: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(folder, 100)
    views = folder._reader.source.views

    def late_views(partitions: Any) -> Any:
        found = views(partitions)
        folder.delete_records({("events", 0): 90})
        return found

    with monkeypatch.context() as patched:
        patched.setattr(folder._reader.source, "views", late_views)
        assert numbers(folder.peek("events")) == [*range(90, 100)]
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 5 .* 90 to 100"):
        folder.peek("events", start=5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": 0}, "count"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"where": "keys = 'a'"}, "where: at character 1"),
        ({"start": "latest"}, "start"),
        ({"start": {7: 1}}, "start names the partitions events-7"),
        ({"value_format": "json"}, "value.schema"),
    ],
)
def test_what_does_not_fit_is_refused(folder: Cluster, given: dict[str, Any], said: str) -> None:
    folder.create_topic("events")

    with pytest.raises(ConfigError, match=said):
        folder.peek("events", **given)


def test_values_are_columns_with_the_options_of_a_read(cluster: Cluster) -> None:
    cluster.create_topic("events")
    with cluster.producer() as producer:
        for value in ('{"id": 7}', '{"id": 8}', "no JSON"):
            producer.send("events", value)
    formats = {"value_format": "json", "value_schema": "id bigint", "mode": "PERMISSIVE"}

    found = cluster.peek("events", **formats)
    assert found.rows["value"].to_pylist() == [{"id": 7}, {"id": 8}, None]
    assert [bool(error) for error in found.rows["value_error"].to_pylist()] == [False, False, True]
    found = cluster.peek("events", where="value.id = 8", **formats)
    assert found.rows["offset"].to_pylist() == [1]
