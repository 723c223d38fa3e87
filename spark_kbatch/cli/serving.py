"""`kbatch serve`: serves a cluster in a folder to Kafka clients."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from spark_kbatch import Cluster
from spark_kbatch.cli.output import print_json, print_line
from spark_kbatch.cli.parameters import examples, json_option, log_format_option, settings_given
from spark_kbatch.cli.paths import folder_argument
from spark_kbatch.cli.ui import listen_address, serve_pages, visitors_options
from spark_kbatch.errors import ConfigError
from spark_kbatch.opening.stores import cluster_to_write
from spark_kbatch.options.server import ServerConfig, parse_address
from spark_kbatch.options.topic import PARTITIONS_MAX, REPLICATION_FACTOR_MAX, topic_key
from spark_kbatch.terminal import counted, visible

if TYPE_CHECKING:
    from spark_kbatch import Server

# After this time a thread that computes lets others go on; Python's own 5 ms would add up for a request that
# several threads have a hand in.
_SWITCH_INTERVAL_S = 0.0005
_M_ARENA_MAX = -8  # of malloc.h
# A full collection stops all threads for a tenth of a second or more, and large requests would cause many. It
# finds little: what requests leave behind is mostly freed without it.
_COLLECTED_EVERY = 5_000, 5, 5_000

_OPTIONS_OF_SERVE = {
    "auto.create.topics.enable": "--no-auto-create",
    "num.partitions": "--partitions",
    "default.replication.factor": "--replication-factor",
    "flush": "--flush",
}  # by their keys


def _advertised(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> str | None:
    try:
        if text is not None:
            parse_address("--advertise", text)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return text


@click.command(epilog=examples("kbatch serve my-cluster --listen 127.0.0.1:9092 --partitions 4"))
@folder_argument
@click.option("--listen", default="127.0.0.1:9092", show_default=True, metavar="HOST:PORT", callback=listen_address, help="Address to listen on; port 0 for any free port.")  # fmt: skip
@click.option("--advertise", metavar="HOST:PORT", callback=_advertised, help="Address that clients connect to, if not the one that they have reached.")  # fmt: skip
@click.option("--auto-create/--no-auto-create", default=ServerConfig.auto_create_topics_enable, show_default=True, help="Whether a topic is created when a client asks for it.")  # fmt: skip
@click.option("--partitions", type=click.IntRange(1, PARTITIONS_MAX), metavar="N", default=ServerConfig.num_partitions, show_default=True, help="Number of partitions of such a topic.")  # fmt: skip
@click.option("--replication-factor", type=click.IntRange(1, REPLICATION_FACTOR_MAX), metavar="N", default=ServerConfig.default_replication_factor, show_default=True, help="Number of its replicas, each in its own log dir.")  # fmt: skip
@click.option(
    "--flush",
    is_flag=True,
    default=ServerConfig.flush,
    help="Flush batches to disk before they are acknowledged.",
)
@click.option("--config", "given", metavar="KEY=VALUE", multiple=True, callback=settings_given, help="Set another option of the server; may be repeated.")  # fmt: skip
@click.option("--http", metavar="HOST:PORT", callback=listen_address, help="Address at which to show the pages of `kbatch ui`, /metrics for Prometheus, /health and /ready; port 0 for any free port.")  # fmt: skip
@visitors_options
@click.option("--create/--no-create", default=True, show_default=True, help="Whether to create the cluster if there is none.")  # fmt: skip
@log_format_option
@json_option
def serve(
    path: str,
    listen: tuple[str, int],
    advertise: str | None,
    auto_create: bool,
    partitions: int,
    replication_factor: int,
    flush: bool,
    given: dict[str, str],
    http: tuple[str, int] | None,
    create: bool,
    log_format: str,
    as_json: bool,
    **visitors: Any,
) -> None:
    """Serve a cluster to any Kafka client.

    Prints the address once clients can connect, and runs until SIGINT or SIGTERM; a second one ends it at once.
    There is no authentication, so by default only this machine can connect. Spark jobs and producers on PATH go on beside the server.
    SIGUSR1 prints metrics, as a line of JSON; with --json they are printed at the end, too.
    """
    for key in given:
        if topic_key(key) in _OPTIONS_OF_SERVE:
            raise click.UsageError(f"{key!r} is given by {_OPTIONS_OF_SERVE[topic_key(key)]}")
    if http is None and (visitors["token_file"] or visitors["hosts"] or not visitors["token"]):
        raise click.UsageError("--no-token, --token-file and --allow-host go with --http")
    options: dict[str, Any] = dict(given)
    _be_a_server()
    with (
        _signals() as next_signal,
        cluster_to_write(path) if create else Cluster(path) as cluster,
        cluster.serve(
            *listen,
            advertise=advertise,
            auto_create=auto_create,
            num_partitions=partitions,
            replication_factor=replication_factor,
            flush=flush,
            **options,
        ) as server,
        contextlib.ExitStack() as closing,
    ):
        url = None
        if http is not None:
            pages, url = serve_pages(cluster, http, server, **visitors)
            closing.enter_context(pages)
        names = cluster.topic_names()
        if as_json or log_format == "json":
            print_json(
                {
                    "path": str(cluster.path),
                    "bootstrap_servers": server.bootstrap_servers,
                    "host": server.host,
                    "port": server.port,
                    "topics": names,
                    **({"url": url} if url else {}),
                }
            )
        else:
            shown = f"{counted(len(names), 'topic')} of {cluster.path}"
            print_line(visible(f"Serving {shown} at {server.bootstrap_servers}; Ctrl+C ends it."))
            if url:
                print_line(visible(f"It can be seen at {url}"))
        _tell_systemd("READY=1")
        while next_signal() == signal.SIGUSR1:
            _print_metrics(cluster, server)
        _tell_systemd("STOPPING=1")
        if as_json:
            _print_metrics(cluster, server)


def _be_a_server() -> None:
    """Let no thread of this process, nor its garbage collector, stop the others for long, nor keep memory.

    glibc keeps what a thread has freed for that thread; with two arenas for all of them, others can use it.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTED_EVERY)


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[], int]]:
    """Yield a function that waits for SIGINT, SIGTERM or SIGUSR1, and returns its number."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGUSR1:
            # So that a second signal ends the process at once.
            signal.signal(number, signal.SIG_DFL)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # Through a file, because Python runs handlers between two steps of the main thread: a signal that arrives
    # just before that thread starts to wait for a lock would be noticed when the wait ends, so never.
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, on_signal)
    try:
        yield lambda: os.read(reader, 1)[0]
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


def _tell_systemd(state: str) -> None:
    """Tell systemd how far the service is, if it has started this process with Type=notify.

    Source: sd_notify(3).
    """
    address = re.sub("^@", "\0", os.environ.get("NOTIFY_SOCKET", ""))  # "@" is of abstract ones
    if address:
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        ):
            manager.sendto(state.encode(), address)


def _print_metrics(cluster: Cluster, server: Server) -> None:
    print_json({"metrics": {**cluster.metrics(), **server.metrics()}})
