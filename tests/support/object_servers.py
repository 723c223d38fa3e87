"""Servers of object stores, on loopback, with their data in a folder or in memory.

    with moto(folder) as server:
        server.config(), CLIENT         # what `RealObjects` opens `server.url` with
        server.environment()            # what a process needs for it that takes all from its environment

A server has one empty bucket. An address of a proxy before the server may stand in for the server's own.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.kafka import free_ports
from tests.support.waiting import until

BUCKET = "events"
KEY, SECRET = "someone-in-tests", "a-secret-of-tests"
CLIENT = {"allow_http": True}
_START_S = 60


class ObjectServer(NamedTuple):
    """A server that speaks the protocol of S3."""

    address: str  # HOST:PORT

    @property
    def url(self) -> str:
        """A place in its bucket."""
        return f"s3://{BUCKET}/place"

    def config(self, address: str = "") -> dict[str, str]:
        """Return the library's settings for it, or for a proxy before it."""
        return {
            "aws_endpoint": f"http://{address or self.address}", "aws_region": "us-east-1",
            "aws_access_key_id": KEY, "aws_secret_access_key": SECRET,
        }  # fmt: skip

    def options(self, address: str = "") -> dict[str, str]:
        """Return our options for it, or for a proxy before it."""
        return {
            "store.endpoint": f"http://{address or self.address}", "store.region": "us-east-1",
            "store.access.key.id": KEY, "store.secret.access.key": SECRET,
        }  # fmt: skip

    def environment(self, address: str = "") -> dict[str, str]:
        """Return the variables for it, or for a proxy before it."""
        settings = {name.upper(): value for name, value in self.config(address).items()}
        return settings | {"AWS_ALLOW_HTTP": "true"}


@contextlib.contextmanager
def moto(folder: Path) -> Iterator[ObjectServer]:
    """Start moto's server, which keeps everything in its memory, and does not check who asks."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with started(command, folder / "moto.log", f"http://127.0.0.1:{port}/moto-api/data.json"):
        server = ObjectServer(f"127.0.0.1:{port}")
        request = urllib.request.Request(f"http://{server.address}/{BUCKET}", method="PUT")
        request.add_header("Authorization", f"AWS4-HMAC-SHA256 Credential={KEY}/0/us-east-1/s3/aws4_request")  # fmt: skip
        with urllib.request.urlopen(request, timeout=_START_S):
            yield server


@contextlib.contextmanager
def started(command: Sequence[str], log: Path, url: str) -> Iterator[None]:
    """Start a server, wait until a URL of it answers anything, and end it in the end."""
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            until(
                lambda: process.poll() is not None or _answers(url),
                f"{command[0]} answers",
                timeout_s=_START_S,
            )
            assert process.poll() is None, log.read_text(errors="replace")[-4000:]
            yield
        finally:
            process.send_signal(signal.SIGKILL)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
