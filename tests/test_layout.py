"""The tree is the data flow: imports go one way, what is delicate has one home, and no room outgrows its number."""

from __future__ import annotations

import ast
import functools
import graphlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import spark_kbatch
from tests.support import builders, sizes
from tests.support.sizes import Allowed

PACKAGE = Path(spark_kbatch.__file__).parent
ROOT = "__init__"

# From the bottom up. Parts of one layer do not know each other.
LAYERS = (
    {"model", "clock", "terminal", "mutexes"},
    {"errors", "meters"},
    {"stored_json"},
    {"files"},
    {"machine_files"},
    {"condition"},
    {"options"},
    {"kernels"},
    {"record", "values"},
    {"store"},
    {"producer", "consumer", "log", "wire"},
    {"catalog", "ledger", "registry"},
    {"bucket", "columns", "memory", "remote", "replica"},
    {"commit"},
    {"cluster"},
    {"server"},
    {"opening"},
    {"mirroring", "spark"},
    {ROOT, "functions"},
    {"web"},
    {"cli", "testing"},
    {"__main__"},
)
ROOMS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
HEIGHT = {part: height for height, parts in enumerate(LAYERS) for part in parts}

# The modules of each room that other rooms may import; all others are its own.
DOORS = {
    "options": {
        "arguments", "columns", "kinds", "mirror", "object_store", "option", "paths", "producer", "read", "registry", "remote", "security", "server", "topic", "values",
        "write",
    },
    "condition": {"binding", "evaluation", "pruning", "text"},
    "kernels": {"avro", "avro_encoding", "jit", "json", "legacy", "lines", "records", "routing", "slots"},
    "record": {
        "builder", "checksums", "codec", "columns", "control", "down_conversion", "header", "legacy", "lines", "scalar",
    },
    "values": {
        "avro_decoder", "avro_encoder", "avro_schema", "decoded", "flat", "framing", "inference", "json_decoder",
        "json_encoder", "json_schema", "layout", "types",
    },
    "store": {
        "catalog", "commits", "groups", "job", "os_errors", "reports", "repetitions", "source", "store",
        "transport",
    },
    "bucket": {"history", "maintenance", "mending", "probe", "recovery", "staging", "store", "trial"},
    "ledger": {"audit", "checkpoint_format", "checksummed_json", "codec", "commits", "entries", "extents", "image", "names", "state"},
    "columns": {"functions", "reading", "schemas", "writing"},
    "memory": {"store"},
    "log": {
        "append", "checkpoints", "contents", "epochs", "foreign.log_dir", "overwritten",
        "partition_log", "repair", "retention", "segment", "state", "steps",
        "truncation", "validator",
    },
    "producer": {
        "accumulator", "batch", "futures", "idempotence", "memory", "metrics", "producer", "sender",
        "staged_transactions", "task_producer", "transactional",
    },
    "consumer": {
        "following", "group_commits", "lag", "matching", "peeking", "planning", "reading", "rows", "same_topic", "stream_planner",
        "topic_reader",
    },
    "replica": {
        "administration", "cluster_creation", "delayed_fetch", "manager", "partition", "view",
    },
    "registry": {"known", "schemas"},
    "catalog": {"cluster_file", "deletions", "folder_clock", "json_files", "log_dirs", "metadata", "partition_states", "paths"},
    "commit": {
        "coordinator", "history", "internal_topics", "snapshot", "staging",
    },
    "remote": {"batch_producer", "client", "metadata", "offsets", "source", "store", "topics", "transactions"},
    "mirroring": {"copying"},
    "wire": {
        "addresses", "answers", "backoff", "codec", "connection", "connections", "errors", "framing", "protocol", "records", "tls",
    },
    "server": {"intercepts", "listener", "server"},
    "cluster": {
        "catalog", "folder_store", "foreign_store", "group_records", "job", "offsets_store", "ownership", "parts", "state_log", "transports",
        "transactions.administration", "transactions.checking", "transactions.ending", "transactions.log", "transactions.state",
    },
    "opening": {"cluster", "stores"},
    "spark": {"demo", "functions", "hadoop", "lag", "maintaining", "source"},
    "cli": {"main"},
    "web": {"access", "metrics", "serving", "site"},
}  # fmt: skip

# What the faces import at run time, of rooms that are not their own: clusters are opened in one room.
FACES = {
    "spark": {
        "columns.functions", "columns.reading", "columns.writing", "consumer.lag", "errors", "model", "opening.stores", "options",
        "store.job",
        "store.repetitions", "terminal", "bucket.maintenance",
    },
    "cli": {
        ROOT, "clock", "columns.reading", "columns.schemas", "errors", "model", "opening.stores", "options", "terminal",
        "files", "log.contents", "record.header",  # `kbatch dump`, of any files
        "record.columns", "record.lines",  # the forms of records in text
        "bucket.history", "bucket.maintenance", "bucket.mending", "bucket.probe", "bucket.recovery", "bucket.trial",
        "ledger.entries",
        "spark.demo", "store.catalog", "store.reports",
        "values.inference",  # `kbatch schemas infer`, of any bytes
        "web.access", "web.metrics", "web.serving", "web.site",
    },
    "testing": {
        ROOT, "clock", "errors", "options", "terminal",
        "kernels.jit",  # compiled once for all tests
        "record.columns", "server.intercepts",
    },
}  # fmt: skip

# Who may import what: parts of ours that only few may know, and modules with one home.
PRODUCER_USERS = {"bucket", "cluster", "columns", "memory", "mirroring", "opening", "remote"}
PURE = {
    "__future__", "bisect", "collections", "dataclasses", "functools", "itertools", "json", "random", "re", "typing",
}  # fmt: skip
HOMES = {
    "pyspark": {
        "spark/__init__.py",
        "spark/functions.py",
        "spark/lag.py",
        "spark/reader.py",
        "spark/source.py",
        "spark/writer.py",
        "spark/demo.py",
    },
    "numba": {"kernels/llvm.py", "kernels/jit.py"},
    "fcntl": {"files.py"},
    "mmap": set(),
    "crc32c": {"record/checksums.py"},
    "kafka": {"wire/sasl.py"},
    "urllib3": {"registry/connections.py", "registry/endpoint.py"},
    "obstore": {"bucket/real_objects.py"},
    "prometheus_client": {"web/metrics.py"},
}


class Import(NamedTuple):
    """One import statement's target."""

    file: str  # in the package
    module: str  # dotted
    for_types: bool  # under TYPE_CHECKING

    @property
    def importer(self) -> str:
        """The part of the package that imports: a module of its root, or a folder."""
        return self.file.partition("/")[0].removesuffix(".py")

    @property
    def imported(self) -> str | None:
        """The part of the package that is imported, None for other packages."""
        names = self.module.split(".")
        if names[0] != "spark_kbatch":
            return None
        return names[1] if len(names) > 1 and names[1] in HEIGHT else ROOT

    @property
    def module_names(self) -> list[str]:
        """The imported module of the package, from its room on; empty for all else."""
        names = self.module.split(".")[1:] if self.imported is not None else []
        while names and not PACKAGE.joinpath(*names).with_suffix(".py").exists():
            names.pop()
        return names

    @property
    def door(self) -> tuple[str, str] | None:
        """The room and the module in it that another room imports; None for all others."""
        names = self.module_names
        if self.imported in (None, self.importer) or len(names) < 2:
            return None
        return names[0], ".".join(names[1:])


@functools.cache
def imports() -> list[Import]:
    """Every import of the package, in functions too."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        tree = ast.parse(path.read_text())
        for_types = {
            id(node)
            for test in ast.walk(tree)
            if isinstance(test, ast.If) and ast.unparse(test.test) == "TYPE_CHECKING"
            for node in ast.walk(test)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found.append(Import(file, alias.name, id(node) in for_types))
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file} has a relative import"
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    found.append(Import(file, name, id(node) in for_types))
    return found


def test_every_part_has_a_layer() -> None:
    parts = {path.stem for path in PACKAGE.glob("*.py")}
    parts |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}

    assert parts == set(HEIGHT)


def test_imports_go_one_way() -> None:
    upward = [
        f"{one.file} imports {one.module}"
        for one in imports()
        if one.imported not in (None, one.importer)
        and HEIGHT[one.imported or ""] >= HEIGHT[one.importer]
    ]

    assert upward == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for one in imports():
        if one.module_names:
            graph.setdefault(one.file, set()).add("/".join(one.module_names) + ".py")

    graphlib.TopologicalSorter(graph).prepare()


def test_rooms_are_entered_by_their_doors() -> None:
    found: dict[str, set[str]] = {}
    for room, module in filter(None, (one.door for one in imports())):
        found.setdefault(room, set()).add(module)

    assert found == DOORS


@pytest.mark.parametrize("face", FACES)
def test_a_face_opens_clusters_in_one_room(face: str) -> None:
    found = {
        ".".join(one.module_names)
        if one.imported in ROOMS and one.imported != "options"
        else one.imported
        for one in imports()
        if one.importer == face and one.imported not in (None, face) and not one.for_types
    }

    assert found == FACES[face]


# What the public `Cluster` imports of rooms at run time: the port, and what is above all places. Of the others it
# opens a folder where it is constructed, and serves what its store hands out.
PORT = {"store", "consumer", "options", "columns.reading"}
INSIDE = {
    "__init__": {"cluster.folder_store", "cluster.parts"},
    "serve": {"server.server"},
}


def test_the_public_cluster_knows_the_port_alone() -> None:
    cluster = [one for one in imports() if one.file == "opening/cluster.py" and not one.for_types]
    found = {
        ".".join(one.module_names)
        for one in cluster
        if one.imported in ROOMS and not {one.imported or "", ".".join(one.module_names)} & PORT
    }

    assert found == set().union(*INSIDE.values())
    tree = ast.parse((PACKAGE / "opening" / "cluster.py").read_text())
    functions = {one.name: one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}
    for function, modules in INSIDE.items():
        inside = ast.walk(functions[function])
        names = {one.module for one in inside if isinstance(one, ast.ImportFrom)}
        assert names >= {f"spark_kbatch.{name}" for name in modules}


def test_a_bucket_knows_no_logs() -> None:
    assert [one for one in imports() if one.importer == "bucket" and one.imported == "log"] == []


def test_a_ledger_stands_on_the_port_and_is_pure() -> None:
    found = [one for one in imports() if one.importer == "ledger" and one.imported != "ledger"]

    assert all(HEIGHT[one.imported] <= HEIGHT["store"] for one in found if one.imported)
    assert {one.module.split(".")[0] for one in found} <= {"spark_kbatch", *PURE}
    assert not {"clock", "files", "mutexes", "wire"} & {one.imported for one in found}


def test_producer_and_consumer_are_wired_by_those_who_open_a_path() -> None:
    users = {
        one.importer
        for one in imports()
        if one.imported in ("producer", "consumer")
        and ".".join(one.module_names) != "consumer.lag"  # which opens nothing
        # These only name what calls give.
        and not (one.for_types and one.file in ("__init__.py", "spark/reader.py"))
    }

    assert users - {"producer", "consumer"} == PRODUCER_USERS


@pytest.mark.parametrize("module", HOMES)
def test_module_is_imported_only_in_its_home(module: str) -> None:
    found = {
        one.file for one in imports() if one.module.split(".")[0] == module and not one.for_types
    }

    assert found == HOMES[module]


def test_the_package_names_pyspark_for_types_only() -> None:
    found = [one for one in imports() if one.file == "__init__.py" and "pyspark" in one.module]

    assert found
    assert all(one.for_types for one in found)


def test_no_module_is_a_drawer() -> None:
    """`utils` and `base` name what is in them no better than a drawer does."""
    assert not {"utils", "util", "base", "helpers", "common"} & {p.stem for p in PACKAGE.rglob("*")}


def test_each_room_lists_its_modules() -> None:
    missing = []
    for room in PACKAGE.glob("*/**/__init__.py"):
        words = re.findall(r"\w+", ast.get_docstring(ast.parse(room.read_text())) or "")
        missing += [path for path in room.parent.glob("[!_]*.py") if path.stem not in words]

    assert missing == []


def test_no_two_classes_have_the_same_name() -> None:
    names = [
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]

    assert {name for name in names if names.count(name) > 1} == set()


def test_no_room_outgrows_its_number() -> None:
    if os.environ.get("KBATCH_REWRITE_GOLDEN"):
        sizes.rewrite()

    assert sizes.faults(sizes.counted(), sizes.allowed()) == []


def test_a_fault_of_a_size_says_which_room_by_how_much_and_what_to_do() -> None:
    table = {"a/grown": Allowed(500), "a/held": Allowed(540), "a/shrunk": Allowed(700), "a/gone": Allowed(1)}  # fmt: skip
    there = {"a/grown": 560, "a/held": 500, "a/shrunk": 600, "a/new": 9}

    gone, new, grown, shrunk = sizes.faults(there, table)

    assert gone.startswith("a/gone is not in the tree: ")
    assert new.startswith("a/new is not in the table: ")
    assert grown == (
        "a/grown has 560 statements, 60 more than it may have: say once what it says twice, or "
        "raise its number in tests/sizes.txt to at most 600, with the reason on the same line"
    )
    assert shrunk.startswith("a/shrunk has 600 statements and may have 700, so ")


def test_writing_the_table_of_sizes_again_raises_no_number() -> None:
    table = {"a/grown": Allowed(500), "a/shrunk": Allowed(9000, "joins"), "a/gone": Allowed(1)}

    assert sizes.lowered({"a/grown": 560, "a/shrunk": 8000, "a/new": 9}, table) == {
        "a/grown": Allowed(500),
        "a/shrunk": Allowed(8080, "joins"),
        "a/new": Allowed(49),
    }


WITHOUT_KERNELS = """
import shutil
import sys
from pathlib import Path

import spark_kbatch
from spark_kbatch.cluster.job import coordinator_for
from spark_kbatch.opening.stores import open_for_reading
from spark_kbatch.options.write import parse_write_options
from spark_kbatch.consumer.planning import DataLoss
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.read import parse_read_options
from spark_kbatch.record import scalar
from spark_kbatch.record.header import walk
from tests.support import builders, reference

path = sys.argv[1]
cluster = builders.a_cluster(Path(path), topics={"events": 2})
batch = bytes(scalar.encode([(b"key", b"value"), (None, b"value")], 0))
builders.write(cluster, {("events", 0): [batch, batch], ("events", 1): [batch]})
builders.append_records(cluster, {("events", 1): batch})
coordinator_for(cluster._store.parts, parse_write_options({"path": path})).roll_forward()

options = parse_read_options({"path": path, "subscribe": "events", "minPartitions": "3"})
loss = DataLoss(fail=True)
ranges = [
    one for task in cluster._reader.plan(options) for one in cluster._reader.resolve(task, options, "an-action", loss)
]
assert [wanted[1:] for wanted in ranges] == [(0, 2), (2, 4), (0, 2), (2, 4)]
assert [info.offsets.high_watermark for info in cluster.describe(["events"])] == [4, 4]
assert cluster.list_offsets({("events", 0): 0}) == {TopicPartition("events", 0): (0, 0)}
assert not any(report.found for report in cluster.repair())

shutil.copytree(cluster.path / "broker-0", Path(path) / "broker")
logs = open_for_reading(str(Path(path) / "broker"))
options = parse_read_options({"path": path, "subscribe": "events"})
ranges = [one for task in logs._reader.plan(options) for one in logs._reader.resolve(task, options, "", loss)]
assert [one.end for one in ranges] == [4, 4]

# As many as lie between two entries of an index.
messages = reference.encode_messages([reference.Record(n, 0, None, b"v") for n in range(99)], magic=1)
assert [header.next_offset for _, header in walk(messages)] == [99]

print({"kafka", "numba", "pyspark"} & sys.modules.keys())
"""

WHAT_ONLY_WRITERS_AND_TASKS_NEED = """
import sys

from spark_kbatch.opening.stores import open_topics
from spark_kbatch.options.read import parse_read_options

options = parse_read_options({"path": sys.argv[1], "subscribe": "events", "minPartitions": "3"})
assert len(open_topics(options).plan(options)) == 3
costly = {
    "kafka", "numba", "pyarrow.compute", "spark_kbatch.cluster.transports", "spark_kbatch.options.server",
    "spark_kbatch.producer", "spark_kbatch.server",
}
print(costly & sys.modules.keys())
"""


def test_planning_committing_appending_and_snapshots_load_neither_numba_nor_pyspark(
    tmp_path: Path,
) -> None:
    assert printed_by(WITHOUT_KERNELS, tmp_path) == "set()\n"


def test_planning_a_read_loads_nothing_costly(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    builders.append_records(cluster, {("events", 0): builders.batch()})

    assert printed_by(WHAT_ONLY_WRITERS_AND_TASKS_NEED, cluster.path) == "set()\n"


def test_clients_and_servers_of_kafkas_protocol_load_kafka_python_for_sasl_alone(
    tmp_path: Path,
) -> None:
    program = (
        "import sys, spark_kbatch.remote.store, spark_kbatch.server.server\n"
        "print({'kafka', 'numba', 'pyspark'} & sys.modules.keys())"
    )
    assert printed_by(program, tmp_path) == "set()\n"


def printed_by(program: str, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
