"""Servers of object stores, on loopback, with their data in a folder or in memory.

    with moto(folder) as server:
        server.config(), CLIENT         # what `RealObjects` opens `server.url` with
        server.options()                # what our options say of it
        server.environment()            # what a process needs for it that takes all from its environment

    moto        in Python; not atomic
    versitygw   in Go, over a folder; `go install` builds it
    azurite     in Node, for Azure's protocol; from npm
    s3mock      in Java; not atomic; from Maven

A server has one empty bucket. An address of a proxy before the server may stand in for the server's own. The last
three are fetched once, into the folder `build`.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hmac
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.conftest import REPOSITORY
from tests.support.kafka import POM, MissingToolError, class_path, free_ports
from tests.support.waiting import until

BUCKET = "events"
KEY, SECRET = "someone-in-tests", "a-secret-of-tests"
# Of everyone who uses the emulator: it has no other.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
AZURE_VERSION = "2021-08-06"
CLIENT = {"allow_http": True}
FETCHED = REPOSITORY / "build" / "interop"
AZURITE, VERSITYGW = "azurite@3.37.0", "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
S3MOCK_POM = POM.with_name("s3mock-pom.xml")
_START_S = 120

# Each option, as the library's setting.
_SETTINGS = {
    "store.endpoint": "aws_endpoint", "store.region": "aws_region", "store.access.key.id": "aws_access_key_id",
    "store.secret.access.key": "aws_secret_access_key",
}  # fmt: skip
_AZURE_SETTINGS = {
    "store.endpoint": "azure_storage_endpoint", "store.account.name": "azure_storage_account_name",
    "store.account.access.key": "azure_storage_account_key",
}  # fmt: skip


class ObjectServer(NamedTuple):
    """A server that speaks the protocol of S3, or of Azure."""

    address: str  # HOST:PORT
    is_azure: bool = False

    @property
    def url(self) -> str:
        """A place in its bucket."""
        return f"{'az' if self.is_azure else 's3'}://{BUCKET}/place"

    def options(self, address: str = "") -> dict[str, str]:
        """Return our options for it, or for a proxy before it."""
        endpoint = f"http://{address or self.address}"
        if self.is_azure:
            return {
                "store.endpoint": f"{endpoint}/{AZURE_ACCOUNT}", "store.account.name": AZURE_ACCOUNT,
                "store.account.access.key": AZURE_KEY,
            }  # fmt: skip
        return {
            "store.endpoint": endpoint, "store.region": "us-east-1", "store.access.key.id": KEY,
            "store.secret.access.key": SECRET,
        }  # fmt: skip

    def config(self, address: str = "") -> dict[str, str]:
        """Return the library's settings for it, or for a proxy before it."""
        settings = _AZURE_SETTINGS if self.is_azure else _SETTINGS
        return {settings[key]: value for key, value in self.options(address).items()}

    def environment(self, address: str = "") -> dict[str, str]:
        """Return the variables for it, or for a proxy before it."""
        settings = {name.upper(): value for name, value in self.config(address).items()}
        return settings | {("AZURE" if self.is_azure else "AWS") + "_ALLOW_HTTP": "true"}


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
def versitygw(folder: Path) -> Iterator[ObjectServer]:
    """Start a gateway to a folder.

    Raises:
        MissingToolError: there is no Go, or it cannot build it.
    """
    program = FETCHED / "versitygw"
    if not program.exists():
        fetch_tool(["go", "install", VERSITYGW], GOBIN=str(FETCHED))
    (folder / "data" / BUCKET).mkdir(parents=True)
    (port,) = free_ports(1)
    command = [
        str(program), "--access", KEY, "--secret", SECRET, "--port", f"127.0.0.1:{port}", "posix",
        str(folder / "data"),
    ]  # fmt: skip
    with started(command, folder / "versitygw.log", f"http://127.0.0.1:{port}/"):
        yield ObjectServer(f"127.0.0.1:{port}")


@contextlib.contextmanager
def azurite(folder: Path) -> Iterator[ObjectServer]:
    """Start the emulator of Azure's blob storage.

    Raises:
        MissingToolError: there is no npm, or it cannot fetch it.
    """
    program = FETCHED / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        fetch_tool(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(FETCHED / "azurite"), AZURITE])  # fmt: skip
    (port,) = free_ports(1)
    command = [
        str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder),
        "--silent", "--skipApiVersionCheck", "--disableTelemetry",
    ]  # fmt: skip
    with started(command, folder / "azurite.log", f"http://127.0.0.1:{port}/"):
        server = ObjectServer(f"127.0.0.1:{port}", is_azure=True)
        with urllib.request.urlopen(_of_new_container(server), timeout=_START_S):
            yield server


def _of_new_container(server: ObjectServer) -> urllib.request.Request:
    """Return the signed request that makes the bucket; the library has none for it."""
    path, date = f"/{AZURE_ACCOUNT}/{BUCKET}", email.utils.formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": AZURE_VERSION}
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
    text = "\n".join([*lines, f"/{AZURE_ACCOUNT}{path}", "restype:container"])
    digest = hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), "sha256")
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    url = f"http://{server.address}{path}?restype=container"
    return urllib.request.Request(url, method="PUT", headers=headers)


@contextlib.contextmanager
def s3mock(folder: Path) -> Iterator[ObjectServer]:
    """Start Adobe's mock of S3.

    Raises:
        MissingToolError: there is no Maven, or it cannot fetch it.
    """
    classes = class_path(folder, pom=S3MOCK_POM).strip()
    (port,) = free_ports(1)
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    settings = {"http-port": port, "store.root": folder / "data", "store.initial-buckets": BUCKET}
    (folder / "data").mkdir()
    command = [
        str(java), "-XX:TieredStopAtLevel=1", "-cp", classes, "com.adobe.testing.s3mock.S3MockApplication",
        "--server.port=0", *(f"--com.adobe.testing.s3mock.{key}={value}" for key, value in settings.items()),
    ]  # fmt: skip
    with started(command, folder / "s3mock.log", f"http://127.0.0.1:{port}/"):
        yield ObjectServer(f"127.0.0.1:{port}")


def fetch_tool(command: Sequence[str], **variables: str) -> None:
    """Run a command that fetches a tool into `FETCHED`.

    Raises:
        MissingToolError: it is not there, or it fails.
    """
    FETCHED.mkdir(parents=True, exist_ok=True)
    if shutil.which(command[0]) is None:
        raise MissingToolError(f"{command[0]} is not on PATH, and is needed for: {command}")
    done = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise MissingToolError(f"{command} failed:\n{done.stdout}{done.stderr}")


@contextlib.contextmanager
def started(
    command: Sequence[str], log: Path, url: str, *, start_s: int = _START_S
) -> Iterator[None]:
    """Start a server, wait until a URL of it answers anything, and end it in the end."""
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            until(
                lambda: process.poll() is not None or _answers(url),
                f"{command[0]} answers",
                timeout_s=start_s,
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
