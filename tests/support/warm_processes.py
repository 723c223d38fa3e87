"""Has run, once it is imported, what the processes of histories run: each of them is a copy of the one that imports it.

It writes and reads a cluster in memory, so that compiled code is loaded, and leaves no thread. The library of stores
is imported and not used, as its threads do not go along into a copy.
"""

from __future__ import annotations

import threading

import obstore.store  # noqa: F401  see above

import spark_kbatch
from spark_kbatch.bucket import maintenance, store  # noqa: F401  as above
from spark_kbatch.kernels import jit
from tests.support import history_processes  # noqa: F401  as above
from tests.support.waiting import until


def _warm() -> None:
    jit._Spent.plain_us_max = (
        0  # few of them are so short-lived that they would do without compiled code
    )
    url = "memory+bucket://warm"
    with spark_kbatch.open(url, create=True) as cluster:
        cluster.create_topic("events", 2)
        with cluster.producer(linger_ms=0) as producer:
            producer.send("events", "one", partition=0).result()
            producer.send_arrow("events", {"value": ["two"], "partition": [1]}).result()
        cluster.read("events").read_all()
        maintenance.Maintenance(url).run(run_extents=1)
    until(lambda: threading.active_count() == 1, "no thread is left")


_warm()
