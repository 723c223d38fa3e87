"""Moments for kills beside a cluster in a bucket: at a request, which a proxy holds meanwhile, or at a time."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from tests.support.store_proxy import Held, StoreProxy

_LATE_S_MAX = 4
_LOOK_S = 0.002

REQUESTS = {  # method, what the path has, and how many of them a commit has about
    "put data": ("PUT", "/data/", 2),
    "create entry": ("PUT", "/ledger/", 1),
    "look for an entry": ("GET", "/ledger/", 3),
    "put a checkpoint": ("PUT", "/(parts|checkpoints)/", 0.2),
}


class StoreMoment:
    """A moment at a request or a time.

    A request is held before it is done, or when it is done and nobody has been told. It goes on a while after the
    kill, and so may be done beside the next driver.
    """

    def __init__(
        self, rng: random.Random, proxy: StoreProxy, *, commits: int, request: str = ""
    ) -> None:
        """Draw a moment within about this many commits, or seconds.

        Args:
            rng: to draw with.
            proxy: before the store.
            commits: within which the moment is.
            request: at which it is, of REQUESTS, once that is done; "" for any of them, or none.
        """
        self._proxy, self._held = proxy, None
        self._timer: threading.Timer | None = None
        kind = request or rng.choice([*REQUESTS, "at a time"])
        self._late_s = rng.choice((0.0, rng.uniform(0, _LATE_S_MAX)))
        if kind == "at a time":
            self._delay_s = rng.uniform(0, commits)
            self._shown = f"after {self._delay_s:.3f} s"
            return
        method, path, each = REQUESTS[kind]
        number = rng.randint(1, max(1, round(commits * each)))
        is_done = rng.random() < 0.5 or bool(request)
        self._held = proxy.held = Held(method, path, number, is_done=is_done)
        self._shown = f"{'after' if is_done else 'before'} {kind!r} number {number}"

    def __str__(self) -> str:
        return self._shown

    def wait(self, over: Callable[[], bool]) -> bool:
        """Wait for the moment; return False if the work is over before it."""
        began = time.monotonic()
        while not (self._held.reached.is_set() if self._held else time.monotonic() - began >= self._delay_s):  # fmt: skip
            if over():
                return False
            time.sleep(_LOOK_S)
        return not over()

    def end(self) -> None:
        """Let the request go on, now or later."""
        if self._held is None:
            return
        self._proxy.held = None
        if self._late_s:
            self._timer = threading.Timer(self._late_s, self._held.let_go)
            self._timer.start()
        else:
            self._held.let_go()
