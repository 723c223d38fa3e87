"""The ledger of a cluster in a bucket: a dense sequence of entries, which is what has happened.

Whoever creates entry n + 1 has committed; whoever finds it taken reads it, checks again, and tries the next
number. A name in the ledger, once taken, is never free again: an entry is overwritten by its tombstone, and never
deleted.

    follow    read entries until one is not there
    commit    1 follow; let the caller say what is to be written, and check it against the state
              2 create entry n + 1
              3 by the answer:

    created           committed
    exists            look: ours, committed; another's, lost: go on at 1 after a random wait; not there, create
                      the same bytes again
    unknown           create the same bytes again, at the same number: the first may still be on its way
    access denied     the same bytes again, a few times: credentials may be renewed meanwhile

No other number is tried before this one is decided. An entry that exists is looked at even if it was
just created by someone: it may be ours, of a create whose answer was lost.

In the end, if there is no answer within the time: nothing is visible, if each create of ours was answered by a
loss; otherwise the outcome is unknown, and the error names the entry by number and id. An entry keeps its id
whatever number it gets. Nothing is deleted after a failure: what was staged may be referred to by an entry that
is still on its way, and is collected when it cannot be any more.

Where a tombstone is found above one's own state, a newer checkpoint has what it said, and the ledger is opened
again from that. These mean that the ledger is corrupt, and readers and writers stop:

- an entry that is damaged, or whose number is not the one in its name
- an entry whose `before` is not the id of the one below it
- an entry that the fold refuses
- an entry that is missing while a later one is seen, or a checkpoint of it or of a later one
- a tombstone with no checkpoint at or after it

What expires does so by the times of entries, for all. So one writer whose clock is ahead must not
move them for the others: where an entry would be over an hour later than the one before it, and
than what the store's clock said last, the writer asks that clock first, and goes by it if its own
is ahead. The ledger's time is then never more than an hour ahead of the store's. A clock that is
behind changes nothing: no entry is earlier than the one before it.

`hint` says where to look for the newest checkpoint and nothing else: it may be old, wrong or missing.

A new process may begin with what its machine knows: the objects that a state was made of, which never change. So
any of them that follow each other from a checkpoint or the first entry on make a state that was true once, and
what came later is read as always. They are not believed for longer than QUIET_MS unless the store still shows the last of
these entries: the bucket may have been put back to what it was before that. Where the ledger has gone far beyond them,
the newest checkpoint is opened instead.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from spark_kbatch.bucket.checkpoints import (
    CheckpointObjects,
    LedgerCheckpoints,
    LostPartError,
)
from spark_kbatch.bucket.objects import CreateAnswer, Folder, Objects, pause_by_chance, read_twice
from spark_kbatch.bucket.place import ensure_cluster
from spark_kbatch.clock import monotonic_ms, now_ms, sleep_ms
from spark_kbatch.errors import (
    CommitError,
    CorruptLedgerError,
    KBatchError,
    ObjectAccessDeniedError,
    ObjectStoreError,
    OutcomeUnknownError,
    RefusedEntryError,
    UnsupportedLedgerError,
)
from spark_kbatch.ledger import checksummed_json, names
from spark_kbatch.ledger.entries import (
    CLOSED,
    FORMAT,
    NO_ENTRY,
    Content,
    Entry,
    LedgerStart,
    Tombstone,
    decode,
    encode,
)
from spark_kbatch.ledger.extents import Change
from spark_kbatch.ledger.image import TombstoneAheadError
from spark_kbatch.ledger.state import NO_CHECKPOINT, LedgerState
from spark_kbatch.store.commits import NOTHING_VISIBLE, user_name

logger = logging.getLogger(__name__)

OUTCOME_UNKNOWN = "whether the data is committed is unknown"

COMMIT_TIMEOUT_MS = 120_000
# Entries from one checkpoint to the next, which is made by who commits such a number. Each process that opens the
# ledger asks for the entries after the last one, and a job opens it several times.
CHECKPOINT_EVERY = 16
CHECKPOINT_OVERDUE = 24  # made by anyone who commits
HINT_EVERY_MS = 5000
QUIET_MS = 60_000  # after which the cluster's own object is read again
# Of the ledger's time, before the store's clock is asked, which hourly jobs need not do.
CLOCK_AHEAD_MAX_MS = 7_200_000

KNOWN_MAX = CHECKPOINT_OVERDUE  # entries after a checkpoint that a machine keeps

_WINDOW_MAX = 16  # entries asked for at once
# So many entries after the last known one a checkpoint is looked for: four questions.
_FAR = 14
_REST_AFTER = 100  # entries after the checkpoint that the state goes on from
_LOSSES_MAX = 8  # that lengthen the wait after a loss
_DENIED_MAX = 3
_PAUSE_MS, _PAUSE_MAX_MS = 50, 5000


class Timing(NamedTuple):
    """The clocks and the chance that a ledger goes by."""

    now_ms: Callable[[], int]  # since 1970
    monotonic_ms: Callable[[], int]
    sleep_ms: Callable[[float], object]
    rng: random.Random


def real_timing(rng: random.Random | None = None) -> Timing:
    """Return this machine's clocks, with chance of one's own or new."""
    return Timing(now_ms, monotonic_ms, sleep_ms, rng or random.Random())


# What is to be written, given the state; None if nothing is, any more. Called again after each loss.
Propose: TypeAlias = Callable[[LedgerState], Content | None]


class KnownLedger(NamedTuple):
    """The objects that a state is made of, for the next process on this machine."""

    cluster_id: str
    proved_ms: int  # when the store showed one of the entries; since 1970
    followed_ms: int  # when it was last asked for news
    checkpoint: CheckpointObjects | None  # None: all entries are there from the first one on
    entries: tuple[bytes, ...]  # after the checkpoint


class Ledger:
    """The ledger of one cluster, and the state after the last entry that was read. Not thread-safe."""

    def __init__(
        self,
        place: Objects,
        cluster_id: str,
        timing: Timing,
        known: KnownLedger | None = None,
        *,
        checkpoint_every: int = CHECKPOINT_EVERY,
    ) -> None:
        """Open the ledger, and read it up to its end; of a known one, only as far as it is known.

        Args:
            place: the objects under the prefix at which the cluster lies.
            cluster_id: its id.
            timing: clocks and chance.
            known: what this machine knows of it.
            checkpoint_every: how many entries lie between two checkpoints.

        Raises:
            CorruptLedgerError, UnsupportedLedgerError, ObjectStoreError, ObjectAccessDeniedError,
            ClusterReplacedError: it cannot be read.
        """
        self._place, self._cluster_id, self.timing = place, cluster_id, timing
        self.objects: Objects = Folder(place, f"{cluster_id}/")  # of the cluster
        self._checkpoints = LedgerCheckpoints(self.objects, timing.rng)
        self._checkpoint_every = checkpoint_every
        self._newest_checkpoint = NO_CHECKPOINT  # that is known
        self._rested_at = NO_ENTRY  # when a newer checkpoint was last looked for
        self._looked_ms = self._hinted_ms = timing.monotonic_ms()
        self._round_trip_ms = 0
        self._rest_until_ms = 0  # for others, after a commit that had a rival
        # By the store's clock, when it was last asked; how far this machine's was ahead of that.
        self._believed_ms = self._ahead_ms = 0
        self.proved_ms = timing.now_ms()  # when the store was last seen to have this ledger
        self.state = LedgerState()
        self._last_entry = b""
        # After the opened checkpoint; None: too many to be kept.
        self._entries: list[bytes] | None = []
        self._known_number: int | None = None  # while it is not known whether much has come since
        if known is None or not self._restore(known):
            self._open(self._hint())
            self._follow_listed()

    def known(self, followed_ms: int) -> KnownLedger | None:
        """Return what the state is made of; None if that is too much to be kept.

        Args:
            followed_ms: when the store was last asked for news; since 1970.
        """
        if self._entries is None or self.state.number == NO_ENTRY:
            return None
        checkpoint = self._checkpoints.objects
        return KnownLedger(
            self._cluster_id, self.proved_ms, followed_ms, checkpoint, tuple(self._entries)
        )

    def _restore(self, known: KnownLedger) -> bool:
        """Take a known state; return False, without one, if it is damaged, or the store does not show it."""
        try:
            if known.checkpoint is not None:
                self.state = self._checkpoints.restored(known.checkpoint)
            for data in known.entries:
                self.state.follow(decode(data, names.entry_name(self.state.number + 1)))
                self._keep(data)
            if self.state.cluster_id == self._cluster_id and self._is_there(known):
                self._newest_checkpoint = self.state.checkpoint
                self._known_number = self.state.number
                return True
        except (CorruptLedgerError, UnsupportedLedgerError) as error:
            logger.info("what this machine knows of the ledger is not used: %s", error)
        self.state, self._entries = LedgerState(), []
        self._checkpoints.objects = None
        return False

    def _is_there(self, known: KnownLedger) -> bool:
        """Return True if the store shows the last known entry, and no checkpoint after it."""
        now_ms = self.timing.now_ms()
        if 0 <= now_ms - known.proved_ms < QUIET_MS:
            self.proved_ms = known.proved_ms
            return True
        name = names.entry_name(self.state.number)
        entry, hint = self.objects.get_many([name, names.HINT])
        if entry is None or decode(entry, name).entry_id != self.state.entry_id:
            return False
        return self._checkpoint_in(hint) <= self.state.number

    # Reading.

    def follow(self, listed: int = NO_ENTRY) -> LedgerState:
        """Read all entries that there are, and return the state after the last one; raises as `__init__`.

        Args:
            listed: an entry up to which, as a list has told, so many can be asked for at once.
        """
        window = 1
        while True:
            known = listed - self.state.number
            try:
                if not self._read(min(known, _WINDOW_MAX) if known > 0 else window):
                    break
            except TombstoneAheadError:
                number = self.state.number
                self._open(self._newest_checkpoint)
                if self.state.number <= number:
                    raise
            if known <= 0:
                window = min(2 * window, _WINDOW_MAX)
            self._skip_if_far()
        self._rest_on_newer()
        self._ensure_not_replaced()
        return self.state

    def _ensure_not_replaced(self) -> None:
        """Look now and then whether the cluster is still the one at its place; raises ClusterReplacedError.

        News tells nothing: others who have not noticed either may write on to a ledger that was replaced.
        """
        now_ms = self.timing.monotonic_ms()
        if now_ms - self._looked_ms >= QUIET_MS:
            ensure_cluster(self._place, self._cluster_id)
            self._looked_ms = now_ms

    def entries(self, first: int, last: int) -> Iterator[Entry]:
        """Yield entries as they are now, in their order, all of which have to be there.

        Args:
            first, last: their numbers.

        Raises:
            CorruptLedgerError: one is missing or damaged.
        """
        for start in range(first, last + 1, _WINDOW_MAX):
            numbers = range(start, min(start + _WINDOW_MAX, last + 1))
            wanted = [names.entry_name(number) for number in numbers]
            for name, data in zip(wanted, self.objects.get_many(wanted), strict=True):
                if data is None:
                    raise CorruptLedgerError(name, "it is missing")
                yield self._decoded(name, data)[1]

    def _decoded(self, name: str, data: bytes) -> tuple[bytes, Entry]:
        return read_twice(
            data, functools.partial(decode, name=name), lambda: self.objects.get(name)
        )

    def windows(self, last: int, count: int, first: int = 0) -> Iterator[list[Entry]]:
        """Yield the entries from `first` to `last` in lists of `count`, each in their order, the newest list first.

        Raises as `entries`.
        """
        for end in range(last + 1, first, -count):
            yield [*self.entries(max(end - count, first), end - 1)]

    def first_entry(self, last: int) -> int:
        """Return the first of the entries up to `last` that is no tombstone; the one after `last` if all are.

        Tombstones are put from below. Raises as `entries`.
        """
        low, high = 0, last + 1
        while low < high:
            middle = (low + high) // 2
            (entry,) = self.entries(middle, middle)
            if isinstance(entry.content, Tombstone):
                low = middle + 1
            else:
                high = middle
        return low

    def changes(self, topic_id: str) -> dict[int, list[Change]]:
        """Return what is at each offset of a topic, by partition, as of the state; may follow before.

        The topic has to be in the state.

        Raises as `__init__`, and UnknownTopicOrPartitionError if the topic was deleted meanwhile.
        """
        while True:
            self.state.ensure_topic(topic_id)
            try:
                return self._checkpoints.changes(self.state, topic_id)
            except LostPartError as error:
                self._leave_checkpoint(error)

    def unread_parts(self, topic_id: str) -> int:
        """Return how many parts of the state's checkpoint `changes` reads."""
        return self._checkpoints.loaded(self.state, topic_id).count(None)

    def recorded(self, topic_id: str) -> list[Change]:
        """Return all changes of a topic that are in memory, those that were replaced too."""
        parts = [
            *self._checkpoints.loaded(self.state, topic_id),
            self.state.extents[topic_id].changes,
        ]
        return [change for part in parts if part for change in part]

    def before(self, number: int, topic_id: str) -> tuple[LedgerState, dict[int, list[Change]]]:
        """Return the state before an entry, and what was at each offset of a topic then, by partition.

        Raises:
            KBatchError: it cannot be made any more, since too much was collected.
        """
        checkpoints = LedgerCheckpoints(self.objects, self.timing.rng)
        newest = checkpoints.newest_number(last=number - 1)
        root = None if newest == NO_CHECKPOINT else checkpoints.root(newest)
        state = LedgerState() if root is None else checkpoints.opened(root)
        for entry in self.entries(state.number + 1, number - 1):
            state.apply(entry)
        state.ensure_topic(topic_id)
        return state, checkpoints.changes(state, topic_id)

    def _open(self, hinted: int) -> None:
        self._checkpoints.objects = None
        self.state, self._entries = self._checkpoints.newest(hinted) or LedgerState(), []
        self._newest_checkpoint = self.state.checkpoint

    def _skip_if_far(self) -> None:
        """Open a checkpoint if much has come since the state that this machine knew, once."""
        if self._known_number is None or self.state.number - self._known_number < _FAR:
            return
        self._known_number = None
        hinted = self._hint()
        if hinted > self.state.number:
            self._open(hinted)

    def _rest_on_newer(self) -> None:
        """Take a checkpoint that others have made since, so that few changes are kept beside it."""
        if self.state.number - max(self.state.checkpoint, self._rested_at) < _REST_AFTER:
            return
        self._rested_at = self.state.number
        try:
            self._checkpoints.rest(self.state)
        except KBatchError as error:
            logger.info("going on from checkpoint %d: %s", self.state.checkpoint, error)

    def _leave_checkpoint(self, error: LostPartError) -> None:
        """Go on from another checkpoint than the one whose part is lost, as far as the state was.

        Where there is none the part is lost for its topic alone: the state stays, and so do all
        checkpoints.
        """
        checkpoints, checkpoint = self._checkpoints, self.state.checkpoint
        kept = self.state, self._entries, self._newest_checkpoint, checkpoints.objects
        if checkpoint in checkpoints.numbers(checkpoint):
            checkpoints.give_up(checkpoint, error)
        try:
            self._open(NO_CHECKPOINT)
            if self.follow().number >= kept[0].number:
                return
        except CorruptLedgerError as other:
            logger.info("there is no other checkpoint: %s", other)
        self.state, self._entries, self._newest_checkpoint, checkpoints.objects = kept
        checkpoints.worthless.clear()
        raise error

    def _read(self, window: int) -> bool:
        """Read the next entries, and return False if there was an end."""
        first = self.state.number + 1
        wanted = [names.entry_name(number) for number in range(first, first + window)]
        found = self.objects.get_many(wanted)
        for at, (name, data) in enumerate(zip(wanted, found, strict=True)):
            if data is None and any(later is not None for later in found[at:]):
                # It was created before them, but maybe after it was asked for.
                data = self.objects.get(name)
                if data is None:
                    raise CorruptLedgerError(name, "it is missing, and later entries are there")
            if data is None:
                return False
            data, entry = self._decoded(name, data)
            self.state.follow(entry)
            self._keep(data)
            self.proved_ms = self.timing.now_ms()
        return True

    def _keep(self, data: bytes) -> None:
        self._last_entry = data
        if self._entries is not None:
            self._entries.append(data)
            if len(self._entries) > KNOWN_MAX:
                self._entries = None

    def _follow_listed(self) -> None:
        """Read all entries; raise if a list shows entries after one that is missing."""
        while True:
            number = self.state.number
            after = names.entry_name(number) if number > NO_ENTRY else ""
            found = self.objects.list(names.LEDGER, after)
            listed = max((names.number_of(one.name) for one in found), default=NO_ENTRY)
            stopped = self.follow(listed).number
            if stopped >= listed:
                return
            if self.follow().number == stopped:
                raise CorruptLedgerError(
                    names.entry_name(stopped + 1), "it is missing, and a list shows later entries"
                )

    # Hints.

    def _hint(self) -> int:
        """Return the number of a checkpoint to look at first."""
        return self._checkpoint_in(self.objects.get(names.HINT))

    def _checkpoint_in(self, data: bytes | None) -> int:
        if data is None:
            return NO_CHECKPOINT
        try:
            return checksummed_json.decode(data, names.HINT).integer(
                "checkpoint", NO_CHECKPOINT, names.NUMBER_MAX
            )
        except KBatchError as error:
            logger.info("%s", error)
            return NO_CHECKPOINT

    def _maybe_put_hint(self, *, is_due: bool) -> None:
        now_ms = self.timing.monotonic_ms()
        if is_due or now_ms - self._hinted_ms >= HINT_EVERY_MS:
            self._hinted_ms = now_ms
            values = {"checkpoint": self._newest_checkpoint, "entry": self.state.number}
            self.objects.put(names.HINT, checksummed_json.encode(values))

    # Writing.

    def commit(
        self,
        propose: Propose,
        *,
        by: str = "",
        timeout_ms: int = COMMIT_TIMEOUT_MS,
        is_followed: bool = False,
    ) -> Entry | None:
        """Write an entry, and return it; None if `propose` has nothing to write.

        Args:
            propose: returns what is to be written, given the state after which it is to be.
            by: what the writer is and is called, as people are to see it; its user and host come
                after it.
            timeout_ms: how long to try.
            is_followed: whether the state was followed a moment ago, so that to follow it again is not worth
                a request: the entry is only written if the state was the last one, and what the state refuses
                is tried again after the newest.

        Raises:
            CommitError: it was not written within the time.
            OutcomeUnknownError: it may have been written, or may be later.
            Other errors, of `propose`, of `LedgerState.check` and of `follow`: it was not written.
        """
        timing = self.timing
        deadline_ms = timing.monotonic_ms() + timeout_ms
        entry_id, losses = names.random_id(timing.rng), 0
        by = signed(by)
        self._rest()
        while True:
            if not is_followed or self._may_be_ahead():
                self._follow_until(deadline_ms)
            self._ensure_not_replaced()
            try:
                entry = self._proposed(propose, entry_id, by)
            except KBatchError:
                if not is_followed:
                    raise
                is_followed = False  # later entries may be what is missing
                continue
            if entry is None:
                return None
            if self._create(entry, deadline_ms):
                break
            losses, is_followed = losses + 1, False
            self._ensure_in_time(deadline_ms, f"{losses} other entries were first")
            longest_ms = self._round_trip_ms * min(losses, _LOSSES_MAX)
            timing.sleep_ms(timing.rng.random() * longest_ms)
        self.state.apply(entry)
        self._keep(encode(entry))
        # One's own entry proves nothing: it could be created where the cluster was removed.
        self._rest_until_ms = timing.monotonic_ms() + self._round_trip_ms if losses else 0
        self._look_after()
        return entry

    def _proposed(self, propose: Propose, entry_id: str, by: str) -> Entry | None:
        """Return the next entry, which has been checked; None if nothing is to be written."""
        ensure_may_write(self.state)
        content, state = propose(self.state), self.state
        if content is None:
            return None
        time_ms = max(self.timing.now_ms() - self._ahead_ms, state.time_ms)
        entry = Entry(state.number + 1, entry_id, state.entry_id, time_ms, content, by)
        state.check(entry)
        return entry

    def start(self, limits: Mapping[str, int]) -> None:
        """Write the first entry, unless it is there; raises as `commit`.

        Args:
            limits: of the cluster.
        """
        first = LedgerStart(self._cluster_id, limits)
        self.commit(lambda state: first if state.number == NO_ENTRY else None)

    def _rest(self) -> None:
        """Wait for one round trip after a commit that had a rival, which would lose again otherwise."""
        wait_ms = self._rest_until_ms - self.timing.monotonic_ms()
        if wait_ms > 0:
            self.timing.sleep_ms(wait_ms)

    def _follow_until(self, deadline_ms: int) -> None:
        attempts = 0
        while True:
            try:
                self.follow()
                if self._may_be_ahead():
                    self._try_to_ask()
            except ObjectStoreError as error:
                self._ensure_in_time(deadline_ms, str(error))
                attempts += 1
                self._pause(attempts)
            else:
                return

    # Clocks.

    def _may_be_ahead(self) -> bool:
        """Return True if the time is so late that the store's clock is to be asked first."""
        since_ms = self.timing.now_ms() - max(self.state.time_ms, self._believed_ms)
        if since_ms - self._ahead_ms < -CLOCK_AHEAD_MAX_MS:
            self._ahead_ms = 0  # this machine's clock was set right meanwhile
        return since_ms - self._ahead_ms > CLOCK_AHEAD_MAX_MS

    def _try_to_ask(self) -> None:
        try:
            self.store_now_ms()
        except ObjectAccessDeniedError as error:  # which is no reason not to commit
            self._believed_ms = self.timing.now_ms()
            logger.warning("entries go by this machine's clock, not by the store's: %s", error)

    def store_now_ms(self) -> int:
        """Return the time by the store's clock, that of an object that is put for it.

        From now on entries go by it.

        Raises:
            ObjectStoreError: the store fails.
            ObjectAccessDeniedError: the right to put or list is missing.
        """
        folder = f"{names.AGREEMENTS}{self.timing.now_ms() // names.DAY_MS}/"
        name = f"{folder}clock-{names.random_id(random.Random())}"  # the own chance is a schedule's
        self.objects.put(name, b"")
        found = [one for one in self.objects.list(folder, name[:-1]) if one.name == name]
        if not found:
            raise ObjectStoreError("list", folder, f"it does not show {name}, which was just put")
        with contextlib.suppress(ObjectAccessDeniedError):  # of a writer; maintenance does it then
            self.objects.delete([name])
        self._believed_ms = found[0].modified_ms
        ahead_ms = self.timing.now_ms() - self._believed_ms
        self._ahead_ms = max(ahead_ms, 0)
        if abs(ahead_ms) >= 300_000:
            logger.warning(
                "this machine's clock is %d s ahead of the store's: set it right",
                ahead_ms // 1000,
            )
        return self._believed_ms

    def _ensure_in_time(self, deadline_ms: int, why: str) -> None:
        if self.timing.monotonic_ms() >= deadline_ms:
            raise CommitError(NOTHING_VISIBLE, f"it was not done in time: {why}")

    def _create(self, entry: Entry, deadline_ms: int) -> bool:
        """Create an entry, and return True if it is there, False if another one has its number.

        Raises:
            CommitError: the time is over, and it is not there.
            OutcomeUnknownError: the time is over, and it may be there now or later.
            ObjectAccessDeniedError: it may not be created; it is not there.
        """
        name, data = names.entry_name(entry.number), encode(entry)
        is_open, attempts, denied = False, 0, 0  # open: a create may have been done, or will be
        while True:
            try:
                answer = self._ask_to_create(name, data)
                is_open = is_open or answer is CreateAnswer.UNKNOWN
                if answer is CreateAnswer.CREATED:
                    return True
                if answer is CreateAnswer.EXISTS:
                    winner = self._winner(entry, deadline_ms)
                    if winner is not None:
                        return winner == entry.entry_id
                why = f"the last answer was {answer.value!r}"
            except ObjectAccessDeniedError as error:
                denied, why = denied + 1, str(error)
                if not is_open and denied >= _DENIED_MAX:
                    raise
            if self.timing.monotonic_ms() >= deadline_ms:
                if is_open:
                    raise OutcomeUnknownError(OUTCOME_UNKNOWN, why, entry.number, entry.entry_id)
                self._ensure_in_time(deadline_ms, why)
            attempts += 1
            self._pause(attempts)

    def _ask_to_create(self, name: str, data: bytes) -> CreateAnswer:
        began_ms = self.timing.monotonic_ms()
        answer = self.objects.create(name, data)
        if answer is not CreateAnswer.UNKNOWN:
            self._round_trip_ms = self.timing.monotonic_ms() - began_ms
        return answer

    def _winner(self, entry: Entry, deadline_ms: int) -> str | None:
        """Return the id of the entry that is there under an entry's number; None if there is none.

        Raises:
            OutcomeUnknownError: it could not be looked at in time.
        """
        name, attempts = names.entry_name(entry.number), 0
        while True:
            try:
                data = self.objects.get(name)
                return None if data is None else self._decoded(name, data)[1].entry_id
            except (ObjectStoreError, ObjectAccessDeniedError) as error:
                if self.timing.monotonic_ms() >= deadline_ms:
                    raise OutcomeUnknownError(
                        OUTCOME_UNKNOWN, str(error), entry.number, entry.entry_id
                    ) from None
                attempts += 1
                self._pause(attempts)

    def _pause(self, attempts: int) -> None:
        """Wait after a failed request, longer each time."""
        longest_ms = min(_PAUSE_MS << min(attempts, 20), _PAUSE_MAX_MS)
        self.timing.sleep_ms(pause_by_chance(longest_ms, self.timing.rng.random))

    # After a commit, which stands whatever happens here.

    def _look_after(self) -> None:
        try:
            is_built = self._is_checkpoint_due() and self.make_checkpoint()
            self._maybe_put_hint(is_due=is_built)
        except Exception as error:  # noqa: BLE001  such as that of an interpreter which ends
            logger.warning(
                "entry %d is written, but no checkpoint or hint after it: %s",
                self.state.number,
                error,
            )

    def make_checkpoint(self) -> bool:
        """Make a checkpoint of the state, and return True; or False if it is not needed, or cannot be made.

        Raises as `LedgerCheckpoints.build`, and as `follow`.
        """
        try:
            is_built = self._checkpoints.build(self.state, self._last_entry)
        except LostPartError as error:
            self._leave_checkpoint(error)
            return False
        if is_built:
            self._newest_checkpoint, self._entries = self.state.number, []
        return is_built

    def _is_checkpoint_due(self) -> bool:
        number = self.state.number
        if number and number % self._checkpoint_every == 0:
            return True
        overdue = self._checkpoint_every * CHECKPOINT_OVERDUE // CHECKPOINT_EVERY
        if number - self._newest_checkpoint < overdue:
            return False
        # Others may have made some.
        self._newest_checkpoint = max(
            self._checkpoints.numbers(self._newest_checkpoint), default=NO_CHECKPOINT
        )
        return number - self._newest_checkpoint >= overdue


def signed(by: str) -> str:
    """Return who writes an entry: what it is and is called, the process's user, and the machine."""
    return f"{by} {user_name()}@{os.uname().nodename}".lstrip()


def ensure_may_write(state: LedgerState) -> None:
    """Check that this version may write after a state.

    Raises:
        UnsupportedLedgerError: writers need a later one.
        RefusedEntryError: the ledger is closed.
    """
    if state.format == CLOSED:
        raise RefusedEntryError(
            f"cluster {state.cluster_id} is closed: `kbatch recover` puts another one in its place."
            " Open it again once that has ended; if it was stopped, run it again"
        )
    if state.format > FORMAT:
        raise UnsupportedLedgerError(
            names.LEDGER, f"writers need format {state.format}, and this one knows {FORMAT}"
        )
