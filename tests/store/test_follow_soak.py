"""A loop over new records beside writers, rollovers and recreated topics, killed and started again."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_kbatch
from tests.support import draws, more_in_soak
from tests.support.followed_topics import Followed

SECONDS = 200  # in `make soak`, at each place; ten minutes with KBATCH_SCHEDULES=3


@pytest.mark.more_in_soak
@pytest.mark.parametrize(
    "place",
    [
        "served folder",
        pytest.param("folder", marks=pytest.mark.slow),
        pytest.param("bucket", marks=pytest.mark.slow),
    ],
)
def test_a_group_has_each_record_once_and_again_only_after_a_kill(
    tmp_path: Path, place: str
) -> None:
    seconds, rounds = (draws.at_least(SECONDS), 20) if more_in_soak.is_soak() else (1, 3)
    address = f"file+bucket://{tmp_path / 'bucket'}" if place == "bucket" else str(tmp_path / "c")
    with draws.naming_first(), spark_kbatch.open(address, create=True) as cluster:
        followed = Followed(address, cluster, tmp_path)
        if place != "served folder":
            followed.run(seconds, rounds=rounds)
            return
        with cluster.serve():
            followed.run(seconds, rounds=rounds)
