"""Every kind of request has its bounds in SECURITY.md, and the worst of its kind holds them.

The server is a process of its own, so that only its memory counts. Times are generous: what they must not be
is a multiple of what a request names.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from spark_kbatch.server.intercepts import api_key_of
from spark_kbatch.wire.framing import SIZE
from spark_kbatch.wire.protocol import ApiKey, HeartbeatRequest, MetadataRequest
from tests.conftest import REPOSITORY
from tests.support import builders
from tests.support.garbage import garbage_of
from tests.support.raw_clients import RawClient, fetch, produce
from tests.support.served import Served
from tests.support.worst_requests import CASES, NOWHERE, worst

MiB = 1 << 20
MOST = 60_000  # of the 65,536 that are accepted
MANY = 3_000
THERE = 500  # partitions of a topic that exists
RSS_MAX = 512 * MiB
ANSWER_MAX = 32 * MiB
OTHERS_WAIT_S = 5.0
ANSWERED_WITHIN_S = 30.0
_TIMES = 5


def rows() -> dict[ApiKey, list[str]]:
    """Return the cells of the table in SECURITY.md, by api key."""
    text = (REPOSITORY / "SECURITY.md").read_text()
    table = text.split("<!-- request bounds -->")[1].split("<!-- end of request bounds -->")[0]
    found: dict[ApiKey, list[str]] = {}
    for line in table.strip().splitlines()[2:]:
        names, *cells = (one.strip() for one in line.strip("|").split("|"))
        for name in re.findall(r"\w+", names):
            assert api_key_of(name) not in found, f"{name} has two rows"
            found[ApiKey(api_key_of(name))] = cells
    return found


ROWS = rows()


def test_every_kind_of_request_has_a_row_and_a_worst_case(tmp_path: Path) -> None:
    with builders.a_cluster(tmp_path) as cluster, cluster.serve() as server:
        offered = {*server._dispatch.supported()}

    assert ROWS.keys() == offered
    assert {api_key for api_key, _ in CASES} == offered
    assert all(cells and all(cells) for cells in ROWS.values())


class _Server(NamedTuple):
    host: str
    port: int
    process: psutil.Process


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Server]:
    tmp_path = tmp_path_factory.mktemp("bounds")
    with builders.a_cluster(tmp_path, topics={"events": 1, "many": THERE}) as cluster:
        path = cluster.path
    with Served(path, tmp_path / "log") as served:
        host, port = served.address.rsplit(":", 1)
        found = _Server(host, int(port), psutil.Process(served.pid))
        others_ask(found)  # loads what is loaded at first use
        yield found


OTHERS: Mapping[ApiKey, tuple[int, Any]] = {
    ApiKey.PRODUCE: (9, produce(builders.batch(n=1))),
    ApiKey.FETCH: (12, fetch(0)),
    ApiKey.METADATA: (
        9,
        MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="events")]),
    ),
    ApiKey.HEARTBEAT: (4, HeartbeatRequest(group_id="g", generation_id=1, member_id="m")),
}


def others_ask(server: Any) -> float:
    """Send a request of each usual kind; return the longest that one took."""
    longest_s = 0.0
    with RawClient(server, timeout_s=60) as client:
        for key, (version, body) in OTHERS.items():
            began_s = time.monotonic()
            client.ask(key, version, body)
            longest_s = max(longest_s, time.monotonic() - began_s)
    return longest_s


@pytest.mark.parametrize(
    ("topic", "named"),
    [
        pytest.param(NOWHERE, MANY, id="many that do not exist"),
        pytest.param("many", THERE, id="many that exist"),
        pytest.param(NOWHERE, MOST, id="as many as are accepted", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].name}-{case[1]}")
def test_the_worst_request_of_a_kind_holds_its_bounds(
    server: _Server, case: tuple[ApiKey, int], topic: str, named: int
) -> None:
    data = worst(*case, named, topic)
    sizes: list[int] = []

    def ask() -> None:
        with RawClient(server, timeout_s=60) as client:  # type: ignore[arg-type]
            client.send(data)
            (size,) = SIZE.unpack(client.read(SIZE.size))
            sizes.append(size)
            client.read(size)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    waited_s, rss = 0.0, 0
    while any(thread.is_alive() for thread in threads):
        waited_s = max(waited_s, others_ask(server))
        rss = max(rss, server.process.memory_info().rss)
        time.sleep(0.02)

    assert time.monotonic() - began_s < ANSWERED_WITHIN_S
    assert len(sizes) == len(threads)
    assert max(sizes) < ANSWER_MAX
    assert waited_s < OTHERS_WAIT_S
    assert rss < RSS_MAX


@pytest.mark.parametrize("topic", [NOWHERE, "events"])
def test_what_a_request_took_is_free_once_it_is_answered(tmp_path: Path, topic: str) -> None:
    """The garbage collector runs the less often the more there is in memory."""
    left: dict[str, int] = {}
    with (
        builders.a_cluster(tmp_path, topics={"events": 30}) as cluster,
        cluster.serve() as server,
    ):
        for case in CASES:
            data = worst(*case, 30, topic)

            def ask(data: bytes = data) -> None:
                with RawClient(server) as client:
                    client.send(data)
                    (size,) = SIZE.unpack(client.read(SIZE.size))
                    client.read(size)

            ask()
            ask()  # what is made at first use is made

            def ask_often(ask: Callable[[], None] = ask) -> None:
                for _ in range(_TIMES):
                    ask()
                time.sleep(0.02)  # a thread still has the last answer in its hands

            found = garbage_of(ask_often, times=1)
            if found >= _TIMES:
                left[case[0].name] = found

    assert not left
