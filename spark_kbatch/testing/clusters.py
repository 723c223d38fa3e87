"""The clusters in which a test has its topics, and which of these topics it has touched."""

from __future__ import annotations

from typing import TypeAlias

import pytest

from spark_kbatch import Cluster
from spark_kbatch.errors import ConfigError
from spark_kbatch.testing.servers import KafkaServer

AnyCluster: TypeAlias = Cluster
ServerOrCluster: TypeAlias = KafkaServer | Cluster

_OF_TESTS = ("kbatch_server", "kbatch_noserver", "kbatch_cluster")


class Clusters:
    """The clusters that one test can use, and the topics that it has touched there.

    Attributes:
        touched: the topics that the test has named, with their clusters, in order.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self.touched: dict[tuple[AnyCluster, str], None] = {}

    def cluster(self, on: ServerOrCluster | None, topic: str) -> AnyCluster:
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
