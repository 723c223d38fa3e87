"""A Kafka server for tests, or a real broker behind the same interface; a test's clusters."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest

from spark_kbatch import Cluster, InterceptedRequest, Server
from spark_kbatch.errors import ConfigError
from spark_kbatch.server.intercepts import Intercept
from spark_kbatch.testing.tracebacks import ends_at_caller

# How long a real broker may take to answer; a test should not wait for Kafka's 60 s.
API_TIMEOUT_MS = 20_000


class KafkaServer:
    """A Kafka server that an application under test connects to.

    Attributes:
        cluster: its topics, to prepare and to look at: a Cluster, of a real broker too.
        bootstrap_servers: its address, as HOST:PORT.
    """

    def __init__(self, cluster: Cluster, server: Server | None = None) -> None:
        """Take a cluster with the server that serves it, or a real cluster alone."""
        self.cluster = cluster
        if server is not None:
            self.bootstrap_servers = server.bootstrap_servers
        elif cluster.is_remote:
            self.bootstrap_servers = cluster.bootstrap_servers
        else:
            raise TypeError("a Cluster needs the server that serves it: KafkaServer(cluster, cluster.serve())")  # fmt: skip
        self._server = server
        self._intercepted: set[str] = set()
        self._failure: BaseException | None = None  # the first of a function that intercepts

    def __repr__(self) -> str:
        return f"KafkaServer({self.bootstrap_servers!r})"

    @ends_at_caller
    def intercept(self, api: str, function: Intercept | None) -> None:
        """Let a function see each request of one kind before it is answered, until the test ends.

        An exception of the function, such as a failed assertion, fails the test; the request is answered
        all the same. A real broker cannot be made to fail: there the test is skipped.

        Args:
            api: the kind, by Kafka's name, such as "Produce".
            function: takes a `spark_kbatch.InterceptedRequest`, which it may `fail`, `delay` or `drop`;
                otherwise the request is answered as usual. None removes the function of this kind.

        Raises:
            ConfigError: no such kind.
        """
        if self._server is None:
            pytest.skip(
                f"requests to {self.bootstrap_servers}, a real broker, cannot be intercepted"
            )
        self._server.intercept(api, None if function is None else self._watched(function))
        self._intercepted.add(api)

    def ensure_intercepts_passed(self) -> None:
        """Raise the first exception of a function that intercepts requests, if any."""
        __tracebackhide__ = True
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def stop_intercepting(self) -> None:
        """Remove all functions that intercept requests, which are answered as usual again.

        Raises:
            Exception: the first of a function, unless `ensure_intercepts_passed` has raised it.
        """
        __tracebackhide__ = True
        while self._intercepted and self._server is not None:
            self._server.intercept(self._intercepted.pop(), None)
        self.ensure_intercepts_passed()

    def _watched(self, function: Intercept) -> Intercept:
        def call(request: InterceptedRequest) -> Any:
            __tracebackhide__ = True
            try:
                return function(request)
            except BaseException as error:  # those of pytest.fail and pytest.skip are no Exceptions
                if self._failure is None:
                    self._failure = error
                raise

        return call


ServerOrCluster: TypeAlias = KafkaServer | Cluster

_OF_TESTS = ("kbatch_server", "kbatch_noserver", "kbatch_cluster")


class Clusters:
    """The clusters that one test can use, and the topics that it has touched there.

    Attributes:
        touched: the topics that the test has named, with their clusters, in order.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self.touched: dict[tuple[Cluster, str], None] = {}

    def cluster(self, on: ServerOrCluster | None, topic: str) -> Cluster:
        """Return the cluster to use for a topic, and remember that the test has touched the topic.

        Args:
            on: the server or cluster that the test names. By default the server that the test uses,
                or else its own cluster.

        Raises:
            ConfigError: `on` is no server or cluster, or is missing in a test that uses several.
        """
        if on is None:
            on = self._default()
        found = on.cluster if isinstance(on, KafkaServer) else on
        if not isinstance(found, Cluster):
            raise ConfigError(
                f"on is a {type(on).__name__}; accepted: kbatch_cluster, kbatch_server, kbatch_noserver, or a "
                "cluster that spark_kbatch.open or spark_kbatch.connect has returned"
            )
        self.touched[found, topic] = None
        return found

    def _default(self) -> ServerOrCluster:
        used = [name for name in _OF_TESTS if name in self._request.fixturenames]
        if len(used) > 1:
            raise ConfigError(
                f"the test uses {' and '.join(used)}: say which one is meant with on=, such as on={used[0]}"
            )
        found: ServerOrCluster = self._request.getfixturevalue(
            used[0] if used else "kbatch_cluster"
        )
        return found
