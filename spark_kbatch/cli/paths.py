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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.cli.parameters import client_properties_given, properties_of
from spark_kbatch.errors import KBatchError
from spark_kbatch.opening.stores import (
    cluster_to_write,
    ensure_not_refused,
    open_for_reading,
    open_reader,
)
from spark_kbatch.options.paths import bucket_scheme, is_in_memory
from spark_kbatch.options.remote import is_address
from spark_kbatch.terminal import visible

PATH_VARIABLE = "KBATCH_PATH"
_REFUSED_MS = 5000

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _PathArgument(click.Argument):
    """The argument PATH of a command, which defaults to the environment variable KBATCH_PATH."""

    def make_metavar(self, ctx: click.Context) -> str:
        """Return how the usage text shows the argument PATH."""
        return "[PATH]"

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return what error messages call the argument PATH."""
        return "'PATH'"


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
    if first is not None and (len(arguments) == 1 or _is_path(first)):
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


def _is_path(word: str) -> bool:
    return "/" in word or word in (".", "..", "~") or is_address(word)


# What is said of some commands for folders where they are given a bucket.
_IN_A_BUCKET = {
    "gc": ", and `kbatch maintain` is its like for a bucket",
    "log-dirs": ", as a bucket has no disks to look after: `kbatch describe` shows what is in one",
    "serve": ", and no bucket can be served yet: Kafka's clients reach a folder or a real cluster",
}


def client_options(command: _Command) -> Callable[..., Any]:
    """Add the options `--command-config` and `-X` to a command, which gets both as its argument `client`."""

    @click.option("--command-config", "from_file", type=click.Path(exists=True, dir_okay=False), callback=properties_of, help="File with client properties of a real cluster, such as security.protocol, as Kafka's tools take it; or of a bucket's store, such as store.endpoint.")  # fmt: skip
    @click.option("-X", "single", metavar="KEY=VALUE", multiple=True, callback=client_properties_given, help="Set one of these properties, over those in the file; may be repeated.")  # fmt: skip
    @functools.wraps(command)
    def with_client(
        *given: Any, single: dict[str, str], from_file: dict[str, str], **named: Any
    ) -> Any:
        return command(*given, client=from_file | single, **named)

    return with_client


def ensure_outlives_command(context: click.Context, _parameter: click.Parameter, path: Any) -> Any:
    """Return a PATH unchanged, refusing topics in memory, which end with the process of the command."""
    if is_in_memory(path):
        raise click.BadParameter(
            f"{path!r} is in the memory of one process, and gone when `{context.command_path}` ends; accepted: "
            "a folder, HOST:PORT of a real cluster, or the URL of a bucket"
        )
    return path


def ensure_folder(context: click.Context, _parameter: click.Parameter, path: Any) -> Any:
    """Return a PATH unchanged, refusing the address of a real cluster, and the URL of a bucket."""
    for what, is_one in (
        ("address of a real cluster", is_address),
        ("URL of a bucket", bucket_scheme),
    ):
        if path is not None and is_one(path):
            raise click.BadParameter(
                f"{path!r} is the {what}; `{context.command_path}` works on a folder"
                f"{_IN_A_BUCKET.get(context.info_name or '', '') if bucket_scheme(path) else ''}"
            )
    return path


def ensure_not_remote(context: click.Context, _parameter: click.Parameter, path: Any) -> Any:
    """Return a PATH unchanged, refusing the address of a real cluster."""
    if path is not None and is_address(path):
        raise click.BadParameter(
            f"{path!r} is the address of a real cluster; `{context.command_path}` works on a folder or a bucket"
        )
    return path


def ensure_bucket(context: click.Context, _parameter: click.Parameter, path: Any) -> Any:
    """Return a PATH unchanged, refusing what is no URL of a bucket."""
    if path is not None and not bucket_scheme(path):
        raise click.BadParameter(
            f"{path!r} is no URL of a bucket, such as s3://BUCKET/PREFIX; `{context.command_path}` works on a bucket"
        )
    return path


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


path_argument = click.argument(
    "path", cls=_PathArgument, type=click.Path(), callback=ensure_outlives_command
)
folder_argument = click.argument(
    "path", cls=_PathArgument, type=click.Path(), callback=ensure_folder
)
stored_argument = click.argument(
    "path", cls=_PathArgument, type=click.Path(), callback=ensure_not_remote
)
bucket_argument = click.argument(
    "path", cls=_PathArgument, type=click.Path(), callback=ensure_bucket
)
topic_argument = click.argument("topic", shell_complete=complete_topic)


def open_readable(path: str, client: Mapping[str, str], foreign_end: str | None) -> Cluster:
    """Open the cluster, real cluster or broker's logs at PATH, for reading."""
    ensure_goes_with(path, client)
    if is_address(path):
        return spark_kbatch.connect(path, client)
    return open_for_reading(path, foreign_end=foreign_end, client=client)


def open_cluster(path: str, client: Mapping[str, str], *, create: bool = False) -> Cluster:
    """Open the cluster that PATH names; with `create`, create one in a folder or bucket if there is none."""
    ensure_goes_with(path, client)
    if is_address(path):
        return spark_kbatch.connect(path, client)
    if create:
        return cluster_to_write(path, client)
    return open_for_reading(path, client=client) if bucket_scheme(path) else Cluster(path)


def open_topic_reader(path: str, client: Mapping[str, str], foreign_end: str | None) -> Any:
    """Return a reader of record ranges for the topics at PATH."""
    ensure_goes_with(path, client)
    return open_reader(path, foreign_end=foreign_end, client=client)


def ensure_goes_with(path: str, client: Mapping[str, str]) -> None:
    """Refuse command options that do not fit PATH, such as client settings with a folder.

    Of a real cluster, servers that all refuse connections are waited for only for some seconds, as
    a person waits; a command that follows new records waits as any client.

    Raises:
        click.UsageError: names the option.
        DisconnectedError: each of the servers refuses connections.
    """
    if is_address(path):
        given = click.get_current_context().get_parameter_source("foreign_end")
        if given is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                "--foreign-end is for a broker's log dir, not for a real cluster"
            )
        if not click.get_current_context().params.get("follow"):
            ensure_not_refused(path, client, within_ms=_REFUSED_MS)
    elif client and not bucket_scheme(path):
        raise click.UsageError(
            f"--command-config and -X are for a real cluster, HOST:PORT, or a bucket; {path!r} is a folder"
        )
