"""What a place of topics holds, as Prometheus reads it: gauges in its text format.

    # HELP kbatch_log_end_offset Offset of the next record of a partition.
    # TYPE kbatch_log_end_offset gauge
    kbatch_log_end_offset{topic="orders",partition="0"} 1200

Times are seconds since 1970 and sizes bytes, as Prometheus wants its units. A gauge of something
that is not known, such as the lag of a group that has committed nothing, is left out.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/ and, for names,
https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from spark_kbatch import Cluster
    from spark_kbatch.bucket.maintenance import BucketDescription

_GAUGES = {
    "log_start_offset": "First offset of a partition that is kept.",
    "log_end_offset": "Offset of the next record of a partition.",
    "log_size_bytes": "Bytes of a partition's batches.",
    "group_committed_offset": "Offset that a consumer group has committed.",
    "group_lag": "Offsets from what a consumer group has committed to the end.",
    "bucket_entries": "Entries of the ledger.",
    "bucket_entries_since_checkpoint": "Entries after the newest checkpoint.",
    "bucket_last_entry_timestamp_seconds": "Time of the newest entry.",
    "bucket_unmaintained_since_timestamp_seconds": "Time of the oldest entry after the horizon.",
    "bucket_clock_ahead_seconds": "How far the last writer's clock is ahead of the store's.",
    "bucket_small_pieces": "Small pieces of the partition that has the most.",
    "bucket_objects": "Objects of the bucket.",
    "bucket_bytes": "Bytes of the bucket's objects.",
}
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

# Values of labels, by their names, and values of gauges, by theirs.
_Sample: TypeAlias = tuple[Mapping[str, object], Mapping[str, float | None]]


def prometheus_text(cluster: Cluster, bucket: BucketDescription | None = None) -> str:
    """Return gauges of a cluster's partitions and groups, and of a bucket.

    Args:
        cluster: which.
        bucket: as `kbatch describe` shows it; None for another place.

    Raises:
        The errors of `Cluster.describe` and `Cluster.groups`.
    """
    samples, lines = [*_samples(cluster, bucket)], list[str]()
    for name, text in _GAUGES.items():
        found = [(labels, values.get(name)) for labels, values in samples]
        rows = [
            f"kbatch_{name}{_text_of(one)} {value}" for one, value in found if value is not None
        ]
        if rows:
            lines += f"# HELP kbatch_{name} {text}", f"# TYPE kbatch_{name} gauge", *rows
    return "".join(f"{line}\n" for line in lines)


def _text_of(labels: Mapping[str, object]) -> str:
    pairs = (f'{name}="{str(value).translate(_ESCAPED)}"' for name, value in labels.items())
    return f"{{{','.join(pairs)}}}" if labels else ""


def _samples(cluster: Cluster, bucket: BucketDescription | None) -> Iterator[_Sample]:
    for found in cluster.describe(cluster.topic_names()):
        if not found.error:
            yield (
                found.topic_partition._asdict(),
                {
                    "log_start_offset": found.offsets.log_start_offset,
                    "log_end_offset": found.offsets.log_end_offset,
                    # No broker tells a size.
                    "log_size_bytes": found.size_in_bytes if found.size_in_bytes >= 0 else None,
                },
            )
    for group in cluster.groups() if cluster.has("groups") else ():
        for tp, at in group.offsets.items():
            yield (
                {"group": group.group_id, **tp._asdict()},
                {
                    "group_committed_offset": at.committed_offset,
                    "group_lag": at.lag,
                },
            )
    if bucket is not None:
        yield (
            {},
            {
                "bucket_entries": bucket.entries,
                "bucket_entries_since_checkpoint": bucket.entries_since_checkpoint,
                "bucket_last_entry_timestamp_seconds": bucket.last_entry_ms / 1000,
                "bucket_unmaintained_since_timestamp_seconds": bucket.unmaintained_since_ms / 1000,
                "bucket_clock_ahead_seconds": bucket.clock_ahead_ms / 1000,
                "bucket_small_pieces": bucket.small_extents,
            },
        )
        stored = {"read": bucket.referenced, "waiting": bucket.waiting, "ledger": bucket.ledger}
        for state, of_state in stored.items():
            yield (
                {"state": state},
                {
                    "bucket_objects": of_state.objects,
                    "bucket_bytes": of_state.size_in_bytes,
                },
            )
