"""Which micro-batch is a repetition, and is skipped: one rule for all places.

Spark repeats the last micro-batch if it did not see that it was committed, under the same query
id and number. A checkpoint that was restored, copied or is shared brings other rows under the
same two. So what tells them apart is kept with the last commit of each id, and compared with what
comes; docs/streams.md has the cases, and their test reads them there.

The best evidence is the digest of `offsets/NUMBER` in the checkpoint. Spark writes that file
once, when it plans the micro-batch, with the time in it: the same rows planned again give another
one. Where it cannot be read the digest is unknown, and the sums of the rows decide. What is
unknown is never taken for different: where nothing but the number is known, a commit of the same number
is skipped. After an unclean election of `__transaction_state` the history still has the rows by topic.

A version of a `txnAppId` has no checkpoint, only sums. Such a name belongs to the topic that the
option `topic` names.
"""

from __future__ import annotations

import hashlib
import json
import logging
import operator
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from spark_kbatch.clock import now_ms
from spark_kbatch.errors import CommitError
from spark_kbatch.options.write import Resolution, WriteOptions
from spark_kbatch.store.commits import NOTHING_VISIBLE, Commit
from spark_kbatch.stored_json import StoredObject

logger = logging.getLogger(__name__)

_TOPICS_MAX = 8  # whose sums are kept one by one
_NOT_IN_HISTORY = re.compile(r" with \d+ \+ \d+ bytes| \(\w+\)")  # of sums

# Topic, rows, bytes of their keys, bytes of their values, as they came; a topic may occur again.
RowSums: TypeAlias = Sequence[tuple[str, int, int, int]]
# What a checkpoint says of a micro-batch, both empty if unknown: the SHA-256 of `offsets/NUMBER`, and
# where each source ends, one a line, also empty if that is long.
PlannedOffsets: TypeAlias = tuple[str, str]
UNREAD: PlannedOffsets = "", ""
ReadPlan: TypeAlias = Callable[[str, int], PlannedOffsets]  # of a query's id and a number


class RowsOfTask(NamedTuple):
    """The rows that one task has staged: how many and how large they are, and for whom it did that."""

    application_id: str | None  # of Spark
    query_id: str | None  # of the streaming query, if there is one
    run_id: str | None  # of that query's run
    sums: RowSums = ()


def query_of(staged: Iterable[RowsOfTask], *, even_empty: bool = False) -> str | None:
    """Return the query whose micro-batch these tasks have staged.

    None if they have no rows, or, if `even_empty`, if they know no query either.

    Raises:
        CommitError: the tasks do not know it.
    """
    query_ids = {one.query_id for one in staged if one.sums or (even_empty and one.query_id)}
    if not query_ids:
        return None
    (query_id,) = query_ids
    if query_id is None:
        raise CommitError(
            NOTHING_VISIBLE,
            "the tasks of this micro-batch do not know their query, so a duplicate of it could not be "
            "recognised",
        )
    return query_id


class Evidence(NamedTuple):
    """The facts that are kept of the last commit of an id, as text; empty where unknown."""

    topic: str  # that the option `topic` names; empty if each row names its own
    sums: str  # by topic
    digest: str
    sources: str
    query_id: str
    run_id: str
    time: str
    resolved: str = ""  # "yes" if a user let it take the place of one that it is no repetition of

    @classmethod
    def of_tasks(
        cls, staged: Sequence[RowsOfTask], topic: str | None, plan: PlannedOffsets = UNREAD
    ) -> Evidence:
        """Return what tells apart what some tasks staged."""
        ids = max(((one.query_id or "", one.run_id or "") for one in staged), default=("", ""))
        return cls._of(
            topic or "", (row for one in staged for row in one.sums), plan, ids, now_ms()
        )

    @classmethod
    def of_commit(cls, commit: Commit) -> Evidence:
        """Return what a history has, where all else is lost: rows by topic, without their bytes."""
        rows = ((tp.topic, end - first) for tp, (first, end) in commit.offsets.items())
        return cls._of("", rows, UNREAD, (commit.author.query_id, ""), commit.time_ms)

    @classmethod
    def _of(
        cls,
        topic: str,
        rows: Iterable[tuple[Any, ...]],
        plan: PlannedOffsets,
        ids: tuple[str, str],
        time_ms: int,
    ) -> Evidence:
        sums: dict[str, tuple[int, ...]] = {}
        for name, *more in rows:
            sums[name] = tuple(map(operator.add, sums.get(name, (0, 0, 0)), more))
        text = " and ".join(
            f"{count} rows to {name}" + (" with {} + {} bytes".format(*sizes) if sizes else "")
            for name, (count, *sizes) in sorted(sums.items())
        )
        if len(sums) > _TOPICS_MAX:
            text = f"{sum(one[0] for one in sums.values())} rows to {len(sums)} topics" + (
                f" ({hashlib.sha256(text.encode()).hexdigest()})" if " bytes" in text else ""
            )
        return cls(
            topic,
            text,
            *plan,
            *ids,
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ms // 1000)),
        )

    @classmethod
    def of(cls, found: StoredObject) -> Evidence:
        """Return what is read."""
        return cls(*map(found.text, cls._fields))

    def packed(self) -> bytes:
        """Return it as JSON, which `of` reads."""
        return json.dumps(self._asdict()).encode()

    def shown(self) -> str:
        """Return it for people."""
        return f"{self.sums or 'no rows'}, {self.time}, by run {self.run_id or 'unknown'}"


# The number of the last commit of an id, below 0 if there is none, and what was kept of that; None
# if nothing was.
LastKept: TypeAlias = tuple[int, Evidence | None]


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
        staged: Sequence[RowsOfTask],
        number: int,
        options: WriteOptions,
        read_plan: ReadPlan | None,
        *,
        even_empty: bool = False,
    ) -> Attempt | None:
        """Return a micro-batch of tasks; None as of `query_of`, which says what is raised."""
        query_id = query_of(staged, even_empty=even_empty)
        if query_id is None:
            return None
        plan = UNREAD if read_plan is None else read_plan(query_id, number)
        return cls(
            query_id,
            number,
            Evidence.of_tasks(staged, options.topic, plan),
            options.resolve_micro_batch,
        )

    @classmethod
    def of_batch(cls, staged: Sequence[RowsOfTask], options: WriteOptions) -> Attempt | None:
        """Return a batch job's version of the name in its options; None if they have none."""
        name, number, topic = options.txn_app_id, options.txn_version, options.topic
        if name is None or number is None:
            return None
        return cls(
            f"{name}@{topic or ''}",  # no topic's name has an @, so that no two pairs are alike
            number,
            Evidence.of_tasks(staged, topic),
            options.resolve_micro_batch,
            name,
        )

    def is_repetition(self, kept: LastKept) -> bool:
        """Return True if it is skipped, False if it is written; logs what is not as usual.

        Args:
            kept: of the last commit of its id.

        Raises:
            CommitError: it is no repetition, and may not follow either.
        """
        number, last = kept
        wanted, is_above = self.resolution, self.number > number
        why = "" if is_above else self._why_other(number, last)
        if why and (wanted is None or wanted[1:] != (self.id, self.number)):
            raise CommitError(NOTHING_VISIBLE, self._refusal(number, last, why))
        if not why and wanted is not None and wanted[1] == self.id and wanted[2] <= self.number:
            logger.warning("option 'resolve.micro.batch' is not needed any more: leave it out")
        if is_above:
            return False
        is_skipped = not (why and wanted is not None and wanted[0] == "write")
        logger.warning(
            "%s transaction %d of %s: %d is already committed%s",
            "skipping duplicate" if is_skipped else "writing", self.number, self.id, number,
            f"; resolve.micro.batch says so, although {why}" if why else self._note(last),
        )  # fmt: skip
        return is_skipped

    def _why_other(self, number: int, last: Evidence | None) -> str:
        # Empty for a repetition.
        mine = self.evidence
        if self.number < number:
            is_streams = not self.app_id or (last and mine.query_id and last.query_id)
            return "a query repeats its last micro-batch alone" if is_streams else ""
        if last is None:
            return ""
        is_same = last.sums in (mine.sums, _NOT_IN_HISTORY.sub("", mine.sums))
        if self.app_id:
            is_others = mine.query_id != last.query_id and mine.query_id and last.query_id
            return "its rows or its query differ" if is_others or not is_same else ""
        is_known = mine.digest and last.digest
        if is_known and mine.digest != last.digest:
            return f"Spark has planned it again, as offsets/{number} in its checkpoint shows"
        if is_same or (is_known and mine.topic == last.topic):
            return ""
        return (
            "it goes to another topic"
            if is_known
            else "its topic or its rows differ, and its checkpoint could not be compared"
        )

    def _note(self, last: Evidence | None) -> str:
        if self.app_id:
            return ""
        if last is None or not (last.digest and self.evidence.digest):
            return (
                "; its checkpoint could not be compared, only its "
                f"{'number' if last is None else 'rows'}"
            )
        return (
            ""
            if last.sums == self.evidence.sums
            else "; its rows differ, so its query is not deterministic: the first ones count"
        )

    def _refusal(self, number: int, last: Evidence | None, why: str) -> str:
        return (
            f"{'version' if self.app_id else 'micro-batch'} {self.number} of {self.id} is no "
            f"repetition: {why}. Committed is {number}{'' if last is None else f': {last.shown()}'}; "
            f"this has {self.evidence.shown()}. {self._advice(number, last)}. See docs/streams.md. "
            f"For this one alone, option resolve.micro.batch may say 'skip {self.id} {self.number}', "
            f"if its rows are in the topic, or 'write {self.id} {self.number}', if they are not"
        )

    def _advice(self, number: int, last: Evidence | None) -> str:
        cause = "This is a restored, copied or shared checkpoint, or a new one under an old name: "
        if self.app_id:
            return (
                f"{cause}if these rows are to be written, they need a new txnAppId"
                if self.evidence.query_id
                else "A version is written once, and what is committed stays. If this is another try "
                "of the same job, let it skip; if these rows are to be written besides, give a "
                "higher txnVersion"
            )
        # The last micro-batch tells where its own topic ends. Another topic may lack rows from
        # before that, and what it lacks is not kept.
        if last is not None and last.sources and last.topic == self.evidence.topic:
            return (
                f"{cause}with a new checkpoint it goes on without loss and without doubling from "
                f"where {number} ended: {last.sources}"
            )
        return (
            f"{cause}with a new checkpoint it goes on from where the last micro-batch ended that it "
            f"wrote to {self.evidence.topic or 'these topics'}, which is not known here; the page "
            "says how to find that"
        )
