"""`kbatch serve`, for Kafka's clients, and `kbatch ui`, for browsers, as `serve --http` is too."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from spark_kbatch import Cluster
from spark_kbatch.cli.output import asked_to_stop, is_json, json_option, print_json, print_line
from spark_kbatch.cli.parameters import (
    config_option,
    examples,
    foreign_end_option,
    gathered,
    log_format_option,
    parsed,
    registry_options,
)
from spark_kbatch.cli.paths import Place, client_options, folder_argument, place_argument
from spark_kbatch.errors import INSTALL_EXTRA, ConfigError
from spark_kbatch.opening.stores import cluster_to_write
from spark_kbatch.options.server import ServerConfig, parse_address
from spark_kbatch.options.topic import PARTITIONS_MAX, REPLICATION_FACTOR_MAX, topic_key
from spark_kbatch.terminal import counted, visible

if TYPE_CHECKING:
    from spark_kbatch import Server
    from spark_kbatch.web.serving import WebServer

logger = logging.getLogger(__name__)

_TOKEN = re.compile("[!-~]{16,}")
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


def _listen_option(name: str, what: str, default: str | None = None) -> Callable[[Any], Any]:
    return click.option(
        name,
        metavar="HOST:PORT",
        default=default,
        show_default=True,
        callback=parsed(functools.partial(parse_address, name, any_port=True)),
        help=f"{what}; port 0 for any free port.",
    )


def _advertised(address: str) -> str:
    parse_address("--advertise", address)
    return address


def _token_file(context: click.Context, _parameter: click.Parameter, path: str | None) -> Any:
    if path and not context.params["token"]:
        raise click.UsageError("--token-file and --no-token exclude each other")
    return path


# Who may look at pages, which a command gets as its argument `visitors`.
_visitors_options = gathered(
    "visitors",
    [
        click.option("--token/--no-token", default=True, show_default=True, is_eager=True, help="Whether the pages need a token. Without one, every user of this machine, and whoever else can connect, sees all records."),
        click.option("--token-file", type=click.Path(exists=True, dir_okay=False), callback=_token_file, help="File with the token, for programs that ask again and again; by default a random one is printed, of `kbatch serve` only on a terminal."),
        click.option("--allow-host", "hosts", metavar="NAME", multiple=True, help="Name by which browsers reach the pages, beside IP addresses and localhost; may be repeated."),
    ],
)  # fmt: skip


def _serve_pages(
    cluster: Cluster,
    address: tuple[str, int],
    server: Server | None = None,
    *,
    registry: Mapping[str, str],
    token: bool,
    hosts: Sequence[str],
    token_file: str | None = None,
) -> tuple[WebServer, str]:
    """Start to show the pages of a cluster; return their server, and the address to print.

    That has the token, unless it is the operator's own. Nor has it that of a server which was not started in a
    terminal: what it prints is kept in a log.

    Raises:
        ConfigError: what the pages are made with is missing, it cannot listen, or the file has no token.
    """
    try:
        from spark_kbatch.web.access import new_token  # noqa: PLC0415  of packages that few need
        from spark_kbatch.web.serving import WebServer  # noqa: PLC0415
        from spark_kbatch.web.site import Site  # noqa: PLC0415
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise ConfigError(
            f"the pages need the package {package}: {INSTALL_EXTRA.format('ui')}"
        ) from None
    needed = _token_in(token_file) if token_file else new_token() if token else None
    pages = WebServer(Site(cluster, server, registry), *address, token=needed, hosts=hosts)
    told = f"?token={needed}" if needed and not token_file else ""
    if told and server is not None and not sys.stdout.isatty():
        logger.warning("the token of %s is told to no one, as stdout is no terminal: give one by --token-file", pages.url)  # fmt: skip
        told = ""
    return pages, f"{pages.url}{told}"


def _token_in(path: str) -> str:
    token = Path(path).read_text("ascii", "replace").strip()
    if not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"{path} has no token: accepted is one word of at least 16 ASCII characters, such as "
            "`openssl rand -hex 32` makes"
        )
    return token


# What `Cluster.serve` takes too, which the command gets as its argument `options`.
_serving_options = gathered(
    "options",
    [
        click.option("--advertise", metavar="HOST:PORT", callback=parsed(_advertised), help="Address that clients connect to, if not the one that they have reached."),
        click.option("--auto-create/--no-auto-create", default=ServerConfig.auto_create_topics_enable, show_default=True, help="Whether a topic is created when a client asks for it."),
        click.option("--partitions", "num_partitions", type=click.IntRange(1, PARTITIONS_MAX), metavar="N", default=ServerConfig.num_partitions, show_default=True, help="Number of partitions of such a topic."),
        click.option("--replication-factor", type=click.IntRange(1, REPLICATION_FACTOR_MAX), metavar="N", default=ServerConfig.default_replication_factor, show_default=True, help="Number of its replicas, each in its own log dir."),
        click.option(
            "--flush",
            is_flag=True,
            default=ServerConfig.flush,
            help="Flush batches to disk before they are acknowledged.",
        ),
    ],
)  # fmt: skip


@click.command(epilog=examples("kbatch serve my-cluster --listen 127.0.0.1:9092 --partitions 4"))
@folder_argument
@_listen_option("--listen", "Address to listen on", default="127.0.0.1:9092")
@_serving_options
@config_option(help="Set another option of the server; may be repeated.")
@_listen_option(
    "--http",
    "Address at which to show the pages of `kbatch ui`, /metrics for Prometheus, /health and /ready",
)
@_visitors_options
@registry_options
@click.option("--create/--no-create", default=True, show_default=True, help="Whether to create the cluster if there is none.")  # fmt: skip
@log_format_option
@json_option
def serve(
    path: str,
    listen: tuple[str, int],
    options: dict[str, Any],
    config: dict[str, str],
    http: tuple[str, int] | None,
    create: bool,
    log_format: str,
    visitors: dict[str, Any],
    registry: Mapping[str, str],
) -> None:
    """Serve a cluster to any Kafka client.

    Prints the address once clients can connect, and runs until SIGINT or SIGTERM; a second one ends it at once.
    There is no authentication, so by default only this machine can connect. Spark jobs and producers on PATH go on beside the server.
    SIGUSR1 prints metrics, as a line of JSON; with --json they are printed at the end, too.
    """
    for key in config:
        if topic_key(key) in _OPTIONS_OF_SERVE:
            raise click.UsageError(f"{key!r} is given by {_OPTIONS_OF_SERVE[topic_key(key)]}")
    if http is None and ("token_file" in visitors or visitors["hosts"] or not visitors["token"]):
        raise click.UsageError("--no-token, --token-file and --allow-host go with --http")
    _be_a_server()
    with (
        _signals() as next_signal,
        cluster_to_write(path) if create else Cluster(path) as cluster,
        cluster.serve(*listen, **(options | config)) as server,
        contextlib.ExitStack() as closing,
    ):
        url = None
        if http is not None:
            pages, url = _serve_pages(cluster, http, server, registry=registry, **visitors)
            closing.enter_context(pages)
        names = cluster.topic_names()
        if is_json() or log_format == "json":
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
        if is_json():
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


@click.command(
    epilog=examples("kbatch ui my-cluster", "kbatch ui broker:9092 --listen 127.0.0.1:8000")
)
@place_argument()
@_listen_option("--listen", "Address to listen on", default="127.0.0.1:8088")
@_visitors_options
@registry_options
@foreign_end_option
@client_options
@log_format_option
@json_option
def ui(
    place: Place,
    listen: tuple[str, int],
    log_format: str,
    visitors: dict[str, Any],
    registry: Mapping[str, str],
) -> None:
    """Show topics, records, groups, commits in a browser.

    Prints the address of the pages, with a token that changes each time, and runs until SIGINT or SIGTERM. The pages
    change nothing. PATH is a cluster, a real broker's log dir, HOST:PORT of a real cluster, or a bucket.
    """
    asked = asked_to_stop()
    with place.open() as cluster:
        pages, url = _serve_pages(cluster, listen, registry=registry, **visitors)
        with pages:
            if is_json() or log_format == "json":
                print_json(
                    {"path": cluster.address, "url": url, "host": pages.host, "port": pages.port}
                )
            else:
                print_line(visible(f"{cluster.address} can be seen at {url}; Ctrl+C ends it."))
            asked.wait()
