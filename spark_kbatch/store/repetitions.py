"""Which micro-batch is a repetition, and is skipped: one rule for every place that keeps the last one of a query.

Spark repeats the last micro-batch if it did not see that it was committed, under the same query id and
number. A checkpoint that was restored, copied or is shared brings other rows under the same two. So what
tells them apart is kept with the last commit of each id, and compared with what comes; docs/streams.md has
the cases, and their test reads them there.

The best evidence is the digest of `offsets/NUMBER` in the checkpoint. Spark writes that file once, when it
plans the micro-batch, with the time in it: the same rows planned again give another one. Where it cannot be
read the digest is unknown, and the sums of the rows decide. What is unknown is never taken for different:
where nothing was kept, as by an earlier release, a commit of the same number is skipped.

A version of a `txnAppId` has no checkpoint, only sums. Such a name belongs to the topic that the option
`topic` names.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from spark_kbatch.clock import now_ms
from spark_kbatch.errors import CommitError
from spark_kbatch.options.write import Resolution, WriteOptions
from spark_kbatch.store.commits import NOTHING_VISIBLE
from spark_kbatch.stored_json import StoredObject

logger = logging.getLogger(__name__)

_TOPICS_MAX = 20  # whose sums are kept by name
_TIME_MS_MAX = 253_402_300_799_999  # the end of year 9999
_SUMS = re.compile("[0-9]+ rows with [0-9]+ [+] [0-9]+ bytes")

# By topic: rows, bytes of their keys, bytes of their values, both as they came.
RowSums: TypeAlias = Mapping[str, tuple[int, ...]]
# What a checkpoint says of a micro-batch: the SHA-256 of its `offsets/NUMBER`, empty if that is unknown, and
# where each source ends, one a line, empty if that is unknown or long.
PlannedOffsets: TypeAlias = tuple[str, str]
UNREAD: PlannedOffsets = "", ""
ReadPlan: TypeAlias = Callable[[str, int], PlannedOffsets]  # of a query's id and a number


class StagedByTask(Protocol):
    """What one task has staged."""

    @property
    def extents(self) -> Collection[Any]:
        """Where its rows are."""

    @property
    def query_id(self) -> str | None:
        """The streaming query that the task is of."""

    @property
    def run_id(self) -> str | None:
        """The run of that query."""

    @property
    def sums(self) -> RowSums:
        """How many rows they are, and how large."""


def query_of(staged: Iterable[StagedByTask]) -> str | None:
    """Return the query whose micro-batch these tasks have staged; None if they have no rows.

    Raises:
        CommitError: the tasks do not know it.
    """
    query_ids = {one.query_id for one in staged if one.extents}
    if not query_ids:
        return None
    (query_id,) = query_ids
    if query_id is None:
        raise CommitError(
            NOTHING_VISIBLE,
            "the tasks of this micro-batch do not know their query, so a duplicate of it could not be recognised",
        )
    return query_id


class Evidence(NamedTuple):
    """What is kept of the last commit of an id."""

    topic: str  # that the option `topic` names; empty if each row names its own
    sums: Mapping[str, str]  # by topic, as text
    digest: str
    sources: str
    query_id: str
    run_id: str  # of the query; empty if unknown
    time_ms: int
    is_resolved: int = (
        0  # 1 if a user let it take the place of a commit that it is no repetition of
    )

    @classmethod
    def of_tasks(
        cls, staged: Sequence[StagedByTask], topic: str | None, plan: PlannedOffsets = UNREAD
    ) -> Evidence:
        """Return what tells apart what some tasks staged."""
        sums: dict[str, tuple[int, ...]] = {}
        for name, more in (pair for one in staged for pair in one.sums.items()):
            sums[name] = tuple(map(operator.add, sums.get(name, (0, 0, 0)), more))
        if len(sums) > _TOPICS_MAX:
            digest = hashlib.sha256(json.dumps(sorted(sums.items())).encode()).hexdigest()
            total = tuple(map(sum, zip(*sums.values(), strict=True)))
            sums = {f"{len(sums)} topics ({digest[:32]})": total}
        texts = {name: "{} rows with {} + {} bytes".format(*found) for name, found in sums.items()}
        ids = ((one.query_id or "", one.run_id or "") for one in staged)
        return cls(topic or "", texts, *plan, *max(ids, default=("", "")), now_ms())

    @classmethod
    def of(cls, found: StoredObject) -> Evidence:
        """Return what is read."""
        sums = found.object("sums")
        return cls(
            found.text("topic"),
            {name: sums.text(name, _SUMS) for name in sums.keys()},
            found.text("digest"),
            found.text("sources"),
            found.text("query_id"),
            found.text("run_id"),
            found.integer("time_ms", 0, _TIME_MS_MAX),
            found.integer("is_resolved", 0, 1),
        )

    def shown(self) -> str:
        """Return it for people."""
        rows = " and ".join(
            f"{sums.partition(' with')[0]} to {name}" for name, sums in self.sums.items()
        )
        time = datetime.datetime.fromtimestamp(self.time_ms // 1000, datetime.UTC)
        run = f" by run {self.run_id}" if self.run_id else ""
        return f"{rows or 'no rows'}, {time:%Y-%m-%dT%H:%M:%SZ}{run}"


class Attempt(NamedTuple):
    """A micro-batch, or a version of a `txnAppId`, that is to be committed."""

    id: str  # as the place keeps it
    number: int
    evidence: Evidence
    resolution: Resolution | None
    app_id: str = ""  # empty for a micro-batch

    @classmethod
    def of_micro_batch(
        cls,
        staged: Sequence[StagedByTask],
        number: int,
        options: WriteOptions,
        read_plan: ReadPlan | None,
    ) -> Attempt | None:
        """Return a micro-batch that tasks have staged; None if it has no rows. Raises as `query_of`."""
        query_id = query_of(staged)
        if query_id is None:
            return None
        plan = UNREAD if read_plan is None else read_plan(query_id, number)
        evidence = Evidence.of_tasks(staged, options.topic, plan)
        return cls(query_id, number, evidence, options.resolve_micro_batch)

    @classmethod
    def of_batch(cls, staged: Sequence[StagedByTask], options: WriteOptions) -> Attempt | None:
        """Return the version that a batch job is of the name in its options; None if they have none."""
        name, number, topic = options.txn_app_id, options.txn_version, options.topic
        if name is None or number is None:
            return None
        # No topic's name has an @, so that no two pairs of names have the same id.
        name_of_both, evidence = f"{name}@{topic or ''}", Evidence.of_tasks(staged, topic)
        return cls(name_of_both, number, evidence, options.resolve_micro_batch, name)

    def is_repetition(self, number: int, last: Evidence | None) -> bool:
        """Return True if it is skipped, False if it is written; logs what is not as usual.

        Args:
            number: of the last commit of the id; below 0 if there is none.
            last: what was kept of that; None if nothing was.

        Raises:
            CommitError: it is no repetition, and may not follow either.
        """
        wanted = self.resolution
        why, note = self._compared(number, last) if self.number <= number else ("", "")
        if why and (wanted is None or (wanted.id, wanted.number) != (self.id, self.number)):
            raise CommitError(NOTHING_VISIBLE, self._refusal(number, last, why))
        if wanted is not None and why:
            done = "skipped" if wanted.skips else "written"
            logger.warning("%s is %s, as resolve.micro.batch says: %s", self._shown(), done, why)
            return wanted.skips
        if wanted is not None and wanted.id == self.id and wanted.number <= self.number:
            logger.warning("option 'resolve.micro.batch' is not needed any more: leave it out")
        if self.number <= number:
            logger.warning(
                "skipping duplicate transaction %d of %s: %d is already committed%s",
                self.number, self.id, number, note,
            )  # fmt: skip
        return self.number <= number

    def _compared(self, number: int, last: Evidence | None) -> tuple[str, str]:
        # Returns why it is no repetition, empty if it is one, and what the warning adds then.
        mine = self.evidence
        if self.number < number:
            is_streams = not self.app_id or (last and mine.query_id and last.query_id)
            return ("a query repeats its last micro-batch alone" if is_streams else ""), ""
        if last is None:
            return "", "; nothing was kept to tell whether it is the same"
        has_same_rows = mine.sums == last.sums
        if self.app_id:
            is_others = mine.query_id and last.query_id and mine.query_id != last.query_id
            return (
                "" if has_same_rows and not is_others else "its rows or its query are others"
            ), ""
        is_known = bool(mine.digest and last.digest)
        if is_known and mine.digest != last.digest:
            return f"Spark has planned it anew: offsets/{number} in its checkpoint is another", ""
        if mine.topic != last.topic:
            return "it goes to another topic", ""
        if is_known:
            note = "; its rows are others, as its query is not deterministic: the first ones count"
            return "", "" if has_same_rows else note
        why = "its rows are others, and its checkpoint could not be read"
        note = "; its checkpoint could not be read, but its rows are as many and as large"
        return ("", note) if has_same_rows else (why, "")

    def _refusal(self, number: int, last: Evidence | None, why: str) -> str:
        kept = "" if last is None else f": {last.shown()}"
        way_on = f"with a new checkpoint, it goes on where {number} ended, which is not known here"
        if self.app_id:
            way_on = "if these rows are to be written, they need a new txnAppId"
        elif last is not None and last.sources:
            way_on = (
                "with a new checkpoint, it loses and doubles nothing from these offsets on, where "
                f"{number} ended: {last.sources}"
            )
        return (
            f"{self._shown()} is no repetition: {why}. Committed is {number}{kept}; this has "
            f"{self.evidence.shown()}. This is a restored, copied or shared checkpoint, or a new one under "
            f"an old name. See docs/streams.md; {way_on}. For this one alone, option resolve.micro.batch may "
            f"say 'skip {self.id} {self.number}', if its rows are in the topic, or 'write {self.id} "
            f"{self.number}', if they are not"
        )

    def _shown(self) -> str:
        return f"{'version' if self.app_id else 'micro-batch'} {self.number} of {self.id}"
