"""A trial of a store for some minutes, with a bounded number of requests; its report.

What a ledger stands on is tried again and again, a round each ROUND_S, at the place of the cluster:

    contest     16 threads create one name at once, and one of them has to win
    look        a name that was read while it was missing is there after its creation, and is not
                created again
    overwrite   an object is replaced: get, a range and a list show what is there now; and that it
                is deleted
    lost        a create whose answer is not waited for, and another one of that name: what is there
                is all of one of them, is the one's that was told so, and never changes

It tells besides how long requests took, and how far this machine's clock is ahead of the store's.
The objects are below a folder of their own, which is deleted in the end; no cluster is needed, and
none is changed.
"""

from __future__ import annotations

import contextlib
import functools
import platform
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from spark_kbatch.bucket.objects import CreateAnswer, Objects
from spark_kbatch.bucket.probe import CREATORS, contest, look
from spark_kbatch.bucket.urls import checked, impatient, objects_at
from spark_kbatch.clock import monotonic_s, now_ms, sleep_ms
from spark_kbatch.errors import KBatchError, ObjectAccessDeniedError
from spark_kbatch.ledger import names
from spark_kbatch.options.object_store import StoreOptions, store_kind

ROUND_S = 5
PUTS_OF_ROUND = CREATORS + 9  # creates, puts and lists, which stores charge alike
GETS_OF_ROUND = 11
_PUT_DOLLARS, _GET_DOLLARS = 5e-6, 4e-7  # of S3 Standard in us-east-1
_SIZE = 64 << 10
_PATIENCE = 0.5, 4.0  # of the one that does not wait for its answer, beside what a put takes


def announcement(rounds: int) -> str:
    """Return what a trial will ask for, as a sentence."""
    puts, gets = rounds * PUTS_OF_ROUND, rounds * GETS_OF_ROUND
    dollars = puts * _PUT_DOLLARS + gets * _GET_DOLLARS
    return (
        f"{rounds:,} rounds in {rounds * ROUND_S / 60:,.1f} minutes: {puts:,} puts, creates and "
        f"lists, and {gets:,} gets, about {dollars:.3f} dollars by the prices of S3; more if the "
        "store fails, as requests are repeated"
    )


class _Timed:
    """Objects that note how long each request took."""

    def __init__(self, objects: Objects) -> None:
        self._objects, self.took_ms = objects, defaultdict[str, list[float]](list)

    def __getattr__(self, what: str) -> Any:
        return functools.partial(self._ask, what)

    def _ask(self, what: str, *given: Any) -> Any:
        began_s, answer = monotonic_s(), getattr(self._objects, what)(*given)
        found = iter([*answer]) if what == "list" else answer
        self.took_ms[what].append((monotonic_s() - began_s) * 1000)
        return found


class StoreTrial:
    """A trial at one URL, and what came of it. Not thread-safe."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        """Set up, without a request; raises as `probe.try_store`."""
        self._address, self._options, self._rng = checked(url), options, random.Random()
        self._objects: Any = _Timed(objects_at(self._address, options, create=True))
        self._folder = f"probe/{names.random_id(self._rng)}/"
        self.rounds = 0
        self.unanswered = self.landed = 0  # of creates that were not waited for
        self.faults, self.errors = dict[str, None](), Counter[str]()  # sentences; failures by kind
        self.ahead_ms = list[int]()  # this machine's clock
        self.left = ""  # a folder that may not be deleted
        self._stands: dict[str, bytes | None] = {}  # what is there of those that were lost

    def run(self, rounds: int) -> None:
        """Do some rounds, unless it is interrupted, and clean up. A failure ends its round.

        Raises ObjectStoreError: what was put cannot be deleted, as the store fails.
        """
        try:
            # What an interrupted trial has found is worth a report.
            with contextlib.suppress(KeyboardInterrupt):
                self._try(rounds)
        finally:
            try:
                self._objects.delete([one.name for one in self._objects.list(self._folder)])
            except ObjectAccessDeniedError:
                self.left = self._folder

    def _try(self, rounds: int) -> None:
        for at in range(rounds):
            next_s, folder = monotonic_s() + ROUND_S, f"{self._folder}{at:06d}/"
            try:
                found = [
                    *contest(self._objects, [f"{folder}contested"]),
                    *look(self._objects, folder, f"{folder}looked-at"),
                    *self._overwrite(folder, f"{folder}replaced"),
                    *self._lose(f"{folder}lost"),
                ]
                self.faults |= dict.fromkeys(one.replace(self._folder, "") for one in found)
            except KBatchError as error:
                self.errors[type(error).__name__] += 1
            self.rounds += 1
            if self.rounds < rounds:
                sleep_ms(max(next_s - monotonic_s(), 0) * 1000)
        if any(self._objects.get(name) != content for name, content in self._stands.items()):
            self.faults["an object has changed after it was created"] = None

    def _overwrite(self, folder: str, name: str) -> list[str]:
        objects, content, is_read = self._objects, b"", True
        for size in (_SIZE, _SIZE + 1):
            content = self._rng.randbytes(size)
            objects.put(name, content)
            is_read &= objects.get(name) == content
        is_range_read = objects.get_range(name, 1000, 100) == content[1000:1100]
        listed = [one for one in objects.list(folder) if one.name == name]
        self.ahead_ms += [now_ms() - one.modified_ms for one in listed]
        objects.delete([name])
        is_gone = objects.get(name) is None and name not in [
            one.name for one in objects.list(folder)
        ]
        checks = {
            f"{name} was put, and the next read does not show that": is_read,
            f"a range of {name} is not what was put": is_range_read,
            f"a list does not show {name} as it was put": [one.size_in_bytes for one in listed]
            == [len(content)],
            f"{name} was deleted, and is still seen": is_gone,
        }
        return [fault for fault, is_right in checks.items() if not is_right]

    def _lose(self, name: str) -> list[str]:
        patience_ms = max(min(self._objects.took_ms["put"]) * self._rng.uniform(*_PATIENCE), 1)
        first = impatient(self._address, self._options, patience_ms).create(name, b"first")
        second = self._objects.create(name, b"second")
        there = self._stands[name] = self._objects.get(name)
        self.unanswered += first is CreateAnswer.UNKNOWN
        self.landed += first is CreateAnswer.UNKNOWN and there == b"first"
        told = {b"first": first, b"second": second}
        winners = [one for one, answer in told.items() if answer is CreateAnswer.CREATED]
        is_wrong = there not in told or winners not in ([], [there])
        return [f"{name} was created twice, and what is there is not what was told"] * is_wrong

    def report_lines(self, own_version: str) -> Iterator[str]:
        """Return a report to copy, line by line, which has no name of a bucket in it."""
        ahead_s = sorted(ms / 1000 for ms in self.ahead_ms) or [0]
        shown = {
            "store": store_kind(self._address) or self._address.partition(":")[0],
            "versions": f"spark_kbatch {own_version}, obstore {version('obstore')}, Python "
            f"{platform.python_version()}, {platform.system()} {platform.machine()}",
            "rounds": f"{self.rounds:,}",
            "faults": "; ".join(self.faults) or "none",
            "errors": ", ".join(f"{n} {kind}" for kind, n in self.errors.items()) or "none",
            "clock": f"this machine's is {ahead_s[0]:.1f} to {ahead_s[-1]:.1f} s ahead",
            "lost answers": f"{self.unanswered:,}, and {self.landed:,} of these had created the "
            "object",
            "left": f"{self.left} stays there, for want of the right to delete"
            if self.left
            else "nothing",
        }
        for what, took_ms in sorted(self._objects.took_ms.items()):
            ordered = sorted(took_ms)
            shown[what] = (
                f"{len(ordered):,}: median {ordered[len(ordered) // 2]:,.1f} ms, 99 % within "
                f"{ordered[int(len(ordered) * 0.99)]:,.1f} ms, slowest {ordered[-1]:,.1f} ms"
            )
        return (f"{name:12}  {text}" for name, text in shown.items())
