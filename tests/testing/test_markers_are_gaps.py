"""Records of a topic with a marker, and aborted records, in each partition, as tests wait for them and see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.testing.formats import formats_of
from spark_kbatch.testing.records import _Look
from spark_kbatch.testing.report import last_records
from tests.support import builders
from tests.support.client_transactions import GAPS_END, GIVEN, leave_gaps

RECORDS = 2 * len(GIVEN)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = builders.a_cluster(tmp_path, topics={"events": 2})
    leave_gaps(cluster, "events")
    return cluster


def test_records_are_waited_for_and_not_offsets(cluster: Cluster) -> None:
    typed = formats_of("events", None, {}, lambda: "")

    assert _Look(cluster, "events", typed).again(RECORDS) is not None
    for count in (RECORDS + 1, 2 * GAPS_END, 2 * GAPS_END + 1):
        look = _Look(cluster, "events", typed)
        assert look.again(count) is None
        assert look.found(count) == f"topic 'events' has {RECORDS} records; expected: {count}"


def test_a_failed_tests_report_has_the_last_records_and_not_the_last_offsets(
    cluster: Cluster,
) -> None:
    few = last_records(cluster, [], 2).splitlines()
    every = last_records(cluster, [], 2 * GAPS_END).splitlines()

    assert few[0].endswith(f"{2 * GAPS_END} offsets, the last 2 records:")
    assert [GIVEN[2].decode() in line for line in few[2:]] == [True, True]
    assert every[0].endswith(f": {RECORDS} records")
    assert len(every) == 2 + RECORDS
