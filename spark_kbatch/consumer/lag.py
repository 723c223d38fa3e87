"""The lag of a streaming query: how many offsets are in the logs past what it has read.

It is computed from what Spark reports of a trigger, one object for each source:

    endOffset       where the micro-batch ended: a `StreamOffset`
    latestOffset    where the logs ended when it was planned: the same, with the mark `log_ends`

The mark is there because Spark before 4.2 asks a source for no such end. It reports the micro-batch's own as the latest
offset, and a lag made of that would always be 0; or none, with Trigger.AvailableNow.

Source: Spark connector/kafka-0-10-sql/.../KafkaMicroBatchStream.scala metrics, toString; Spark
sql/core/.../streaming/runtime/ProgressReporter.scala; PySpark sql/streaming/listener.py SourceProgress.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from spark_kbatch.consumer.stream_planner import (
    KBATCH_KEY,
    LOG_ENDS,
    StreamOffset,
    is_another_topic,
)
from spark_kbatch.errors import ConfigError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options import arguments

# What a source's description has in it: of Spark's own connector, which measures with Kafka's client on every version,
# and of sources in Python.
_KAFKA, _PYTHON = "KafkaV2[", "PythonMicroBatchStream"
TOLD_NO_ENDS = (
    "a query's progress does not tell where the logs end before Spark 4.2, which is the first to ask its sources for "
    "that. Use it, or a newer one; or give the source the option 'commit.group.id', and look at the lag of that "
    "consumer group"
)


class Lag(NamedTuple):
    """The lag of a streaming query, in offsets, by the names of Spark's Kafka connector.

    Offsets are counted, not records: of transactions and compacted topics there are fewer rows.
    """

    minOffsetsBehindLatest: int  # noqa: N815  Spark's
    maxOffsetsBehindLatest: int  # noqa: N815
    avgOffsetsBehindLatest: float  # noqa: N815
    by_partition: Mapping[TopicPartition, int]  # sorted; the larger number if two sources read it


def lag(progress: Mapping[str, Any] | None) -> Lag | None:
    """Return the lag that a query's progress tells; None if it tells none. Arguments as `spark_kbatch.lag`."""
    behind: dict[TopicPartition, int] = {}
    for source in _sources(progress):
        end, _ = _offset(source.get("endOffset"))
        description = str(source.get("description", _PYTHON))
        if end is None or not (_KAFKA in description or _PYTHON in description):
            continue  # it reads no topics, has planned nothing yet, or is of another connector
        latest, is_log_end = _offset(source.get("latestOffset"))
        if _PYTHON in description and (tells_no_log_ends() if latest is None else not is_log_end):
            raise ConfigError(TOLD_NO_ENDS)
        if latest is None:
            return None  # this micro-batch was planned by an earlier run
        for tp, log_end in latest.offsets.items():
            known = not is_another_topic(tp.topic, end.ids, latest.ids)
            read = end.offsets.get(tp, 0) if known else 0
            # A read of uncommitted data may be past the end.
            behind[tp] = max(log_end - read, behind.get(tp, 0))
    if not behind:
        return None
    numbers = behind.values()
    by_partition = dict(sorted(behind.items()))
    return Lag(min(numbers), max(numbers), sum(numbers) / len(numbers), by_partition)


def tells_no_log_ends() -> bool:
    """Return True if this process uses a Spark before 4.2."""
    return "pyspark" in sys.modules and not find_spec("pyspark.sql.streaming.datasource")


def _sources(progress: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    if progress is None:
        return ()
    if isinstance(progress, Mapping):
        sources = progress.get("sources", [progress] if "endOffset" in progress else None)
        if isinstance(sources, Sequence) and all(isinstance(one, Mapping) for one in sources):
            return sources
    arguments.refuse("progress", progress, "query.lastProgress, or one of its sources")


def _offset(told: Any) -> tuple[StreamOffset | None, bool]:
    """Return an offset of a progress, None if it is not one in topics, and whether it has the mark.

    Spark gives it as text, which PySpark before 4.2 writes as Python does, and a progress that was stored as JSON has
    the object. PySpark writes "null" or "None" where Spark has no offset.
    """
    try:
        value = json.loads(told.replace("'", '"')) if isinstance(told, str) else told
        offset = StreamOffset.from_json(value)
    except ValueError:  # a ConfigError is one
        return None, False
    return (offset if offset.offsets else None), LOG_ENDS in value.get(KBATCH_KEY, {})
