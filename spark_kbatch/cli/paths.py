"""The argument PATH of commands: a cluster's folder, a broker's logs, a real cluster's address, a bucket's URL.

PATH may be HOST:PORT of a real cluster, or several of these with commas between them, for commands that go with one.
The options of its client, and those of a bucket's store, come from `--command-config` and `-X`, and stay out of
everything that is printed.

PATH may be left out if KBATCH_PATH is set. No topic's name has a "/" or a ":", so an argument that has one tells by
itself that it is PATH. A bare name does not: while KBATCH_PATH is set it never counts as PATH, and is refused if a folder has that name.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from click.shell_completion import CompletionItem

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.cli.parameters import parse_settings, parsed, properties_file_option
from spark_kbatch.errors import KBatchError
from spark_kbatch.opening.stores import (
    cluster_to_write,
    ensure_not_refused,
    open_for_reading,
    open_reader,
)
from spark_kbatch.options.object_store import StoreOptions, parse_store_options
from spark_kbatch.options.paths import bucket_scheme, is_in_memory
from spark_kbatch.options.remote import is_address
from spark_kbatch.terminal import visible

PATH_VARIABLE = "KBATCH_PATH"
_REFUSED_MS = 5000

_Command = TypeVar("_Command", bound=Callable[..., Any])


def with_path(context: click.Context, command: click.Command, words: list[str]) -> list[str]:
    """Return the arguments of a command, with KBATCH_PATH in front if they lack PATH.

    Raises:
        click.UsageError: the first one may be PATH or not.
    """
    default = os.environ.get(PATH_VARIABLE)
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    if not (default and arguments and isinstance(arguments[0], _PathArgument)):
        return words
    first = _first_argument(context, command, words)
    is_path = first is not None and ("/" in first or first in (".", "..", "~") or is_address(first))
    if is_path or (first is not None and len(arguments) == 1):
        return words
    if first is not None and Path(first).is_dir() and not context.resilient_parsing:
        raise click.UsageError(
            f"{first!r} is a folder here, but a bare name is not PATH while {PATH_VARIABLE} is set; accepted: "
            f"'./{first}' for the folder, or PATH and then {first!r}",
            context,
        )
    return [f"./{default}" if default.startswith("-") else default, *words]


def _first_argument(context: click.Context, command: click.Command, words: list[str]) -> str | None:
    """Return a command's first positional argument; None if there is none, or on a usage error."""
    options = [one for one in command.params if isinstance(one, click.Option)]
    without = click.Command(command.name, params=list(options))
    parser = without.make_parser(click.Context(without, parent=context))
    try:
        found = parser.parse_args([*words])[1]
    except click.UsageError:
        return None  # which the command itself will find
    return found[0] if found else None


FOLDER, BUCKET, REMOTE = "a folder", "a bucket", "a real cluster"  # what a command works on
ANYWHERE = (FOLDER, BUCKET, REMOTE)
_WHAT_IT_IS = {
    FOLDER: "no URL of a bucket, such as s3://BUCKET/PREFIX",
    BUCKET: "the URL of a bucket",
    REMOTE: "the address of a real cluster",
}
# What is said of some commands for folders where they are given a bucket.
_IN_A_BUCKET = {
    "log-dirs": ", as a bucket has no disks to look after: `kbatch describe` shows what is in one",
    "serve": ", and no bucket can be served yet: Kafka's clients reach a folder or a real cluster",
}


class _PathArgument(click.Argument):
    """The argument PATH of a command, which defaults to the environment variable KBATCH_PATH."""

    def make_metavar(self, ctx: click.Context) -> str:
        return "[PATH]"

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return "'PATH'"


def _ensure_is(
    takes: Sequence[str], context: click.Context, _parameter: click.Parameter, path: Any
) -> Any:
    command = f"`{context.command_path}`"
    if path is not None and is_in_memory(path):
        raise click.BadParameter(
            f"{path!r} is in the memory of one process, and gone when {command} ends; accepted: "
            "a folder, HOST:PORT of a real cluster, or the URL of a bucket"
        )
    what = REMOTE if path and is_address(path) else BUCKET if bucket_scheme(path) else FOLDER
    if path is not None and what not in takes:
        hint = _IN_A_BUCKET.get(context.info_name or "", "") if what is BUCKET else ""
        raise click.BadParameter(
            f"{path!r} is {_WHAT_IT_IS[what]}; {command} works on {' or '.join(takes)}{hint}"
        )
    return path


def ensure_is(*takes: str) -> functools.partial[Any]:
    """Return a callback of an argument that refuses what a command does not work on.

    Topics in memory, which end with the command's process, are never worked on.
    """
    return functools.partial(_ensure_is, takes)


def complete_topic(
    context: click.Context, _parameter: click.Parameter, word: str
) -> list[CompletionItem]:
    """Return the topics at PATH that start with a word; none over the network, which would take too long."""
    path = context.params.get("path")
    if not path or is_address(path) or bucket_scheme(path):
        return []
    try:
        names = open_for_reading(path).topic_names()
    except (KBatchError, OSError):
        return []
    return [CompletionItem(visible(name)) for name in names if name.startswith(word)]


topic_argument = click.argument("topic", shell_complete=complete_topic)
folder_argument = click.argument(
    "path", cls=_PathArgument, type=click.Path(), callback=ensure_is(FOLDER)
)


class Place(NamedTuple):
    """What a command works on: its PATH, and how that is reached and read."""

    path: str
    client: Mapping[str, str]  # properties of a real cluster's client, or of a bucket's store
    foreign_end: str | None

    def open(self) -> Cluster:
        """Open the cluster, real cluster or broker's logs, for reading."""
        self.ensure_fits()
        if is_address(self.path):
            return spark_kbatch.connect(self.path, self.client)
        return open_for_reading(self.path, foreign_end=self.foreign_end, client=self.client)

    def open_own(self, *, create: bool = False) -> Cluster:
        """Open what is no broker's logs; with `create`, create a cluster if there is none."""
        if is_address(self.path) or (self.is_in_bucket and not create):
            return self.open()
        self.ensure_fits()
        return cluster_to_write(self.path, self.client) if create else Cluster(self.path)

    def reader(self) -> Any:
        """Return a reader of record ranges for the topics here."""
        self.ensure_fits()
        return open_reader(self.path, foreign_end=self.foreign_end, client=self.client)

    @property
    def is_in_bucket(self) -> bool:
        """Whether it is the URL of a bucket."""
        return bool(bucket_scheme(self.path))

    @property
    def store_options(self) -> StoreOptions:
        """The options of a bucket's store.

        Raises:
            ConfigError: one is not accepted.
        """
        return parse_store_options(self.client, self.path, alone=True)

    def ensure_fits(self) -> None:
        """Refuse command options that do not fit PATH, such as client settings with a folder.

        Of a real cluster, servers that all refuse connections are waited for only for some
        seconds, as a person waits; a command that follows new records waits as any client.

        Raises:
            click.UsageError: names the option.
            DisconnectedError: each of the servers refuses connections.
        """
        if is_address(self.path):
            if self.foreign_end is not None:
                raise click.UsageError(
                    "--foreign-end is for a broker's log dir, not for a real cluster"
                )
            if not click.get_current_context().params.get("follow"):
                ensure_not_refused(self.path, self.client, within_ms=_REFUSED_MS)
        elif self.client and not self.is_in_bucket:
            raise click.UsageError(
                f"--command-config and -X are for a real cluster, HOST:PORT, or a bucket; {self.path!r} is a folder"
            )


def place_argument(*takes: str) -> Callable[[_Command], Callable[..., Any]]:
    """Return a decorator that adds the argument PATH to a command, which gets it as `place`.

    Where it has `--foreign-end` and `client_options`, they are a part of that.

    Args:
        takes: what it may be; all by default.
    """
    takes = takes or ANYWHERE

    def add(command: _Command) -> Callable[..., Any]:
        @click.argument("path", cls=_PathArgument, type=click.Path(), callback=ensure_is(*takes))
        @functools.wraps(command)
        def with_place(*, path: str, **named: Any) -> Any:
            client = [named.pop(name, None) or {} for name in ("from_file", "single")]
            place = Place(path, client[0] | client[1], named.pop("foreign_end", None))
            return command(place=place, **named)

        return with_place

    return add


CLIENT_PROPERTIES = (
    "File with client properties of a real cluster, such as security.protocol, as Kafka's tools take it; or of a "
    "bucket's store, such as store.endpoint."
)


def client_options(command: _Command) -> _Command:
    """Add the options of a real cluster's client, or of a bucket's store, to a command."""
    # Click adds to the command itself.
    click.option("-X", "single", metavar="KEY=VALUE", multiple=True, callback=parsed(_properties), help="Set one of these properties, over those in the file; may be repeated.")(command)  # fmt: skip
    properties_file_option("--command-config", "from_file", help=CLIENT_PROPERTIES)(command)
    return command


def _properties(words: Sequence[str]) -> dict[str, str]:
    # An error does not repeat values, which may be secret.
    return parse_settings(words, "it is not KEY=VALUE, such as security.protocol=SSL")


def served_at(cluster: Cluster) -> str | None:
    """Return the address at which Kafka's clients reach a cluster now; None if they do not."""
    if cluster.is_remote:
        return cluster.bootstrap_servers
    running = cluster.running_server() if cluster.has("server") else None
    return None if running is None else running.bootstrap_servers
