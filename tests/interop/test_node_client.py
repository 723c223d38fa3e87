"""@platformatic/kafka, a client in Node that names topics by their ids, on our server and on a broker."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import REPOSITORY
from tests.support import builders
from tests.support.kafka import MissingToolError
from tests.support.object_servers import FETCHED, fetch_tool
from tests.support.waiting import TIMEOUT_S, until

pytestmark = pytest.mark.interop

PACKAGE = "@platformatic/kafka@1.35.0"
TOPIC = "events"


@pytest.fixture(scope="session")
def node() -> Sequence[str]:
    """The command that runs the client, but for its arguments."""
    folder = FETCHED / "platformatic"
    module = folder / "node_modules/@platformatic/kafka/dist/index.js"
    if not module.exists():
        try:
            fetch_tool(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), PACKAGE])  # fmt: skip
        except MissingToolError as missing:
            pytest.fail(str(missing), pytrace=False)
    return ["node", str(REPOSITORY / "tests/support/node_client.mjs"), module.as_uri()]


@pytest.fixture(params=["server", "broker"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "broker":
        yield request.getfixturevalue("shared_broker").address
        return
    with builders.a_cluster(tmp_path, topics={"other": 1}) as cluster, cluster.serve() as server:
        yield server.bootstrap_servers


class Topics:
    """The topic that the client works on."""

    def __init__(self, address: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": address})

    def create(self) -> None:
        topic = NewTopic(TOPIC, 2, config={"retention.ms": "-1"})
        self._admin.create_topics([topic])[TOPIC].result(TIMEOUT_S)
        until(lambda: len(self._admin.list_topics(TOPIC).topics[TOPIC].partitions) == 2)

    def delete(self) -> None:
        self._admin.delete_topics([TOPIC])[TOPIC].result(TIMEOUT_S)
        until(lambda: TOPIC not in self._admin.list_topics().topics)


@pytest.fixture
def topics(address: str) -> Iterator[Topics]:
    topics = Topics(address)
    topics.create()
    yield topics
    topics.delete()


class Consuming:
    """A process that reads the topic."""

    def __init__(self, command: Sequence[str]) -> None:
        self.records: list[Any] = []
        self.errors: list[str] = []
        self._said: list[str] = []
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line)
            told = json.loads(line) if line.startswith("{") else {"errors": []}
            self.errors += told.get("errors", ())
            self.records += [told] if "offset" in told else []

    def read(self, count: int) -> list[Any]:
        """Return the records, once there are so many."""
        until(lambda: len(self.records) >= count, f"{count} are read")
        return sorted(self.records, key=lambda one: (one["partition"], one["offset"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_S)
        self._thread.join(TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        if error is not None:
            error.add_note(f"it said:\n{''.join(self._said[-40:])}")


def produce(node: Sequence[str], address: str, count: int) -> None:
    done = subprocess.run(
        [*node, "produce", address, TOPIC, str(count)], capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def written(count: int) -> list[Any]:
    """Return what is read after `produce`."""
    return sorted(
        (
            {
                "partition": n % 2, "offset": n // 2, "key": f"k{n}", "value": f"v{n}",
                "headers": {"n": str(n)},
            }
            for n in range(count)
        ),
        key=lambda one: (one["partition"], one["offset"]),
    )  # fmt: skip


def test_it_reads_what_it_writes_also_once_the_topic_is_created_again(
    node: Sequence[str], address: str, topics: Topics
) -> None:
    produce(node, address, 7)
    with Consuming([*node, "consume", address, TOPIC]) as consuming:
        assert consuming.read(7) == written(7)
        topics.delete()
        topics.create()
        until(lambda: "UNKNOWN_TOPIC_ID" in consuming.errors, "its ids are no longer known")
        consuming.records.clear()
        produce(node, address, 5)
        assert consuming.read(5) == written(5)
