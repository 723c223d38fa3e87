"""The public Python names with their signatures, as docs/versions.md promises them.

`golden/python/public.txt` has a line for each:

    open(path: StrPath, *, ...) -> ...    a function, or a method, without `self`
    Commit(number: int, ...)              a named tuple, a dataclass or another class that users construct
    Commit.mode -> str                    a property
    Cluster.path                          an attribute that the constructor sets
    errors.ClosedError(KBatchError)       an exception with its bases and, after a colon, its fields

KBATCH_REWRITE_GOLDEN=1 pytest tests/test_public_names.py writes it again; read the difference before you keep
it. Members that docs/site/python-api.md excludes are not public.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import os
import re
import textwrap
import types
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import spark_kbatch
from spark_kbatch import errors, functions, testing
from spark_kbatch.model import ConsumerGroup, GroupMember, GroupOffset, OffsetRange
from spark_kbatch.store.commits import Author
from spark_kbatch.store.reports import (
    AbandonedJob,
    DeletedTopic,
    Deletion,
    ExportedPartition,
    Garbage,
    GivenUp,
    LogDirInfo,
    NotRemoved,
    RepairReport,
    ReplicaInfo,
    ServerAddress,
    Waiting,
)
from tests.conftest import REPOSITORY
from tests.support import builders

GOLDEN = REPOSITORY / "tests" / "golden" / "python" / "public.txt"
REFERENCE = (REPOSITORY / "docs" / "site" / "python-api.md").read_text("utf-8")

# Besides values and exceptions. All other objects come from calls; how they are constructed is not public.
_CONSTRUCTED = {spark_kbatch.LagListener, testing.KafkaServer}
# Values in what public methods return; their names are not exported.
_RETURNED = (
    Garbage, AbandonedJob, DeletedTopic, Deletion, NotRemoved, Waiting,
    ConsumerGroup, GroupMember, GroupOffset, OffsetRange,
    Author, ExportedPartition, GivenUp, LogDirInfo, RepairReport, ReplicaInfo, ServerAddress,
)  # fmt: skip
_PROTOCOLS = {"__await__", "__call__", "__enter__"}
_PYTHONS = {"builtins", Future.__module__}
_WHAT_TO_DO = """\
The public Python names have changed. If that is a mistake, restore them: people rely on them.
If it is intended,
  - see what docs/versions.md promises: a removal or a changed meaning is deprecated first;
  - tell users in CHANGELOG.md, under "Unreleased";
  - run KBATCH_REWRITE_GOLDEN=1 pytest tests/test_public_names.py
"""


class _AsWritten(str):
    """An annotation, shown without the quotes of its string."""

    __slots__ = ()
    __repr__ = str.__str__


def as_written(annotation: Any) -> Any:
    """Return an annotation as its module has it; all of them are strings there, or become one."""
    annotation = getattr(annotation, "__forward_arg__", annotation)  # a named tuple's
    return _AsWritten(annotation) if isinstance(annotation, str) else annotation


def signature(function: Any, *, bound: bool = True) -> str:
    """Return a function's signature; of one that is not bound to its object, without `self`."""
    found = inspect.signature(function)
    parameters = [
        one.replace(annotation=as_written(one.annotation)) for one in found.parameters.values()
    ]
    given = as_written(found.return_annotation)
    return str(inspect.Signature(parameters[not bound :], return_annotation=given))


def construction(cls: type) -> str:
    """Return the arguments of a class that users construct, which are the fields of a value; else nothing."""
    is_value = issubclass(cls, tuple) or dataclasses.is_dataclass(cls)
    return signature(cls).removesuffix(" -> None") if is_value or cls in _CONSTRUCTED else ""


def left_out(name: str) -> Iterator[str]:
    """Yield the members of a class that the reference excludes."""
    options = re.search(rf"autoclass:: {name}\n((?:   :.*\n)*)", REFERENCE)
    if options is None:
        return
    if excluded := re.search(r":exclude-members: (.*)", options[1]):
        yield from excluded[1].split(", ")
    if shown := re.search(r":members: (.+)", options[1]):
        yield from set(dir(getattr(spark_kbatch, name))) - {*shown[1].split(", ")} - _PROTOCOLS


def attributes(cls: type) -> set[str]:
    """Return the public attributes that constructors of a class and its bases set."""
    found = set()
    for one in cls.__mro__:
        if one.__module__.startswith("spark_kbatch.") and "__init__" in vars(one):
            if dataclasses.is_dataclass(one):
                continue
            tree = ast.parse(textwrap.dedent(inspect.getsource(one.__init__)))  # type: ignore[misc]
            found |= {
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
                and not node.attr.startswith("_")
            }
    return found


def members(cls: type) -> dict[str, Any]:
    """Return the public methods and properties of a class, by name, but not what is Python's."""
    return {
        name: inspect.getattr_static(cls, name)
        for name in dir(cls)
        if name in _PROTOCOLS or not name.startswith("_")
        if next(one for one in cls.__mro__ if name in vars(one)).__module__ not in _PYTHONS
    }


def class_lines(name: str, cls: type) -> Iterator[str]:
    """Yield a line for a class, and one for each of its public members."""
    yield f"{name}{construction(cls)}"
    hidden = {*left_out(name)}
    shown = dict.fromkeys(attributes(cls) - hidden, "")
    for member, value in members(cls).items():
        if member in hidden:
            continue
        if isinstance(value, property):
            shown[member] = f" -> {inspect.signature(value.fget).return_annotation}"  # type: ignore[arg-type]
        elif isinstance(value, types.FunctionType):
            shown[member] = signature(value, bound=False)
        elif isinstance(value, classmethod | staticmethod):
            shown[member] = signature(getattr(cls, member))
    yield from (f"{name}.{member}{rest}" for member, rest in sorted(shown.items()))


def error_line(cls: type) -> str:
    """Return the line of an exception."""
    bases = ", ".join(base.__name__ for base in cls.__bases__)
    given = construction(cls)
    return f"errors.{cls.__name__}({bases}){given and f': {given[1:-1]}'}"


def error_classes() -> dict[str, type]:
    """Return every exception of the package by its name."""
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    }


def module_lines(module: types.ModuleType) -> Iterator[str]:
    """Yield the lines of all names that a module exports."""
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, type) and issubclass(value, BaseException):
            yield f"{name} = errors.{value.__name__}"
        elif isinstance(value, type):
            yield from class_lines(name, value)
        else:
            yield f"{name}{signature(value)}"


def public_names() -> str:
    """Return all lines."""
    parts = {
        "spark_kbatch": module_lines(spark_kbatch),
        "spark_kbatch.functions": module_lines(functions),
        "spark_kbatch.testing": module_lines(testing),
        "values that calls return": (
            line for cls in _RETURNED for line in class_lines(cls.__name__, cls)
        ),
        "spark_kbatch.errors": map(error_line, error_classes().values()),
    }
    return "\n".join(f"# {title}\n\n" + "\n".join(lines) + "\n" for title, lines in parts.items())


def test_public_names_and_signatures_are_those_that_were_promised() -> None:
    shown, expected = public_names(), GOLDEN.read_text("utf-8")

    if os.environ.get("KBATCH_REWRITE_GOLDEN"):
        GOLDEN.write_text(shown, "utf-8")
    elif shown != expected:
        changes = difflib.unified_diff(
            expected.splitlines(), shown.splitlines(), "promised", "found", lineterm="", n=0
        )
        pytest.fail(_WHAT_TO_DO + "\n".join(changes), pytrace=False)


def test_completion_shows_what_is_public(tmp_path: Path) -> None:
    seen: list[Any] = []
    with builders.a_cluster(tmp_path, topics={"t": 1}) as cluster, cluster.serve() as server:
        server.intercept("Metadata", seen.append)
        with spark_kbatch.connect(server.bootstrap_servers) as remote:
            topics = [cluster.topic("t"), remote.topic("t")]
        with cluster.producer() as producer:
            futures = [producer.send("t", "v"), producer.send_arrow("t", {"value": ["v"]})]
            shown = [
                cluster,
                remote,
                server,
                producer,
                *futures,
                *topics,
                cluster.topic("t").config,
                seen[0],
            ]
            for one in shown:
                name = type(one).__name__
                public = {line.split("(")[0].split(" ")[0] for line in class_lines(name, type(one))}
                values = {f"{name}.{field}" for field in getattr(one, "__dataclass_fields__", ())}
                own = set(dir(one)) - (set(dir(Future)) - members(type(one)).keys())
                found = {f"{name}.{member}" for member in own if not member.startswith("_")}
                assert found == {
                    one for one in public | values if not re.search(r"\.__|^\w+$", one)
                }

    names = [name for name in dir(spark_kbatch) if not name.startswith("__")]
    assert names == sorted([*spark_kbatch.__all__, "errors"])


def test_public_names_are_in_the_reference() -> None:
    named = re.findall(r"^\.\. auto\w+:: (\w+)$", REFERENCE, re.MULTILINE)

    assert sorted(named) == spark_kbatch.__all__


def test_errors_that_the_documentation_names_are_exported() -> None:
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    texts = [page.read_text("utf-8") for page in pages]
    for name in spark_kbatch.__all__:
        value = getattr(spark_kbatch, name)
        shown = members(value).values() if isinstance(value, type) else ()
        texts += [one.__doc__ or "" for one in (value, *shown)]
    named = set(re.findall(r"\b[A-Z]\w*Error\b", "\n".join(texts)))

    assert named & error_classes().keys() <= {*spark_kbatch.__all__}
