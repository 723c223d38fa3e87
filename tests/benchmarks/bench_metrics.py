"""What does a scrape of /metrics cost the process that has the server?

A folder with 100 topics of three partitions each, and 20 groups with 15 offsets each. Unit: milliseconds of CPU time
of the whole process, of one scrape that looks at the place. One in 15 seconds may take a hundredth of a core.

Before and after a change: `make bench`, then read the tables.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from spark_kbatch import Cluster
from spark_kbatch.web.metrics import Exposition
from tests.support.targets import Targets

ROUNDS = 15
TOPICS, PARTITIONS, GROUPS = 100, 3, 20
SCRAPED_EVERY_S = 15
CORE_SHARE_MAX = 0.01


def bench_a_scrape_takes_a_hundredth_of_a_core_at_most(memory_path: Path, targets: Targets) -> None:
    cluster = Cluster(memory_path / "cluster", create=True)
    names = [f"topic-{number}" for number in range(TOPICS)]
    for name in names:
        cluster.create_topic(name, PARTITIONS)
    with cluster.producer(flush=False) as producer:
        for name in names:
            for partition in range(PARTITIONS):
                producer.send(name, "value", partition=partition)
    per_group = TOPICS // GROUPS
    for group in range(GROUPS):
        of_group = names[group * per_group : (group + 1) * per_group]
        offsets = {(name, partition): 1 for name in of_group for partition in range(PARTITIONS)}
        cluster.alter_group_offsets(f"group-{group}", offsets)
    with cluster.serve() as server:
        exposition = Exposition(cluster, server=server)
        exposition.text()
        took_ms = []
        for _ in range(ROUNDS):
            began_s = time.process_time()
            _, text = exposition.text()
            took_ms.append(1000 * (time.process_time() - began_s))

    assert text.count(b"\nkafka_log_log_logendoffset{") >= TOPICS * PARTITIONS
    assert text.count(b"\nkafka_consumergroup_lag{") == TOPICS * PARTITIONS
    limit_ms = 1000 * SCRAPED_EVERY_S * CORE_SHARE_MAX
    targets.at_most("CPU time of a scrape", statistics.median(took_ms), limit_ms, " ms")
