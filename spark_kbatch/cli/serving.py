"""The server of a cluster."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

import click

from spark_kbatch.cli.output import counted, print_json, print_line
from spark_kbatch.cli.parameters import json_option, settings_given
from spark_kbatch.cli.places import folder_argument
from spark_kbatch.cluster.cluster import Cluster
from spark_kbatch.errors import ConfigError
from spark_kbatch.options.server import parse_address
from spark_kbatch.options.topic import PARTITIONS_MAX, REPLICATION_FACTOR_MAX, topic_key
from spark_kbatch.terminal import visible

_OPTIONS_OF_SERVE = {
    "auto.create.topics.enable": "--no-auto-create",
    "num.partitions": "--num-partitions",
    "default.replication.factor": "--replication-factor",
    "flush": "--flush",
}  # by their keys


def _address(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[str, int]:
    try:
        return parse_address("--listen", text, any_port=True)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


def _advertised(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> str | None:
    try:
        if text is not None:
            parse_address("--advertise", text)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return text


@click.command()
@folder_argument
@click.option("--listen", default="127.0.0.1:9092", show_default=True, metavar="HOST:PORT", callback=_address, help="Address to listen on; port 0 for any free port.")  # fmt: skip
@click.option("--advertise", metavar="HOST:PORT", callback=_advertised, help="Address that clients connect to, if not the one that they have reached.")  # fmt: skip
@click.option("--auto-create/--no-auto-create", default=True, show_default=True, help="Whether a topic is created when a client asks for it.")  # fmt: skip
@click.option("--num-partitions", type=click.IntRange(1, PARTITIONS_MAX), default=1, show_default=True, help="Number of partitions of such a topic.")  # fmt: skip
@click.option("--replication-factor", type=click.IntRange(1, REPLICATION_FACTOR_MAX), default=1, show_default=True, help="Number of its replicas, each in its own log dir.")  # fmt: skip
@click.option("--flush", is_flag=True, help="Flush batches to disk before they are acknowledged.")
@click.option("--set", "given", metavar="KEY=VALUE", multiple=True, callback=settings_given, help="Set another option of the server; may be repeated.")  # fmt: skip
@click.option("--create", is_flag=True, help="Create the cluster if there is none.")
@json_option
def serve(
    path: str,
    listen: tuple[str, int],
    advertise: str | None,
    auto_create: bool,
    num_partitions: int,
    replication_factor: int,
    flush: bool,
    given: dict[str, str],
    create: bool,
    as_json: bool,
) -> None:
    """Serve the cluster at PATH to any Kafka client, until SIGINT or SIGTERM.

    Prints the address once clients can connect. There is no authentication, so by default only this
    machine can connect. Spark jobs and producers on PATH go on beside the server.
    """
    for key in given:
        if topic_key(key) in _OPTIONS_OF_SERVE:
            raise click.UsageError(f"{key!r} is given by {_OPTIONS_OF_SERVE[topic_key(key)]}")
    options: dict[str, Any] = dict(given)
    asked_to_end = threading.Event()

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # so that a second signal ends the process at once
        asked_to_end.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    with (
        Cluster(path, create=create) as cluster,
        cluster.serve(
            *listen,
            advertise=advertise,
            auto_create=auto_create,
            num_partitions=num_partitions,
            replication_factor=replication_factor,
            flush=flush,
            **options,
        ) as server,
    ):
        names = cluster.topic_names()
        if as_json:
            print_json(
                {
                    "path": str(cluster.path),
                    "bootstrap_servers": server.bootstrap_servers,
                    "host": server.host,
                    "port": server.port,
                    "topics": names,
                }
            )
        else:
            shown = f"{counted(names, 'topic')} of {cluster.path}"
            print_line(visible(f"Serving {shown} at {server.bootstrap_servers}; Ctrl+C ends it."))
        asked_to_end.wait()
