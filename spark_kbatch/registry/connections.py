"""Connections to a registry whose answers have one time limit, to the last byte; imports urllib3.

A limit of urllib3's is for each read of the socket. Here it is for all that an answer needs.
"""

from __future__ import annotations

import functools
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from spark_kbatch.clock import monotonic_s
from spark_kbatch.wire.answers import BoundedAnswer

ANSWER_MAX = 16 << 20  # bytes; the longest schemas known are a few MiB


class _Bounded(HTTPConnection):
    def getresponse(self) -> urllib3.response.HTTPResponse:  # type: ignore[override]  # as its own
        """Return the answer; `timeout` is what connecting and sending have left of the limit."""
        until_s = monotonic_s() + self.timeout  # type: ignore[operator]
        self.response_class = functools.partial(  # type: ignore[assignment]
            BoundedAnswer, until_s=until_s, size_max=2 * ANSWER_MAX
        )
        return super().getresponse()


class _BoundedTls(_Bounded, HTTPSConnection):
    """The same, with TLS."""


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Bounded


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _BoundedTls


def bounded_pools(**settings: Any) -> urllib3.PoolManager:
    """Return a pool manager of urllib3 with such connections."""
    made = urllib3.PoolManager(**settings)
    made.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
    return made
