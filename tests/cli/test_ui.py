"""`kbatch ui` and `kbatch serve --http`, in processes of their own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from tests.conftest import REPOSITORY
from tests.support import builders

KBATCH = "from spark_kbatch.cli.main import main; main()"
WITHOUT = "import sys; sys.modules[{!r}] = None\n" + KBATCH
TIMEOUT_S = 60
TOKEN = "the-operators-own-token"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return builders.a_cluster(tmp_path).path


@contextlib.contextmanager
def running(*words: str | Path, program: str = KBATCH) -> Iterator[subprocess.Popen[str]]:
    """Start a command, and end it in any case."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)],
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert process.stderr is not None
    return process.stdout.readline() or pytest.fail(process.stderr.read())


def url_in(line: str) -> str:
    found = re.search(r"http://[^;\s]*", line)
    assert found is not None, line
    return found[0]


def status(url: str, headers: dict[str, str] | None = None) -> int:
    parts = urllib.parse.urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("GET", f"{parts.path}?{parts.query}", headers=headers or {})
        return connection.getresponse().status


def ended(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


def refused(*words: str | Path, program: str = KBATCH) -> tuple[int, str]:
    """Run a command that ends by itself; return its code and what it says of an error."""
    with running(*words, program=program) as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert out == ""
    return process.returncode, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_an_address_with_a_new_token_is_printed_and_a_signal_ends_it(
    path: Path, number: signal.Signals
) -> None:
    tokens = set()
    for _ in range(2):
        with running("ui", path, "--listen", "127.0.0.1:0") as process:
            line = line_of(process)
            url = url_in(line)
            token = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)["token"][0]
            tokens.add(token)
            assert status(url) == 303
            assert status(url.replace(token, "x" * len(token))) == 401
            for of in ("cmdline", "environ"):  # what others may see of a process
                there = Path(f"/proc/{process.pid}/{of}")
                assert not there.exists() or token.encode() not in there.read_bytes()
            assert ended(process, number) == (0, "", "")
        assert line.startswith(f"{path} can be seen at http://127.0.0.1:")
    assert len(tokens) == 2
    assert {len(one) for one in tokens} == {43}  # 32 bytes


def test_as_json_it_is_one_object(path: Path) -> None:
    with running("ui", path, "--listen", "127.0.0.1:0", "--json") as process:
        told = json.loads(line_of(process))
        assert status(told["url"]) == 303
        assert ended(process) == (0, "", "")
    assert told["url"].startswith(f"http://{told['host']}:{told['port']}/?token=")
    assert told["path"] == str(path)


def test_a_token_from_a_file_is_not_printed(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with running("ui", path, "--listen", "127.0.0.1:0", "--token-file", file) as process:
        line = line_of(process)
        assert status(url_in(line)) == 401
        assert status(url_in(line), {"Authorization": f"Bearer {TOKEN}"}) == 200
        assert ended(process) == (0, "", "")
    assert TOKEN not in line


@pytest.mark.parametrize(
    "content", [b"", b"short", b"two words that are long", b"\xff" * 20, "ä".encode() * 20], ids=str
)
def test_a_file_without_a_token_is_refused(path: Path, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)

    code, err = refused("ui", path, "--listen", "127.0.0.1:0", "--token-file", file)

    assert code == 1
    assert f"{file} has no token: accepted is one word of at least 16" in err


def test_without_a_token_it_says_what_that_opens(path: Path) -> None:
    with running("ui", path, "--listen", "127.0.0.1:0", "--no-token") as process:
        url = url_in(line_of(process))
        assert status(url) == 200
        code, _, err = ended(process)
    assert code == 0
    assert f"{url} asks for no token: every user of this machine sees all topics and records" in err


def test_a_port_that_is_taken_is_told_with_what_to_do(path: Path) -> None:
    with running("ui", path, "--listen", "127.0.0.1:0", "--json") as process:
        address = "{host}:{port}".format(**json.loads(line_of(process)))
        code, err = refused("ui", path, "--listen", address)

    assert code == 1
    assert f"cannot listen at {address}" in err
    assert "choose another address, or port 0 for any free port" in err


def test_a_server_whose_pages_cannot_be_shown_ends_and_leaves_the_folder_to_others(
    path: Path,
) -> None:
    with running("ui", path, "--listen", "127.0.0.1:0", "--json") as process:
        address = "{host}:{port}".format(**json.loads(line_of(process)))
        code, err = refused("serve", path, "--listen", "127.0.0.1:0", "--http", address)

    assert code == 1
    assert f"cannot listen at {address}" in err
    with Cluster(path) as cluster:
        assert cluster.running_server() is None
        with cluster.serve() as server:
            assert server.port


@pytest.mark.parametrize("form", [[], ["--json"], ["--log-format", "json"]], ids=" ".join)
def test_a_server_shows_its_pages_and_tells_its_token_to_no_log(
    path: Path, form: Sequence[str]
) -> None:
    """What it prints off a terminal is kept by whoever has started it."""
    words = ["serve", path, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *form]
    with running(*words) as process:
        line = line_of(process)
        if form:
            url = json.loads(line)["url"]
        else:
            assert line.startswith("Serving 1 topic")
            line = line_of(process)
            assert line.startswith("It can be seen at http://127.0.0.1:")
            url = url_in(line)
        assert (status(url), status(f"{url}ready")) == (401, 200)
        code, out, err = ended(process)

    assert code == 0
    assert "token" not in line + out
    assert f"the token of {url} is told to no one, as stdout is no terminal" in err
    assert re.search(r"[\w-]{43}", line + out + err) is None


def test_a_server_prints_its_token_on_a_terminal(path: Path) -> None:
    words = ["serve", path, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    terminal, inside = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", KBATCH, *map(str, words)], cwd=REPOSITORY, stdout=inside
    ) as process:
        try:
            os.close(inside)
            shown = b""
            while b"?token=" not in shown or not shown.endswith(b"\n"):
                shown += os.read(terminal, 1000)
            assert status(url_in(shown.decode().splitlines()[-1])) == 303
        finally:
            process.kill()
    os.close(terminal)


@pytest.mark.parametrize("command", ["ui", "serve"])
def test_with_a_log_of_json_all_that_is_printed_is_json(path: Path, command: str) -> None:
    words = {"ui": ["--listen", "127.0.0.1:0"], "serve": ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]}  # fmt: skip
    with running(command, path, *words[command], "--log-format", "json") as process:
        line = line_of(process)
        _, out, err = ended(process)

    told, *logged = [json.loads(one) for one in (line + out + err).splitlines()]
    assert told["path"] == str(path)
    assert told["url"].startswith("http://127.0.0.1:")
    assert [one["level"] for one in logged] == ["WARNING"] * (command == "serve")


@pytest.mark.parametrize(
    "words", [["--no-token"], ["--allow-host", "kbatch.example"]], ids=" ".join
)
def test_options_of_pages_go_with_pages(path: Path, words: Sequence[str]) -> None:
    code, err = refused("serve", path, "--listen", "127.0.0.1:0", *words)

    assert code == 2
    assert "--no-token, --token-file and --allow-host go with --http" in err


@pytest.mark.parametrize("command", ["ui", "serve"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_token_and_none_are_not_asked_for_together(
    tmp_path: Path, command: str, *, reverse: bool
) -> None:
    file, there = tmp_path / "token", {"ui": ["--listen"], "serve": ["--http"]}[command]
    file.write_text(TOKEN)
    pair = [["--no-token"], ["--token-file", str(file)]]
    pair = pair[::-1] if reverse else pair

    code, err = refused(command, tmp_path / "none", *there, "127.0.0.1:0", *pair[0], *pair[1])

    assert code == 2
    assert "--token-file and --no-token exclude each other" in err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("package", ["starlette", "jinja2", "uvicorn"])
def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(
    path: Path, package: str
) -> None:
    code, err = refused("ui", path, "--listen", "127.0.0.1:0", program=WITHOUT.format(package))

    assert code == 1
    assert f"the pages need the package {package}: " in err
    assert "[ui]" in err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_of_the_machine_sees_nothing(path: Path) -> None:
    path.parent.chmod(0o700)

    def as_nobody(script: str) -> str:
        return subprocess.run(
            ["bash", "-c", script], user=65534, group=65534, extra_groups=[], cwd="/", stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, check=False, timeout=TIMEOUT_S,
        ).stdout  # fmt: skip

    with running("ui", path, "--listen", "127.0.0.1:0", "--json") as process:
        told = json.loads(line_of(process))
        token = told["url"].partition("token=")[2]
        request = r"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        asks = f'exec 3<>/dev/tcp/{told["host"]}/{told["port"]}; printf "{request}" >&3; cat <&3'
        answer = as_nobody(asks)
        seen = as_nobody(f"cat /proc/{process.pid}/cmdline /proc/{process.pid}/environ; ls {path}")
    assert answer.startswith("HTTP/1.1 401 ")
    for text in (answer, seen):
        assert token not in text
        assert "events" not in text
