"""Connections to a registry on which an answer has one time limit, from the connection to its last byte; imports urllib3.

A limit of urllib3's is for each read of the socket. Here it is for all reads of an answer, of whatever part.
"""

from __future__ import annotations

import functools
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from spark_kbatch.clock import monotonic_s
from spark_kbatch.wire.answers import BoundedAnswer

ANSWER_MAX = 16 << 20  # bytes; the longest schemas known are a few MiB
_BESIDE_MAX = 8 << 20  # bytes of headers, and of lengths of chunks


class _Bounded(HTTPConnection):
    def getresponse(self) -> urllib3.response.HTTPResponse:
        """Return the answer; `timeout` is what connecting and sending have left of the request's time."""
        assert isinstance(self.timeout, float)
        self.response_class = functools.partial(  # type: ignore[assignment]
            BoundedAnswer, until_s=monotonic_s() + self.timeout, size_max=ANSWER_MAX + _BESIDE_MAX
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
