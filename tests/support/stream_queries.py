"""Streaming queries as Spark runs them, without Spark."""

from __future__ import annotations

import json
from typing import Any

from spark_kbatch.consumer.stream_planner import StreamPlanner
from spark_kbatch.model import StreamPiece
from spark_kbatch.options.read import parse_stream_read_options
from spark_kbatch.store.source import TopicLookup


class Query:
    """A query as Spark runs it: the offsets that it logged survive a restart, its planner does not."""

    def __init__(self, topics: TopicLookup, **options: Any) -> None:
        self.topics = topics
        self.options = {"path": "/data", "subscribe": "a", "startingOffsets": "earliest"} | options
        self.committed: dict[str, Any] | None = None
        self.logged: dict[str, Any] | None = None  # the end of a batch that was not committed
        self.now_ms = 10**12
        self.restart()

    def restart(self, **options: Any) -> Query:
        """Restart the query, with other options if any are given."""
        self.options |= options
        given = {key: str(value) for key, value in self.options.items() if value is not None}
        self.parsed = parse_stream_read_options(given)
        self.planner = StreamPlanner(self.parsed, self.opened, lambda: self.now_ms)
        return self

    def opened(self) -> TopicLookup:
        """Return the source that the planner reads from."""
        return self.topics

    def start(self) -> dict[str, Any]:
        """Return the offset at which the next batch starts."""
        return _through_json(self.committed or self.planner.initial())

    def next_end(self, *, limited: bool = True) -> dict[str, Any] | None:
        """Return the end of the next batch, after logging it; None if there is no batch."""
        start = self.start()
        if self.logged is None:
            end = self.planner.latest(start, limited=limited)
            if self.committed is not None and json.dumps(end) == json.dumps(start):
                return None
            self.logged = _through_json(end)
        return self.logged

    def tasks(self) -> list[tuple[StreamPiece, ...]]:
        """Plan the logged batch."""
        assert self.logged is not None
        return self.planner.plan(self.start(), self.logged)

    def plan(self) -> list[StreamPiece]:
        """Plan the logged batch; return the pieces of all its tasks."""
        return [one for task in self.tasks() for one in task]

    def commit(self) -> None:
        """Commit the logged batch."""
        self.committed, self.logged = self.logged, None

    def batch(self, *, limited: bool = True) -> dict[str, tuple[int, int]] | None:
        """Run one trigger; return what it read of each partition, None if there was no batch."""
        if self.next_end(limited=limited) is None:
            return None
        planned = self.plan()
        self.commit()
        return {str(one.wanted.topic_partition): one.wanted[1:] for one in planned}

    def batches(self) -> list[dict[str, tuple[int, int]]]:
        """Run triggers until there is nothing more to read."""
        found: list[dict[str, tuple[int, int]]] = []
        while (batch := self.batch()) is not None:
            found.append(batch)
            assert len(found) < 100
        return found


def _through_json(value: dict[str, Any]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(json.dumps(value))
    return parsed
