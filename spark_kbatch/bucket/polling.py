"""How often a stream asks the store for news.

Spark asks its source for the latest offset all the time while there is nothing to read, a hundred times a second at
worst. A request for each of these would cost more than the data. So what was asked lately is answered from memory:

    there was news      the store is asked again with the next few questions
    there was none      `poll.ms` later; after a while without news, up to ten times as long
"""

from __future__ import annotations

from collections.abc import Callable

from spark_kbatch.bucket.store import BucketStore

_EAGER = 3  # questions after news for which the store is asked at once: a micro-batch has two
_IDLE_SHARE = 10  # waits last that part of the time without news
_LONGEST = 10  # times `poll.ms`


class StreamPoll:
    """The source of a stream's planner, which asks for it with each question. Not thread-safe."""

    def __init__(self, store: BucketStore, poll_ms: int, monotonic_ms: Callable[[], int]) -> None:
        """Begin with the store as it is.

        Args:
            store: the cluster.
            poll_ms: how long not to ask after there was no news.
            monotonic_ms: the clock.
        """
        self._store, self._followed = store, store.followed()
        self._poll_ms, self._monotonic_ms = poll_ms, monotonic_ms
        self._number: int | None = None  # of the last entry
        self._asked_ms = self._news_ms = monotonic_ms()
        self._eager = _EAGER

    def source(self) -> BucketStore:
        """Return the cluster as it is, or was lately, as of one moment."""
        now_ms = self._monotonic_ms()
        if self._eager > 0 or now_ms - self._asked_ms >= self._wait_ms(now_ms):
            number = self._store.follow()
            self._eager, self._asked_ms = self._eager - 1, now_ms
            if number != self._number:
                self._number, self._news_ms, self._eager = number, now_ms, _EAGER
        return self._followed

    def _wait_ms(self, now_ms: int) -> int:
        idle_ms = now_ms - self._news_ms
        return min(max(idle_ms // _IDLE_SHARE, self._poll_ms), _LONGEST * self._poll_ms)
