"""A trial of a store, for some minutes and with a bounded number of requests, and the report of it.

What a ledger stands on is tried again and again, a round each ROUND_S, at the place of the cluster:

    contest     16 threads create one name at once, and one of them has to win
    look        a name that was read while it was missing is there after its creation, and is not created again
    overwrite   an object is replaced: get, a range and a list show what is there now; and that it is deleted
    lost        a create whose answer is not waited for, and another one of that name: what is there is all of one
                of them, is the one's that was told so, and never changes

It tells besides how long requests took, and how far this machine's clock is ahead of the store's. The objects are
below a folder of their own, which is deleted in the end; no cluster is needed, and none is changed.
"""

from __future__ import annotations

import functools
import platform
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import spark_kbatch
from spark_kbatch.bucket import names
from spark_kbatch.bucket.objects import CreateAnswer, Objects
from spark_kbatch.bucket.probe import CREATORS, contest, look
from spark_kbatch.bucket.urls import checked, impatient, objects_at
from spark_kbatch.clock import monotonic_s, now_ms, sleep_ms
from spark_kbatch.errors import KBatchError, ObjectAccessDeniedError
from spark_kbatch.options.object_store import StoreOptions, store_kind

ROUND_S = 5
PUTS_OF_ROUND = CREATORS + 9  # creates, puts and lists, which stores charge alike
GETS_OF_ROUND = 11
_PUT_DOLLARS, _GET_DOLLARS = 5e-6, 4e-7  # of S3 Standard in us-east-1
_SIZE = 64 << 10
_PATIENCE = 0.5, 4.0  # of the one that does not wait for its answer, beside what a put takes


class Trial(NamedTuple):
    """What came of a trial."""

    rounds: int
    faults: tuple[str, ...]  # sentences
    errors: Mapping[str, int]  # failures of the store, by their kind
    took_s: Mapping[str, Sequence[float]]  # by what was asked
    clock_ahead_ms: tuple[int, int]  # of this machine: the least and the most
    unanswered: int  # creates whose answer was not waited for
    landed: int  # of these
    left: str = ""  # a folder that may not be deleted


def rounds_in(minutes: float) -> int:
    """Return how many rounds a trial of some minutes has."""
    return max(round(minutes * 60 / ROUND_S), 1)


def announcement(rounds: int) -> str:
    """Return what a trial will ask for, as a sentence."""
    puts, gets = rounds * PUTS_OF_ROUND, rounds * GETS_OF_ROUND
    dollars = puts * _PUT_DOLLARS + gets * _GET_DOLLARS
    return (
        f"{rounds:,} rounds in {rounds * ROUND_S / 60:,.1f} minutes: {puts:,} puts, creates and lists, and {gets:,} "
        f"gets, about {dollars:.3f} dollars by the prices of S3; more if the store fails, as requests are repeated"
    )


class _Timed:
    """Objects that note how long each request took."""

    def __init__(self, objects: Objects) -> None:
        self._objects, self.took_s = objects, defaultdict[str, list[float]](list)

    def __getattr__(self, what: str) -> Any:
        return functools.partial(self._ask, what)

    def _ask(self, what: str, *given: Any) -> Any:
        began_s = monotonic_s()
        answer = getattr(self._objects, what)(*given)
        found = iter([*answer]) if what == "list" else answer
        self.took_s[what].append(monotonic_s() - began_s)
        return found


class StoreTrial:
    """A trial at one URL. Not thread-safe."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        """Set up, without a request; raises as `probe.try_store`."""
        self._address, self._options = checked(url), options
        self._objects: Any = _Timed(objects_at(self._address, options, create=True))
        self._rng = random.Random()
        self._folder = f"probe/{names.random_id(self._rng)}/"
        self._rounds = self._unanswered = self._landed = 0
        self._faults, self._errors = dict[str, None](), defaultdict[str, int](int)
        self._ahead_ms = list[int]()
        self._stands: dict[str, bytes | None] = {}  # what is there of those that were lost

    def run(self, rounds: int) -> Trial:
        """Do some rounds, unless it is interrupted, and clean up; return what came of them.

        A failure of the store ends its round, and is counted.

        Raises ObjectStoreError: what was put cannot be deleted, as the store fails.
        """
        left = ""
        try:
            for at in range(rounds):
                next_s = monotonic_s() + ROUND_S
                try:
                    for fault in self._round(f"{self._folder}{at:06d}/"):
                        self._faults[fault.replace(self._folder, "")] = None
                except KBatchError as error:
                    self._errors[type(error).__name__] += 1
                self._rounds += 1
                if at + 1 < rounds:
                    sleep_ms(max(next_s - monotonic_s(), 0) * 1000)
            for name, content in self._stands.items():
                if self._objects.get(name) != content:
                    self._faults["an object has changed after it was created"] = None
        except KeyboardInterrupt:
            pass  # what was found until then is worth a report
        finally:
            try:
                self._objects.delete([one.name for one in self._objects.list(self._folder)])
            except ObjectAccessDeniedError:
                left = self._folder
        ahead_ms = self._ahead_ms or [0]
        return Trial(
            self._rounds,
            tuple(self._faults),
            dict(self._errors),
            self._objects.took_s,
            (min(ahead_ms), max(ahead_ms)),
            self._unanswered,
            self._landed,
            left,
        )

    def _round(self, folder: str) -> Iterator[str]:
        yield from contest(self._objects, [f"{folder}contested"])
        yield from look(self._objects, folder, f"{folder}looked-at")
        yield from self._overwrite(folder, f"{folder}replaced")
        yield from self._lose(f"{folder}lost")

    def _overwrite(self, folder: str, name: str) -> Iterator[str]:
        objects, content = self._objects, b""
        for size in (_SIZE, _SIZE + 1):
            content = self._rng.randbytes(size)
            objects.put(name, content)
            if objects.get(name) != content:
                yield f"{name} was put, and the next read does not show that"
        if objects.get_range(name, 1000, 100) != content[1000:1100]:
            yield f"a range of {name} is not what was put"
        listed = {one.name: one for one in objects.list(folder)}
        if name not in listed or listed[name].size_in_bytes != len(content):
            yield f"a list does not show {name} as it was put"
        else:
            self._ahead_ms.append(now_ms() - listed[name].modified_ms)
        objects.delete([name])
        if objects.get(name) is not None or name in [one.name for one in objects.list(folder)]:
            yield f"{name} was deleted, and is still seen"

    def _lose(self, name: str) -> Iterator[str]:
        put_s = min(self._objects.took_s["put"])
        patience_ms = max(put_s * self._rng.uniform(*_PATIENCE) * 1000, 1)
        first = impatient(self._address, self._options, patience_ms).create(name, b"first")
        second = self._objects.create(name, b"second")
        there = self._stands[name] = self._objects.get(name)
        if first is CreateAnswer.UNKNOWN:
            self._unanswered += 1
            self._landed += there == b"first"
        told = [
            content
            for answer, content in ((first, b"first"), (second, b"second"))
            if answer is CreateAnswer.CREATED
        ]
        if there not in (b"first", b"second") or told not in ([], [there]):
            yield f"{name} was created twice, and what is there is not what was told"


def report_lines(address: str, found: Trial) -> Iterator[str]:
    """Yield a report to copy, which has no name of a bucket in it."""
    kind = store_kind(address) or address.partition(":")[0]
    yield f"store         {kind}"
    yield (
        f"versions      spark_kbatch {spark_kbatch.__version__}, obstore {version('obstore')}, "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )
    yield f"rounds        {found.rounds:,}"
    yield f"faults        {'; '.join(found.faults) or 'none'}"
    yield f"errors        {', '.join(f'{n} {kind}' for kind, n in found.errors.items()) or 'none'}"
    least_ms, most_ms = found.clock_ahead_ms
    yield f"clock         this machine's is {least_ms / 1000:.1f} to {most_ms / 1000:.1f} s ahead"
    if found.left:
        yield f"left          {found.left} stays there, for want of the right to delete"
    yield f"lost answers  {found.unanswered:,}, and {found.landed:,} of these had created the object"
    for what, took_s in sorted(found.took_s.items()):
        ordered = [one * 1000 for one in sorted(took_s)]
        p50, p99 = (ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
        yield (
            f"{what:12}  {len(ordered):,}: median {p50:,.1f} ms, 99 % within {p99:,.1f} ms, slowest "
            f"{ordered[-1]:,.1f} ms"
        )
