"""Apache Kafka itself, from Maven Central: its tools, and a broker on loopback.

    kafka = Kafka(class_path())
    kafka.dump_log(files)
    with Broker(kafka, folder) as broker:       # formats folder/data where it is new, starts, stops
        broker.create_topic("events", partitions=2)

The broker is its own KRaft controller, or one of several: `kafka_cluster`. Everything it writes lies under the
given folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import confluent_kafka as librdkafka
from confluent_kafka import admin

from tests.conftest import SPARK
from tests.support.waiting import until

POM = Path(__file__).parent.parent / "interop/pom.xml"
# Of Sparks that are older than the connector in spark-pom.xml.
_CONNECTORS = {(4, 0): "4.0.2", (4, 1): "4.1.1"}
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
NODE_ID = 1
_PORTS = range(16_384, 32_768)
START_TIMEOUT_S = STOP_TIMEOUT_S = TOOL_TIMEOUT_S = 120

_MAVEN_MISSING = """\
Maven is needed to get Apache Kafka, and there is no `mvn` on PATH. Install it with:

    apt-get install maven        (Debian, Ubuntu; macOS: brew install maven)
"""
# An exception in DumpLogSegments itself starts a line, or follows the thread's name.
_FAULTS = re.compile(
    "is[vV]alid: false|invalid bytes at the end|Mismatches in|Non-consecutive offsets|not found in"
    "| is followed by |timestamp mismatch|out of order timestamp|^Exception|^Ignoring unknown file|^Could not"
)
_QUICK_START = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.logFile=System.err",
)


_DUMPED = re.compile(r"^Dumping (.+)$", re.MULTILINE)


class MissingToolError(Exception):
    """A tool that the tests need is not on this machine; the message says how to get it."""


def class_path(folder: Path, *properties: str, pom: Path = POM) -> str:
    """Return the class path of what `pom` names, by default the server, its tools and clients.

    Maven downloads them once, to its own cache.

    Raises:
        MissingToolError: no Maven, or it cannot get them.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingToolError(_MAVEN_MISSING)
    found = folder / "class-path"
    with _one_maven_at_a_time():
        done = subprocess.run(
            [
                maven, "--batch-mode", "--quiet", "--file", str(pom), "dependency:build-classpath",
                f"-Dmdep.outputFile={found}", "-Dmdep.includeScope=runtime", *properties,
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise MissingToolError(f"Maven cannot get Apache Kafka:\n{done.stdout}{done.stderr}")
    return found.read_text()


def connectors_of_spark(folder: Path) -> str:
    """Return Spark's own connectors to Kafka and Avro as `spark.jars` takes them.

    Raises:
        MissingToolError: as `class_path`.
    """
    # One runs on its own Spark and on later ones.
    older = [f"-Dconnector.version={_CONNECTORS[SPARK]}"] if SPARK in _CONNECTORS else []
    found = class_path(folder, *older, pom=POM.with_name("spark-pom.xml"))
    return found.strip().replace(":", ",")


@contextlib.contextmanager
def _one_maven_at_a_time() -> Iterator[None]:
    """Hold a lock among the processes of a test run: two that download the same file spoil it for each other."""
    with (Path(tempfile.gettempdir()) / f"kbatch-maven-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Kafka:
    """Kafka's classes, and the Java that runs them."""

    def __init__(self, class_path: str) -> None:
        self._class_path = class_path
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home, "bin", "java")) if home else shutil.which("java")
        if java is None:
            raise MissingToolError(
                "Java is needed, and there is none on PATH: run `sh conf/ensure-java.sh`"
            )
        self._java = java

    def command(self, main_class: str, *words: object, memory: str = "256m") -> list[str]:
        """Return the command that runs one of Kafka's classes."""
        return [
            self._java, *_QUICK_START, f"-Xmx{memory}", "-cp", self._class_path, main_class,
            *map(str, words),
        ]  # fmt: skip

    def run(self, main_class: str, *words: object, stdin: str = "") -> str:
        """Run a tool to its end; return what it printed."""
        done = self._done(main_class, *words, stdin=stdin)
        assert done.returncode == 0, f"{main_class}: {done.stdout}{done.stderr}"
        return done.stdout

    def dump_log(self, files: Iterable[Path], *flags: str) -> tuple[str, list[str]]:
        """Run DumpLogSegments on these files; return its output, and the lines that report a fault.

        For most faults its exit code is 0.
        """
        names = ",".join(map(str, files))
        done = self._done("kafka.tools.DumpLogSegments", "--files", names, *flags)
        lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        return done.stdout, [line for line in lines if _FAULTS.search(line)]

    def _done(
        self, main_class: str, *words: object, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(main_class, *words),
            input=stdin, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False,
        )  # fmt: skip


def by_directory(printed: str) -> dict[Path, str]:
    """Return what DumpLogSegments prints of the files in each directory, in their order."""
    _, *of_files = _DUMPED.split(printed)
    found: dict[Path, str] = {}
    for name, text in zip(of_files[::2], of_files[1::2], strict=True):
        directory = Path(name).parent
        found[directory] = found.get(directory, "") + text
    return found


class Listener(NamedTuple):
    """A listener that a broker has beside the plain one; Kafka's settings are those of this listener alone."""

    name: str
    protocol: str
    settings: Mapping[str, object] = {}
    advertised: str | None = None  # HOST:PORT that clients are told, instead of its own


class Voter(NamedTuple):
    """A broker among the controllers of its cluster."""

    node_id: int
    port: int  # of its controller

    def __str__(self) -> str:
        return f"{self.node_id}@127.0.0.1:{self.port}"


class WarmKafka(Kafka):
    """Kafka's classes, run as in production: with the optimizing compiler."""

    @classmethod
    def of(cls, kafka: Kafka) -> WarmKafka:
        """Return the same classes, run so."""
        return cls(kafka._class_path)

    def command(self, main_class: str, *words: object, memory: str = "256m") -> list[str]:
        return [self._java, "-Xmx1g", "-cp", self._class_path, main_class, *map(str, words)]


class Broker:
    """One broker; started and stopped any number of times on the same folder."""

    def __init__(
        self,
        kafka: Kafka,
        folder: Path,
        *,
        voters: Sequence[Voter] = (),
        listeners: Sequence[Listener] = (),
        memory: str = "512m",
        format_words: Sequence[str] = (),
        **settings: object,
    ) -> None:
        """Format the folder where it is new.

        Args:
            kafka: Kafka's classes.
            folder: the home of everything that it writes.
            voters: all controllers, this broker's own first; by default it is the only one.
            listeners: these, beside `address`.
            memory: of the Java heap.
            format_words: more words for the command that formats.
            settings: Kafka's, with `_` for each dot.
        """
        self.log_dir = folder / "data"
        self._kafka, self._properties = kafka, folder / "server.properties"
        self._log, self._memory = folder / "server.log", memory
        self._process: subprocess.Popen[bytes] | None = None
        port, controller_port, *others = free_ports(2 + len(listeners))
        voters = voters or [Voter(NODE_ID, controller_port)]
        self.node_id = voters[0].node_id
        self.address = f"127.0.0.1:{port}"
        self.addresses = {
            one.name: f"127.0.0.1:{port}" for one, port in zip(listeners, others, strict=True)
        }
        own = {"PLAINTEXT": self.address} | self.addresses
        told = own | {one.name: one.advertised for one in listeners if one.advertised}
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        protocols |= {one.name: one.protocol for one in listeners}
        folder.mkdir(parents=True, exist_ok=True)
        self._write_properties(
            {
                "process.roles": "broker,controller",
                "node.id": self.node_id,
                "controller.quorum.voters": ",".join(map(str, sorted(voters))),
                "controller.listener.names": "CONTROLLER",
                "inter.broker.listener.name": "PLAINTEXT",
                "listeners": _urls(own | {"CONTROLLER": f"127.0.0.1:{voters[0].port}"}),
                "advertised.listeners": _urls(told),
                "listener.security.protocol.map": ",".join(
                    f"{k}:{v}" for k, v in protocols.items()
                ),
                "log.dirs": self.log_dir,
                "auto.create.topics.enable": "false",
                "offsets.topic.replication.factor": 1,
                "offsets.topic.num.partitions": 1,
                "transaction.state.log.replication.factor": 1,
                "transaction.state.log.min.isr": 1,
                "transaction.state.log.num.partitions": 1,
                "group.initial.rebalance.delay.ms": 0,
            }
            | {
                f"listener.name.{one.name.lower()}.{key}": value
                for one in listeners
                for key, value in one.settings.items()
            }
            | {name.replace("_", "."): value for name, value in settings.items()}
        )
        if not self.log_dir.exists():
            kafka.run(
                "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", self._properties,
                *format_words,
            )  # fmt: skip

    def _write_properties(self, properties: Mapping[str, object]) -> None:
        self._properties.write_text("".join(f"{k}={v}\n" for k, v in properties.items()))

    def start(self) -> Self:
        """Start it, and wait until it serves."""
        self.launch()
        self.wait_until_up()
        return self

    def launch(self) -> None:
        """Start it, and do not wait."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._kafka.command("kafka.Kafka", self._properties, memory=self._memory),
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def wait_until_up(self) -> None:
        """Wait until it serves."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if (
                self._process is None
                or self._process.poll() is not None
                or time.monotonic() > deadline
            ):
                self.kill()
                raise AssertionError(f"the broker did not start:\n{self.last_lines()}")
            with contextlib.suppress(librdkafka.KafkaException):
                if self.node_id in self.admin().list_topics(timeout=1).brokers:
                    return
            time.sleep(0.1)

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Stop it as an operator does: it writes its checkpoints and its marker of a clean shutdown."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, as a machine that fails does."""
        self._end(signal.SIGKILL)

    def _end(self, signal_number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal_number)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the broker did not stop:\n{self.last_lines()}") from None

    @property
    def pid(self) -> int | None:
        """The number of its process; None if it is stopped."""
        return None if self._process is None else self._process.pid

    def last_lines(self, n: int = 40) -> str:
        """Return the last lines of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-n:])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # Requests of clients.

    def admin(self) -> admin.AdminClient:
        """Return an admin client that does not log errors while the broker is not up yet."""
        return admin.AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def create_topic(self, name: str, *, partitions: int = 1, **config: object) -> None:
        """Create a topic with these settings of Kafka's; on return its partitions have a leader."""
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        topic = admin.NewTopic(name, partitions, 1, config=settings)
        client = self.admin()  # kept in a variable: deleting the client cancels its requests
        for future in client.create_topics([topic]).values():
            future.result(timeout=START_TIMEOUT_S)
        written = [self.directory(name, p) / "partition.metadata" for p in range(partitions)]
        until(lambda: all(path.exists() for path in written))

    def directory(self, topic: str, partition: int = 0) -> Path:
        """Return the directory of a partition."""
        return self.log_dir / f"{topic}-{partition}"


def _urls(addresses: Mapping[str, str]) -> str:
    return ",".join(f"{name}://{address}" for name, address in addresses.items())


def free_ports(n: int) -> list[int]:
    """Return free ports on loopback, of those that no system gives to clients.

    A broker that is down for a while finds its own free again, whatever other tests connect to meanwhile.
    """
    found: list[int] = []
    with contextlib.ExitStack() as open_together:
        while len(found) < n:
            one, port = open_together.enter_context(socket.socket()), secrets.choice(_PORTS)
            with contextlib.suppress(OSError):
                one.bind(("127.0.0.1", port))
                found.append(port)
    return found
