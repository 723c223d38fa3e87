"""The pytest plugin of spark_kbatch: tests of Kafka applications, with a folder or a server in place of a broker.

    kbatch_path       the folder of the test's own cluster, as text
    kbatch_cluster    the cluster in it
    kbatch_topic      creates topics with names of their own, and fills them
    kbatch_records    waits for records, and returns them as dicts
    kbatch_registry   the folder of the test's own schema registry, as text
    kbatch_server     a Kafka server for the session
    kbatch_noserver   the same for a real broker, named by --kbatch-bootstrap-servers

pytest imports this module in every run, also of those who test something else. So it imports nothing of the
package but in fixtures, and in hooks after a fixture was used. What the fixtures do is in
`spark_kbatch/testing/`, how to use them in docs/testing.md.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from spark_kbatch import Cluster
    from spark_kbatch.testing import KafkaServer, Records, Topics
    from spark_kbatch.testing.servers import Clusters


class _Option(NamedTuple):
    """A setting of all tests: `--kbatch-NAME` on the command line, or `kbatch_NAME` in the ini file."""

    name: str
    kind: str  # as of `addini`
    default: Any
    metavar: str
    help: str

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return f"--kbatch-{self.name}"

    @property
    def ini_name(self) -> str:
        """Its name in the ini file."""
        return f"kbatch_{self.name.replace('-', '_')}"


_BOOTSTRAP_SERVERS = _Option(
    "bootstrap-servers", "string", "", "HOST:PORT", "Address of the real brokers that kbatch_noserver is to use."
)  # fmt: skip
_PARTITIONS = _Option(
    "partitions", "int", 1, "N", "Partitions of a topic that kbatch_topic creates, or a client of kbatch_server."
)  # fmt: skip
_TIMEOUT = _Option(
    "timeout", "float", 10.0, "SECONDS", "How long kbatch_records waits for its records."
)
_REPORT_ROWS = _Option(
    "report-rows", "int", 5, "N", "Records of each topic that the report of a failed test shows; 0 for none."
)  # fmt: skip
_REGISTRY = _Option(
    "registry", "string", "", "FOLDER", "Folder of schemas, relative to the root of the tests, of which kbatch_registry is a copy."
)  # fmt: skip
OPTIONS = (_BOOTSTRAP_SERVERS, _PARTITIONS, _TIMEOUT, _REPORT_ROWS, _REGISTRY)
_TYPES = {"string": str, "int": int, "float": float}

_SPARK_FIXTURES = ("spark", "spark_session")
_CLUSTER = pytest.StashKey["Cluster"]()  # of a test
_USABLE_CLUSTERS = pytest.StashKey["Clusters"]()  # of a test
_SERVER = pytest.StashKey["KafkaServer"]()  # of the session, while it runs
_COMPILED_S = pytest.StashKey[float]()  # of the session
_SPARK = pytest.StashKey[object]()  # the session that knows the format


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options."""
    group = parser.getgroup("kbatch", "tests of Kafka applications (spark_kbatch)")
    for option in OPTIONS:
        help_text = f"{option.help} Default: {option.default or 'none'}."
        group.addoption(
            option.flag,
            type=_TYPES[option.kind],
            metavar=option.metavar,
            help=help_text,
        )
        # Older releases of pytest know only text.
        kind: Any = option.kind if pytest.version_tuple >= (8, 4) else "string"
        parser.addini(option.ini_name, help_text, type=kind, default=option.default)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse options that are not of their type; have Spark's workers run this Python.

    Otherwise they run the first `python3` on PATH, which is another one where the virtual
    environment is not active. Source: Spark, python/pyspark/core/context.py, `pythonExec`.
    """
    for option in OPTIONS:
        _value(config, option)
    if not os.environ.get("PYSPARK_PYTHON"):
        patch = pytest.MonkeyPatch()
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        config.add_cleanup(patch.undo)


def _value(config: pytest.Config, option: _Option) -> Any:
    """Return an option from the command line, or else from the ini file.

    Raises:
        pytest.UsageError: it is not of its type.
    """
    given = config.getoption(option.flag)
    try:
        return _TYPES[option.kind](config.getini(option.ini_name) if given is None else given)
    except (TypeError, ValueError, pytest.UsageError) as error:
        raise pytest.UsageError(
            f"{option.ini_name} in the ini file is no number: {error}"
        ) from None


# Fixtures.


@pytest.fixture(scope="session")
def _kbatch_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Say that kernels are compiled, if a test has so much to do that they are."""
    from spark_kbatch.testing.compiling import announced

    config = request.config
    with announced(lambda line: _say(config, line)) as seconds:
        yield
        if seconds():
            config.stash[_COMPILED_S] = seconds()


def _say(config: pytest.Config, line: str) -> None:
    """Print a line on the terminal now; in a worker of pytest-xdist, which has none, do nothing."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    if reporter is None:
        return
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        reporter.ensure_newline()
        reporter.write_line(line)


@pytest.fixture
def _kbatch_session(request: pytest.FixtureRequest, _kbatch_kernels: None) -> None:
    """Register `format("kbatch")` with the user's own Spark session, if the test has one."""
    if "freezegun" in sys.modules:
        from spark_kbatch.testing.frozen import import_what_keeps_times

        import_what_keeps_times()
    for name in _SPARK_FIXTURES:
        if name in request.fixturenames:
            from spark_kbatch.testing.sessions import register

            session = request.getfixturevalue(name)
            if request.config.stash.get(_SPARK, None) is not session:
                register(session)
                request.config.stash[_SPARK] = session


@pytest.fixture
def kbatch_path(tmp_path: Path, _kbatch_session: None) -> str:
    """The folder of the test's own cluster, as text: Spark takes no `Path`.

    The cluster is created by the first write of Spark, or by `kbatch_cluster`.
    """
    return str(tmp_path / "kbatch")


@pytest.fixture
def kbatch_cluster(request: pytest.FixtureRequest, kbatch_path: str) -> Iterator[Cluster]:
    """The test's own cluster, in the folder `kbatch_path`; that of `kbatch_server` is another one."""
    import spark_kbatch

    with spark_kbatch.open(kbatch_path, create=True) as cluster:
        request.node.stash[_CLUSTER] = cluster
        yield cluster


@pytest.fixture
def kbatch_registry(pytestconfig: pytest.Config, tmp_path: Path) -> str:
    """The folder of the test's own schema registry, as text: empty, or a copy of `--kbatch-registry`."""
    folder, given = tmp_path / "kbatch-registry", _value(pytestconfig, _REGISTRY)
    if given:
        source = pytestconfig.rootpath / given
        if not (source / "ids").is_dir():
            raise pytest.UsageError(
                f"{_REGISTRY.flag} is {source}, which has no folder ids with schemas such as ids/7.json"
            )
        shutil.copytree(source, folder)
    (folder / "ids").mkdir(parents=True, exist_ok=True)
    return str(folder)


@pytest.fixture
def _kbatch_clusters(request: pytest.FixtureRequest, _kbatch_session: None) -> Clusters:
    from spark_kbatch.testing.servers import Clusters

    clusters = Clusters(request)
    request.node.stash[_USABLE_CLUSTERS] = clusters
    return clusters


@pytest.fixture
def kbatch_topic(request: pytest.FixtureRequest, _kbatch_clusters: Clusters) -> Iterator[Topics]:
    """A factory of topics: `kbatch_topic("orders", rows=[...])` returns the name of a new one."""
    from spark_kbatch.testing.topics import Topics

    topics = Topics(
        _kbatch_clusters,
        partitions=_value(request.config, _PARTITIONS),
        registry=functools.partial(request.getfixturevalue, "kbatch_registry"),
    )
    yield topics
    topics.delete()


@pytest.fixture
def kbatch_records(request: pytest.FixtureRequest, _kbatch_clusters: Clusters) -> Records:
    """A function that waits for records: `kbatch_records(topic, 3)` returns them as dicts."""
    from spark_kbatch.testing.records import Records

    return Records(
        _kbatch_clusters,
        timeout=_value(request.config, _TIMEOUT),
        registry=functools.partial(request.getfixturevalue, "kbatch_registry"),
    )


@pytest.fixture(scope="session")
def kbatch_server(
    request: pytest.FixtureRequest,
    pytestconfig: pytest.Config,
    tmp_path_factory: pytest.TempPathFactory,
    _kbatch_kernels: None,
) -> Iterator[KafkaServer]:
    """A Kafka server for all tests of the session, on a free port.

    Its records are deleted at the end, unless a test has failed.
    """
    import spark_kbatch
    from spark_kbatch.testing.servers import KafkaServer

    folder = tmp_path_factory.mktemp("kbatch-server")
    with spark_kbatch.open(folder / "cluster", create=True) as cluster:
        server = cluster.serve(num_partitions=_value(pytestconfig, _PARTITIONS))
        pytestconfig.stash[_SERVER] = KafkaServer(cluster, server)
        yield pytestconfig.stash[_SERVER]
        del pytestconfig.stash[_SERVER]
    if not request.session.testsfailed:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def kbatch_noserver(pytestconfig: pytest.Config, _kbatch_kernels: None) -> Iterator[KafkaServer]:
    """The real brokers of `--kbatch-bootstrap-servers`; a test is skipped where none are named."""
    servers = _value(pytestconfig, _BOOTSTRAP_SERVERS)
    if not servers:
        pytest.skip("no real broker: name one with --kbatch-bootstrap-servers=HOST:PORT")
    import spark_kbatch
    from spark_kbatch.testing.servers import API_TIMEOUT_MS, KafkaServer

    with spark_kbatch.connect(servers, default_api_timeout_ms=API_TIMEOUT_MS) as cluster:
        yield KafkaServer(cluster)


# Hooks; each does nothing in a session or test that uses no fixture of the plugin.


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Add the last records of a failed test's topics to its report."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    clusters, own = item.stash.get(_USABLE_CLUSTERS, None), item.stash.get(_CLUSTER, None)
    if report.failed and (clusters is not None or own is not None):
        from spark_kbatch.testing.report import last_records

        touched = () if clusters is None else clusters.touched
        shown = last_records(own, touched, _value(item.config, _REPORT_ROWS))
        if shown:
            report.sections.append((f"kbatch: last records, at {report.when}", shown))


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a test that has passed, if a function that it gave to `intercept` failed."""
    __tracebackhide__ = True
    server = item.config.stash.get(_SERVER, None)
    if server is not None:
        server.ensure_intercepts_passed()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Take back what the test had the server do to requests, once its fixtures have ended."""
    __tracebackhide__ = True
    server = item.config.stash.get(_SERVER, None)  # after the last test it is closed and gone
    try:
        return (yield)
    finally:
        if server is not None:
            server.stop_intercepting()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the controller of pytest-xdist that this worker has compiled."""
    seconds = session.config.stash.get(_COMPILED_S, None)
    output = getattr(session.config, "workeroutput", None)
    if seconds is not None and output is not None:
        output["kbatch_compiled_s"] = seconds


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear that a worker of pytest-xdist has compiled."""
    seconds = getattr(node, "workeroutput", {}).get("kbatch_compiled_s")
    if seconds is not None:
        node.config.stash[_COMPILED_S] = seconds


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say that kernels were compiled, and how long it took."""
    seconds = config.stash.get(_COMPILED_S, None)
    if seconds is not None:
        terminalreporter.write_line(
            f"kbatch: compiled its kernels in {seconds:.1f} s; later sessions load them"
        )
