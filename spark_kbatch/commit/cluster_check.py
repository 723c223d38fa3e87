"""A check of everything that a cluster stores, which only reads.

of each partition     what `cluster_repair` would find and do in the replica that is read: its state, the
CRC of each batch, offsets, indexes, leader epochs, the topic's files
of in-sync replicas   the same, and that they have the same batches
of the cluster        the records of commits and of consumer groups
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from spark_kbatch.errors import KBatchError
from spark_kbatch.log.repair import UNKNOWN_OFFSET, LogRepair, RepairReport, is_lost
from spark_kbatch.model import ReadRange, TopicPartition
from spark_kbatch.record.header import BatchHeader
from spark_kbatch.replica.manager import ReplicaManager
from spark_kbatch.replica.view import Replica

_READ_BYTES = 1 << 20


def with_followers(manager: ReplicaManager, report: RepairReport) -> RepairReport:
    """Return a partition's report with what is wrong with the replicas that are not read."""
    tp = report.topic_partition
    try:
        view = manager.partition(tp).view
        if view.only_log is not None:
            return report
        topic_id = manager.metadata.topics.topic(tp.topic).topic_id
        leader, state = view.readable(), view.state()
    except (OSError, KBatchError):
        return report  # which says why
    found, damaged = list(report.found), list(report.damaged)
    for node_id in view.replicas:
        if node_id == leader.node_id:
            continue
        name = f"replica on node {node_id}"
        if node_id not in state.isr:
            found.append(
                f"{name} is not in sync: `kbatch log-dirs --replicate` brings it up to date"
            )
            continue
        try:
            log = view.log_of(node_id)
            if not is_lost(log):
                damaged += [
                    f"{name}: {what}"
                    for what in _differences(leader, Replica(node_id, log, log.state()))
                ]
            its = LogRepair(log, dry_run=True).run(topic_id, None)
            found += [f"{name}: {what}" for what in its.found]
            damaged += [f"{name}: {what}" for what in its.damaged]
        except (OSError, KBatchError) as error:
            damaged.append(f"{name}: {error}")
    return report._replace(found=tuple(found), damaged=tuple(damaged))


def _differences(leader: Replica, follower: Replica) -> Iterator[str]:
    """Yield how the batches of an in-sync replica differ first."""
    start = max(leader.state.log_start_offset, follower.state.log_start_offset)
    end = leader.state.high_watermark
    if follower.state.log_end_offset < end:
        yield f"it ends at offset {follower.state.log_end_offset}, the partition at {end}"
        end = follower.state.log_end_offset
    for one, other in itertools.zip_longest(
        _batches(leader, start, end), _batches(follower, start, end)
    ):
        if one != other:
            offset = min(header.base_offset for header in (one, other) if header is not None)
            yield f"its batch at offset {offset} is not that of node {leader.node_id}"
            return


def _batches(replica: Replica, offset: int, end: int) -> Iterator[BatchHeader]:
    """Yield the headers of committed batches, which have the CRCs of their records."""
    state = replica.state._replace(high_watermark=end, last_stable_offset=end)
    buffer = bytearray(_READ_BYTES)
    while offset < end:
        read = replica.log.read(state, ReadRange(offset, _READ_BYTES, buffer=buffer))
        for _, header in read.batches:
            if header.base_offset < end:
                yield header
        offset = read.batches[-1][1].next_offset if read.batches else end


def unreadable(topic_partition: TopicPartition, what: str, error: Exception) -> RepairReport:
    """Return a report of records that cannot be read."""
    damaged = (f"{what} cannot be read: {error}",)
    return RepairReport(topic_partition, UNKNOWN_OFFSET, UNKNOWN_OFFSET, (), damaged)
