"""Random schedules of streaming queries over checkpoints that are lost, restored and copied, and what is right of them.

    Schedule(seed, cluster, folder, is_read=...).run()

A world has one source of rows, two topics and a few checkpoints of the same query. Its drivers do Spark's steps one at
a time (`spark_streams`), interleaved at random. One may die after any step, also between our commit and Spark's note of
it; a new one is started beside one that still runs; a checkpoint is backed up, copied to a second query that writes to the
same topic or to another one, restored, or loses files. Whoever takes a checkpoint back, or deletes in it, has ended its
drivers.

The world knows what Spark has planned, and so what the commit has to do:

    a number above the last one                           written
    the last one, the same plan, the same topic           skipped; with an unread checkpoint if the rows are the same
    any other                                             refused; with an unread checkpoint, skipped if the last one has
                                                          the same topic, and rows as many and as large

A checkpoint is unread where it cannot tell: its newest file is another number's, or is noted as committed.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from spark_kbatch import Cluster
from spark_kbatch.errors import CommitError
from tests.support.spark_streams import PlannedBatch, SparkCheckpoint, SparkDriver

STEPS = 40
_DRIVERS_MAX = 4


class Committed(NamedTuple):
    """The last commit, as the world knows it."""

    number: int
    content: str  # of its file in `offsets`
    topic: str
    rows: list[str]
    was_read: bool  # whether the checkpoint could tell at its commit


@dataclass
class RunningDriver:
    """A driver, with what it has in memory."""

    driver: SparkDriver
    checkpoint: SparkCheckpoint
    topic: str
    planned: PlannedBatch | None = None
    rows: list[str] = field(default_factory=list)
    messages: Any = None
    is_committed: bool = False


class Schedule:
    """One world."""

    def __init__(self, seed: str, cluster: Cluster, folder: Path, *, is_read: bool) -> None:
        self._rng, self._cluster, self._folder = random.Random(seed), cluster, folder
        self._is_read, self._seed = is_read, seed
        self._topics = [f"{name}-{seed}".replace(" ", "-") for name in ("out", "other")]
        self._available = 0
        self._checkpoints = [SparkCheckpoint(folder / "checkpoint")]
        self._backups: list[SparkCheckpoint] = []
        self._drivers: list[RunningDriver] = []
        self._last: Committed | None = None
        self.expected: dict[str, list[str]] = {topic: [] for topic in self._topics}
        self.outcomes: list[str] = []
        self.story: list[str] = []

    def run(self) -> None:
        """Run it; a wrong outcome fails with all steps that led to it."""
        actions = [self._steps] * 12 + [
            self._start, self._start, self._start, self._kill, self._kill, self._back_up, self._restore,
            self._copy, self._delete_last, self._delete_all,
        ]  # fmt: skip
        self._start()
        for _ in range(STEPS):
            self._rng.choice(actions)()
        self._ensure_topics_are_right()

    # What happens outside of drivers.

    def _start(self, at: SparkCheckpoint | None = None) -> None:
        """Start a driver; one that runs at the same checkpoint is a zombie from now on."""
        if len(self._drivers) < _DRIVERS_MAX:
            checkpoint = at or self._rng.choice(self._checkpoints)
            # A copy is for a second query, mostly with another topic.
            is_other = checkpoint is not self._checkpoints[0] and self._rng.random() < 0.6
            topic = self._topics[is_other]
            self._drivers.append(
                RunningDriver(SparkDriver(self._cluster._store.address, topic), checkpoint, topic)
            )

    def _kill(self) -> None:
        if self._drivers:
            self._drivers.pop(self._rng.randrange(len(self._drivers)))

    def _back_up(self) -> None:
        at = self._folder / f"backup-{len(self._backups)}"
        self._backups.append(self._rng.choice(self._checkpoints).copied_to(at))

    def _restore(self) -> None:
        if self._backups:
            checkpoint = self._stopped()
            self._rng.choice(self._backups).copied_to(checkpoint.folder)

    def _copy(self) -> None:
        if len(self._checkpoints) < 3:
            at = self._folder / f"copy-{len(self._checkpoints)}"
            self._checkpoints.append(self._checkpoints[0].copied_to(at))

    def _delete_last(self) -> None:
        checkpoint = self._stopped()
        newest = checkpoint.newest("offsets")
        for kind in ("offsets", "commits"):
            (checkpoint.folder / kind / str(newest)).unlink(missing_ok=True)

    def _delete_all(self) -> None:
        if self._rng.random() < 0.3:
            checkpoint = self._stopped()
            for kind in ("offsets", "commits"):
                shutil.rmtree(checkpoint.folder / kind, ignore_errors=True)

    def _stopped(self) -> SparkCheckpoint:
        checkpoint = self._rng.choice(self._checkpoints)
        self._drivers = [one for one in self._drivers if one.checkpoint is not checkpoint]
        return checkpoint

    # What a driver does.

    def _steps(self) -> None:
        if self._drivers:
            one = self._rng.choice(self._drivers)
            for _ in range(self._rng.randint(1, 6)):
                if one in self._drivers:
                    self._step(one)

    def _step(self, one: RunningDriver) -> None:
        if one.planned is None:
            self._available += self._rng.randint(0, 2)
            one.planned = one.checkpoint.plan(self._available)
            one.rows = self._rows(one.planned)
        elif one.messages is None:
            one.messages = one.driver.stage(one.rows, one.checkpoint.query_id)
        elif not one.is_committed:
            self._commit(one, one.planned)
        else:
            one.checkpoint.note(one.planned.number)
            one.planned = one.messages = None
            one.is_committed = False

    def _rows(self, planned: PlannedBatch) -> list[str]:
        """Return a micro-batch's rows; one in five queries reads a table that changes."""
        rows = [f"{number:03d}" for number in range(planned.start, planned.end)]
        if rows and self._rng.random() < 0.2:
            rows[-1] += "!" * self._rng.randint(1, 3)
        return rows

    def _commit(self, one: RunningDriver, planned: PlannedBatch) -> None:
        is_known = self._is_read and self._tells(one.checkpoint, planned)
        expected = self._expected_of(one, planned, is_known)
        folder = str(one.checkpoint.folder) if self._is_read else ""
        before = self._end(one.topic)
        try:
            one.driver.commit(one.messages, planned.number, folder)
            outcome = "skipped" if self._end(one.topic) == before else "written"
        except CommitError:
            outcome = "refused"
        self.story.append(
            f"{planned.number} of {one.checkpoint.folder.name} to {one.topic}: {one.rows}, "
            f"{'known' if is_known else 'unknown'}: {outcome}, expected {expected}"
        )
        if one.rows:
            self.outcomes.append(outcome)
            assert outcome == expected, self._told()
        if outcome == "refused":
            self._drivers.remove(one)  # its query has failed
            return
        one.is_committed = True
        if one.rows and outcome == "written":
            self.expected[one.topic] += one.rows
            self._last = Committed(planned.number, planned.content, one.topic, one.rows, is_known)
        if self._rng.random() < 0.3:
            self._drivers.remove(one)  # it dies before it notes that
            self._start(one.checkpoint)

    def _tells(self, checkpoint: SparkCheckpoint, planned: PlannedBatch) -> bool:
        newest, noted = checkpoint.newest("offsets"), checkpoint.folder / "commits"
        return newest == planned.number and not (noted / str(planned.number)).exists()

    def _expected_of(self, one: RunningDriver, planned: PlannedBatch, is_known: bool) -> str:
        last = self._last
        if last is None or planned.number > last.number:
            return "written" if one.rows else "skipped"
        if planned.number < last.number:
            return "refused" if one.rows else "skipped"
        is_same = one.topic == last.topic
        if is_known and last.was_read:
            is_same = is_same and planned.content == last.content
        else:
            is_same = is_same and _shape(one.rows) == _shape(last.rows)
        return "skipped" if is_same or not one.rows else "refused"

    # What was written.

    def _end(self, topic: str) -> int:
        if topic not in self._cluster.topic_names():
            return 0
        return sum(one.offsets.high_watermark for one in self._cluster.describe(topic))

    def _ensure_topics_are_right(self) -> None:
        for topic, rows in self.expected.items():
            found = []
            if rows or topic in self._cluster.topic_names():
                found = (
                    self._cluster.read(topic, columns=["value"]).read_all().column(0).to_pylist()
                )
            assert [value.decode() for value in found] == rows, self._told()

    def _told(self) -> str:
        return "\n".join([f"seed {self._seed!r}", *self.story])


def _shape(rows: list[str]) -> tuple[int, int]:
    return len(rows), sum(map(len, rows))
