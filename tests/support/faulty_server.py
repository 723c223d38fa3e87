"""A server in a process of its own that refuses, delays or drops the next Produce requests, when told to.

with FaultyServer(path, log, "--advertise", proxy.address) as server:
    server.next_requests(fail="NOT_ENOUGH_REPLICAS", times=2)
    server.next_requests(delay=1.5)
    server.kill()
    server.start()                      # at the same port, with nothing left to do
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import spark_kbatch
from spark_kbatch.server.intercepts import InterceptedRequest
from tests.support.served import Served


class FaultyServer(Served):
    """A `Served` that takes orders."""

    command = (sys.executable, "-m", "tests.support.faulty_server")
    stdin = subprocess.PIPE

    def next_requests(self, **order: Any) -> None:
        """Have the next Produce, or the next `times`, treated so."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()


def _main(path: str, address: str, advertised: str) -> None:
    orders: deque[dict[str, Any]] = deque()

    def intercept(request: InterceptedRequest) -> None:
        try:
            order = orders.popleft()
        except IndexError:
            return
        if "fail" in order:
            request.fail(order["fail"])
        if "delay" in order:
            request.delay(order["delay"])
        if "drop" in order:
            request.drop()

    host, port = address.split(":")
    cluster = spark_kbatch.open(Path(path))
    with cluster, cluster.serve(host=host, port=int(port), advertise=advertised) as server:
        server.intercept("Produce", intercept)
        print(json.dumps({"bootstrap_servers": address}), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            orders.extend([order] * order.pop("times", 1))


if __name__ == "__main__":
    _, _path, _, _address, _, _, _advertised = sys.argv
    _main(_path, _address, _advertised)
