"""`kbatch ui`: shows a place of topics in a browser. Its options are those of `kbatch serve --http`, too."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spark_kbatch.cli.output import print_json, print_line
from spark_kbatch.cli.parameters import (
    examples,
    foreign_end_option,
    json_option,
    log_format_option,
    registry_options,
)
from spark_kbatch.cli.paths import client_options, open_readable, path_argument
from spark_kbatch.cli.stopping import asked_to_stop
from spark_kbatch.errors import INSTALL_EXTRA, ConfigError
from spark_kbatch.options.server import parse_address
from spark_kbatch.terminal import visible

if TYPE_CHECKING:
    from spark_kbatch import Cluster, Server
    from spark_kbatch.web.serving import WebServer

logger = logging.getLogger(__name__)

_TOKEN = re.compile("[!-~]{16,}")

_Command = TypeVar("_Command", bound=Callable[..., Any])


def listen_address(
    _context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[str, int] | None:
    """Parse an option's HOST:PORT to listen on; port 0 stands for any free port."""
    if text is None:
        return None
    try:
        return parse_address(f"--{parameter.name}", text, any_port=True)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


def _token_file(
    context: click.Context, _parameter: click.Parameter, path: str | None
) -> str | None:
    if path and not context.params["token"]:
        raise click.UsageError("--token-file and --no-token exclude each other")
    return path


_OF_VISITORS: Sequence[Callable[[Any], Any]] = (
    click.option("--token/--no-token", default=True, show_default=True, is_eager=True, help="Whether the pages need a token. Without one, every user of this machine, and whoever else can connect, sees all records."),
    click.option("--token-file", type=click.Path(exists=True, dir_okay=False), callback=_token_file, help="File with the token, for programs that ask again and again; by default a random one is printed, of `kbatch serve` only on a terminal."),
    click.option("--allow-host", "hosts", metavar="NAME", multiple=True, help="Name by which browsers reach the pages, beside IP addresses and localhost; may be repeated."),
    registry_options,
)  # fmt: skip


def visitors_options(command: _Command) -> Callable[..., Any]:
    """Add the options of pages and who may look to a command, which gets those of `serve_pages` by name."""
    for option in reversed(_OF_VISITORS):
        command = option(command)
    return command


def serve_pages(
    cluster: Cluster,
    address: tuple[str, int],
    server: Server | None = None,
    *,
    token: bool,
    token_file: str | None,
    hosts: Sequence[str],
    registry: Mapping[str, str],
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


@click.command(
    epilog=examples("kbatch ui my-cluster", "kbatch ui broker:9092 --listen 127.0.0.1:8000")
)
@path_argument
@click.option("--listen", default="127.0.0.1:8088", show_default=True, metavar="HOST:PORT", callback=listen_address, help="Address to listen on; port 0 for any free port.")  # fmt: skip
@visitors_options
@foreign_end_option
@client_options
@log_format_option
@json_option
def ui(
    path: str,
    listen: tuple[str, int],
    foreign_end: str | None,
    client: Mapping[str, str],
    log_format: str,
    as_json: bool,
    **visitors: Any,
) -> None:
    """Show topics, records, groups and commits in a browser.

    Prints the address of the pages, with a token that changes each time, and runs until SIGINT or SIGTERM. The pages
    change nothing. PATH is a cluster, a real broker's log dir, HOST:PORT of a real cluster, or a bucket.
    """
    asked = asked_to_stop()
    with open_readable(path, client, foreign_end) as cluster:
        pages, url = serve_pages(cluster, listen, **visitors)
        with pages:
            if as_json or log_format == "json":
                print_json(
                    {"path": cluster.address, "url": url, "host": pages.host, "port": pages.port}
                )
            else:
                print_line(visible(f"{cluster.address} can be seen at {url}; Ctrl+C ends it."))
            asked.wait()
