"""The cost of replication: of its checks for one replica, and of three replicas.

Unit: appends of 1 MiB a second, flushed, all replicas in folders of one disk. One replica through the
replica manager, with acks=1, stands beside the same checks and writes of the log alone, and takes at
most 5 % longer; three with acks=all take at most 3.3 times as long. Before and after a change:
`make bench`, then read the ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from spark_kbatch import Cluster
from spark_kbatch.log.append import append_as_leader
from spark_kbatch.log.validator import validate
from spark_kbatch.model import AppendOrigin, AppendResult, TopicPartition
from tests.support import builders
from tests.support.interleaved import Candidate, interleave
from tests.support.store import append_records as append_by
from tests.support.store import store_of
from tests.support.targets import Targets

ROUNDS = 30
PARTITIONS = 8  # in turn: how long a flush takes differs between files
LAPS = 2
APPENDS = LAPS * PARTITIONS  # a round
DATA = builders.batch(n=1, value_bytes=(1 << 20) - 200)
TARGETS = {("one replica, acks=1", "the log alone"): 1 / 1.05, ("three replicas, acks=all", "one replica, acks=1"): 1 / 3.3}  # fmt: skip


def through_the_log(cluster: Cluster) -> Callable[[], None]:
    cluster.create_topic("alone", partitions=PARTITIONS)
    logs = [store_of(cluster).manager.log(TopicPartition("alone", n)) for n in range(PARTITIONS)]
    origin = AppendOrigin.CLIENT

    def run() -> None:
        for log in LAPS * logs:
            header = validate(DATA, log.topic_partition, log.config, origin, now_ms=0)
            append_as_leader(log, log.state(), DATA, header, origin=origin, flush=True, now_ms=0)

    return run


def through_the_manager(
    cluster: Cluster, name: str, replicas: int, acks: int
) -> Callable[[], None]:
    cluster.create_topic(name, partitions=PARTITIONS, replication_factor=replicas)
    entries = [{TopicPartition(name, n): DATA} for n in range(PARTITIONS)]

    def run() -> None:
        answers: list[Mapping[TopicPartition, AppendResult]] = []
        for one in LAPS * entries:
            append_by(
                store_of(cluster),
                timeout_ms=1000,
                required_acks=acks,
                entries_per_partition=one,
                on_complete=answers.append,
                flush=True,
            )
        assert [one.error for answer in answers for one in answer.values()] == [None] * APPENDS

    return run


def bench_appends_to_replicas(tmp_path: Path, targets: Targets) -> None:
    cluster = Cluster(str(tmp_path / "cluster"), create=True)
    candidates = {
        "the log alone": through_the_log(cluster),
        "one replica, acks=1": through_the_manager(cluster, "single", 1, 1),
        "three replicas, acks=all": through_the_manager(cluster, "triple", 3, -1),
    }
    rates = interleave({n: Candidate(run, APPENDS) for n, run in candidates.items()}, rounds=ROUNDS)
    targets.rates(rates, "Appends of 1 MiB", "a second", TARGETS)
