"""The places that commands work on: a cluster's folder, a broker's logs, or a real cluster over the network.

PATH may be HOST:PORT of a real cluster, or several of these with commas between them, for commands that go with one.
The options of its client come from `--config` and `-X`, and stay out of everything that is printed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from spark_kbatch.cli.parameters import properties_of
from spark_kbatch.cluster.broker_logs import BrokerLogs
from spark_kbatch.cluster.cluster import Cluster
from spark_kbatch.opening import open_for_reading
from spark_kbatch.options.remote import is_address

if TYPE_CHECKING:
    from spark_kbatch.remote.cluster import RemoteCluster

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _client_options(
    _context: click.Context, _parameter: click.Parameter, words: Sequence[str]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals):  # the word may be a secret
            raise click.BadParameter("it is not KEY=VALUE, such as security.protocol=SSL")
        if key in found:
            raise click.BadParameter(f"{key!r} is given twice")
        found[key] = value
    return found


def client_options(command: _Command) -> Callable[..., Any]:
    """Give a command the options `--config` and `-X`, which arrive together as the argument `client`."""

    @click.option("--config", "from_file", type=click.Path(exists=True, dir_okay=False), callback=properties_of, help="File with client properties of a real cluster, such as security.protocol, as Kafka's tools take it.")  # fmt: skip
    @click.option("-X", "single", metavar="KEY=VALUE", multiple=True, callback=_client_options, help="Set one of these properties, over those in the file; may be repeated.")  # fmt: skip
    @functools.wraps(command)
    def with_client(
        *given: Any, single: dict[str, str], from_file: dict[str, str], **named: Any
    ) -> Any:
        return command(*given, client=from_file | single, **named)

    return with_client


def ensure_folder(context: click.Context, _parameter: click.Parameter, path: Any) -> Any:
    """Return a path that is not the address of a real cluster."""
    if path is not None and is_address(path):
        raise click.BadParameter(
            f"{path!r} is the address of a real cluster; `{context.command_path}` works on a folder"
        )
    return path


folder_argument = click.argument("path", callback=ensure_folder)


def open_readable(
    path: str, client: Mapping[str, str], foreign_end: str
) -> Cluster | BrokerLogs | RemoteCluster:
    """Open what PATH names, to read."""
    ensure_goes_with(path, client)
    if is_address(path):
        return _connect(path, client)
    return open_for_reading(path, foreign_end=foreign_end)


def open_cluster(path: str, client: Mapping[str, str]) -> Cluster | RemoteCluster:
    """Open the cluster that PATH names."""
    ensure_goes_with(path, client)
    return _connect(path, client) if is_address(path) else Cluster(path)


def is_remote(cluster: Cluster | BrokerLogs | RemoteCluster) -> bool:
    """Return True for a real cluster."""
    return not isinstance(cluster, (Cluster, BrokerLogs))


def name_of(cluster: Cluster | BrokerLogs | RemoteCluster) -> str:
    """Return what a cluster is called in output."""
    if isinstance(cluster, (Cluster, BrokerLogs)):
        return str(cluster.path)
    return cluster.bootstrap_servers


def _connect(address: str, client: Mapping[str, str]) -> RemoteCluster:
    # Loads the network, which takes longer than most commands.
    from spark_kbatch.remote.cluster import connect_to  # noqa: PLC0415

    return connect_to(address, dict(client), {})


def ensure_goes_with(path: str, client: Mapping[str, str]) -> None:
    """Check that the command's options are for what PATH names.

    Raises:
        click.UsageError: names the option.
    """
    if is_address(path):
        given = click.get_current_context().get_parameter_source("foreign_end")
        if given is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                "--foreign-end is for a broker's log dir, not for a real cluster"
            )
    elif client:
        raise click.UsageError(
            f"--config and -X are for a real cluster, HOST:PORT; {path!r} is a folder"
        )
