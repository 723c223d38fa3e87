"""Who may look at pages, what an answer lets a browser do, and what a visitor can cost the others."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import logging
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.errors import KafkaStorageError
from spark_kbatch.web import access as access_module
from spark_kbatch.web import app as app_module
from spark_kbatch.web import serving
from spark_kbatch.web import site as site_module
from spark_kbatch.web.access import HEADERS, OPEN_PATHS
from spark_kbatch.web.app import application
from spark_kbatch.web.history import Samples
from spark_kbatch.web.serving import WebServer
from spark_kbatch.web.site import Site
from tests.support import builders
from tests.support.pages import TIMEOUT_S, TOKEN, Page, Visitor, shown
from tests.support.served import Served
from tests.support.waiting import until

WRONG = "another-token-than-the-one-that-is-right"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return builders.a_cluster(tmp_path_factory.mktemp("access"))


@pytest.fixture(scope="module")
def pages(cluster: Cluster) -> Iterator[WebServer]:
    with shown(cluster) as pages:
        yield pages


@pytest.fixture(scope="module")
def visitor(pages: WebServer) -> Visitor:
    return Visitor(pages)


@pytest.fixture
def stranger(pages: WebServer) -> Visitor:
    return Visitor(pages, None)


def addresses(cluster: Cluster) -> list[str]:
    """Return an address of each route of the application."""
    routes = application(Site(cluster)).routes
    assert all(isinstance(one, Route) for one in routes)
    # Of those with numbers there may be nothing to show, which is a page too.
    paths = [one.path for one in routes if isinstance(one, Route)]
    return [re.sub(r"\{\w+\}", "0", one.replace("{topic}", "events")) for one in paths]


def raw(pages: WebServer, request: str) -> tuple[int, str]:
    """Send a request as it is; return the status and all of the answer."""
    with socket.create_connection((pages.host, pages.port), TIMEOUT_S) as sock:
        sock.sendall(request.encode("latin-1"))
        sock.settimeout(TIMEOUT_S)
        answer = http.client.HTTPResponse(sock)
        answer.begin()
        return answer.status, f"{answer.headers}{answer.read().decode()}"


# The token.


def test_no_route_but_those_of_probes_answers_without_the_token(
    cluster: Cluster, stranger: Visitor
) -> None:
    asked = {one: stranger.ask(one) for one in addresses(cluster)}

    assert {one for one, page in asked.items() if page.status != 401} == OPEN_PATHS
    for address, page in asked.items():
        assert "events" not in page.text, address
        assert cluster.address not in page.text, address


def test_probes_tell_that_the_process_answers_and_nothing_else(stranger: Visitor) -> None:
    assert {one: stranger.ask(one).text for one in sorted(OPEN_PATHS)} == {
        "/health": "ok\n",
        "/ready": "ready\n",
    }


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {WRONG}"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"Cookie": f"kbatch={TOKEN}"},
        {"Cookie": f"kbatch-1={TOKEN}"},  # of a server at another port
        {"Cookie": "kbatch-{port}=" + WRONG},
        {"Cookie": "kbatch-{port}="},
        {"Cookie": 'other="; kbatch-{port}"; x=y'},
        {"X-Token": TOKEN},
    ],
    ids=str,
)
def test_nothing_but_the_token_opens_the_pages(stranger: Visitor, headers: dict[str, str]) -> None:
    given = {name: text.replace("{port}", str(stranger.port)) for name, text in headers.items()}

    assert stranger.ask("/", headers=given).status == 401
    assert stranger.ask(f"/?token={WRONG}").status == 401
    assert stranger.ask("/?token=").status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {TOKEN}"},
        {"Authorization": f"bearer  {TOKEN} "},
        {"Cookie": "kbatch-{port}=" + TOKEN},
        {"Cookie": "b@d{}=1;kbatch-{port}=" + TOKEN + "; other=a b"},
    ],
    ids=str,
)
def test_the_token_opens_the_pages(stranger: Visitor, headers: dict[str, str]) -> None:
    given = {name: text.replace("{port}", str(stranger.port)) for name, text in headers.items()}

    assert stranger.ask("/", headers=given).status == 200


def test_tokens_are_compared_in_the_same_time_whatever_is_given(
    stranger: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared, compare = list[tuple[bytes, bytes]](), secrets.compare_digest

    def spied(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(access_module.secrets, "compare_digest", spied)
    stranger.ask(f"/?token={WRONG}")
    stranger.ask("/", headers={"Authorization": f"Bearer {WRONG}"})
    stranger.ask("/", headers={"Cookie": f"kbatch-{stranger.port}={WRONG}"})

    assert compared.count((WRONG.encode(), TOKEN.encode())) == 3


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("/?token=T", "/"),
        ("/?a=b&token=T&c=d%26e", "/?a=b&c=d%26e"),
        (f"/?token={WRONG}&token=T", "/"),
        ("/topics/a%3Fb%2Fc?token=T", "/topics/a%3Fb%2Fc"),
        ("//evil.example/?token=T", "/evil.example/"),
        ("/\\evil.example?token=T", "/evil.example"),
        ("/%5Cevil.example?token=T", "/%5Cevil.example"),
        ("/%2Fevil.example?token=T", "/%2Fevil.example"),
        ("/\\/\\evil.example?token=T", "/evil.example"),
        ("http://evil.example/?token=T", "/http://evil.example/"),
        ("/%0d%0aset-cookie:a=b?token=T", "/%0d%0aset-cookie:a=b"),
    ],
)
def test_the_token_in_an_address_becomes_a_cookie_and_leads_to_the_same_page_of_this_site(
    pages: WebServer, address: str, target: str
) -> None:
    asked = address.replace("=T", f"={TOKEN}")
    status, answer = raw(pages, f"GET {asked} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")

    assert status == 303
    assert f"\nlocation: {target}\n" in answer
    assert f"\nset-cookie: kbatch-{pages.port}={TOKEN}; HttpOnly; Path=/; SameSite=lax\n" in answer
    assert answer.count(TOKEN) == 1


def test_a_token_of_any_printable_characters_goes_through_a_cookie(cluster: Cluster) -> None:
    odd = 'a;b"c,d\\e=f&g%h+i#j?k/l'
    with shown(cluster, token=odd) as pages:
        stranger = Visitor(pages, None)
        assert stranger.ask("/", headers={"Authorization": f"Bearer {odd}"}).status == 200
        admitted = stranger.ask("/?token=a;b%22c,d%5Ce%3Df%26g%25h%2Bi%23j?k/l")
        assert admitted.status == 303
        cookie = admitted.headers["set-cookie"].partition("; HttpOnly")[0]
        assert stranger.ask("/", headers={"Cookie": cookie}).status == 200


def test_the_token_is_in_no_page_and_in_no_log(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), shown(cluster) as pages:
        visitor = Visitor(pages)
        for address in addresses(cluster):
            assert TOKEN not in visitor.ask(address).text
            assert TOKEN not in visitor.ask(f"{address}?token={WRONG}").text
        assert TOKEN not in visitor.ask(f"/nothing?{TOKEN}").text
        raw(pages, f"GET /?token={TOKEN} nonsense\r\n\r\n")

    assert TOKEN not in caplog.text


def test_without_a_token_everybody_sees_all_and_the_log_says_so(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with shown(cluster, token=None) as pages:
        assert "events" in Visitor(pages, None).get("/").text
        assert Visitor(pages, None).ask("/", headers={"Host": "evil.example"}).status == 400
    assert f"{pages.url} asks for no token: every user of this machine sees all" in caplog.text
    with WebServer(Site(cluster), "0.0.0.0", 0, token=None):
        pass
    assert "whoever reaches it sees all" in caplog.text


# The host.


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:{port}", "127.0.0.1:1", "localhost", "LOCALHOST:{port}", "[::1]", "[::1]:{port}",
        "192.0.2.7", "10.0.0.1:8088", "[2001:db8::1]:80",
    ],
)  # fmt: skip
def test_addresses_and_localhost_may_be_asked_for(stranger: Visitor, host: str) -> None:
    given = {"Host": host.replace("{port}", str(stranger.port))}

    assert stranger.ask("/health", headers=given).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1.",
        "localhost.", "", " ", ":80", "[::1", "::1]:80x", "127.0.0.1:x", "localhost:80:80", "0x7f.1", "127.1", "2130706433",
        "localhost@evil.example", "evil.example#localhost",
    ],
)  # fmt: skip
def test_no_other_host_may_be_asked_for(visitor: Visitor, host: str) -> None:
    given = {"Host": host.replace("{port}", str(visitor.port))}

    for address in ("/", "/health", f"/?token={TOKEN}"):
        refused = visitor.ask(address, headers=given)
        assert refused.status == 400, address
        assert TOKEN not in str(refused)


def test_a_request_needs_one_host(pages: WebServer) -> None:
    assert raw(pages, "GET /health HTTP/1.0\r\n\r\n")[0] == 400
    assert raw(pages, "GET /health HTTP/1.1\r\n\r\n")[0] == 400
    two = "Host: 127.0.0.1\r\nHost: evil.example\r\n"
    assert raw(pages, f"GET /health HTTP/1.1\r\n{two}\r\n")[0] == 400
    # A target with a host of its own is no path that there is.
    absolute = "GET http://evil.example/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    assert raw(pages, absolute)[0] == 401


def test_names_may_be_given(cluster: Cluster) -> None:
    site = Site(cluster)
    with WebServer(site, "localhost", 0, token=TOKEN, hosts=["Kbatch.example"]) as pages:
        stranger = Visitor(pages, None)
        for host, status in {
            "kbatch.EXAMPLE:80": 200,
            "localhost": 200,
            "other.example": 400,
        }.items():
            assert stranger.ask("/health", headers={"Host": host}).status == status


# Answers.


def of_each_kind(visitor: Visitor, stranger: Visitor, cluster: Cluster) -> dict[str, Page]:
    """Return an answer of each kind, errors too."""
    return {
        **{one: visitor.ask(one) for one in addresses(cluster)},
        "303": visitor.ask(f"/?token={TOKEN}"),
        "400": visitor.ask("/", headers={"Host": "evil.example"}),
        "401": stranger.ask("/"),
        "404": visitor.ask("/nothing"),
        "404 of a topic": visitor.ask("/topics/nothing"),
        "405": visitor.ask("/", "POST"),
    }


def test_every_answer_lets_a_browser_do_nothing_but_show_it(
    visitor: Visitor, stranger: Visitor, cluster: Cluster
) -> None:
    for kind, page in of_each_kind(visitor, stranger, cluster).items():
        assert page.status in ((200, 404) if kind[0] == "/" else (int(kind[:3]),)), kind
        for name, value in HEADERS.items():
            own = name == "cache-control" and kind == "/style.css"
            assert own or page.headers[name] == value, (kind, name)
        assert "server" not in page.headers
        assert "access-control-allow-origin" not in page.headers
    assert "script" not in HEADERS["content-security-policy"]
    assert HEADERS["content-security-policy"].startswith("default-src 'none';")


@pytest.mark.parametrize("kind", [ZeroDivisionError, OSError])
def test_what_no_error_of_ours_says_is_in_the_log_alone(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Exception],
) -> None:
    def fail(_cluster: Cluster, **_given: object) -> None:
        raise kind("a secret of the fault")

    with shown(cluster) as pages:
        visitor = Visitor(pages)
        monkeypatch.setattr(Cluster, "topic_names", fail)
        failed = visitor.ask("/")

    assert failed.status == 500
    assert "This page failed." in failed.text
    assert "secret" not in failed.text
    assert {name: failed.headers[name] for name in HEADERS} == HEADERS
    assert "a secret of the fault" in caplog.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_pages_can_only_be_looked_at(visitor: Visitor, cluster: Cluster, method: str) -> None:
    for address in addresses(cluster):
        refused = visitor.ask(address, method)
        assert refused.status == 405, address
        assert set(refused.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_a_head_is_a_page_without_its_text(visitor: Visitor, cluster: Cluster) -> None:
    for address in addresses(cluster):
        page, head = visitor.ask(address), visitor.ask(address, "HEAD")
        assert (head.status, head.text) == (page.status, ""), address
        assert head.headers["content-type"] == page.headers["content-type"]


# What a visitor costs the others.


class Blocked:
    """A place whose topics cannot be read until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self.reached, self.asked = threading.Event(), threading.Event(), 0
        names = Cluster.topic_names

        def blocked(cluster: Cluster, **given: Any) -> list[str]:
            self.asked += 1
            self.reached.set()
            assert self.go_on.wait(TIMEOUT_S)
            return names(cluster, **given)

        monkeypatch.setattr(Samples, "start", lambda _samples: None)  # only visitors ask
        monkeypatch.setattr(Cluster, "topic_names", blocked)


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Blocked]:
    found = Blocked(monkeypatch)
    yield found
    found.go_on.set()


def asking(pages: WebServer, address: str = "/") -> socket.socket:
    """Ask for a page, and do not wait for the answer."""
    sock = socket.create_connection((pages.host, pages.port), TIMEOUT_S)
    words = f"GET {address} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    sock.sendall(words.encode())
    return sock


def status_of(sock: socket.socket) -> int:
    answer = http.client.HTTPResponse(sock)
    answer.begin()
    answer.read()
    return answer.status


def test_those_who_ask_and_leave_are_told_to_wait_before_they_are_too_many(
    cluster: Cluster, blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_CONNECTIONS_MAX", 25)
    with shown(cluster) as pages:

        def is_busy() -> bool:
            asking(pages).close()
            return Visitor(pages, None).ask("/health").status == 503

        asking(pages).close()
        assert blocked.reached.wait(TIMEOUT_S)
        assert Visitor(pages, None).ask("/health").text == "ok\n"
        until(is_busy)
        blocked.go_on.set()
        until(lambda: Visitor(pages, None).ask("/health").status == 200)
        Visitor(pages).get("/")


def test_probes_are_answered_while_no_thread_is_free(cluster: Cluster, blocked: Blocked) -> None:
    with shown(cluster) as pages, contextlib.ExitStack() as open_sockets:
        asked = [
            open_sockets.enter_context(asking(pages, f"/?page={number}")) for number in range(60)
        ]
        assert blocked.reached.wait(TIMEOUT_S)
        assert Visitor(pages, None).ask("/health").text == "ok\n"
        blocked.go_on.set()
        assert [status_of(one) for one in asked] == [200] * len(asked)


def test_visitors_who_send_nothing_do_not_keep_others_out(cluster: Cluster) -> None:
    with shown(cluster) as pages, contextlib.ExitStack() as open_sockets:
        for number in range(3 * serving._CONNECTIONS_MAX):
            sock = socket.create_connection((pages.host, pages.port), TIMEOUT_S)
            open_sockets.enter_context(sock)
            sock.sendall(b"GET / HTTP/1.1\r\n" if number % 2 else b"")
        until(lambda: len(pages._server.server_state.connections) <= serving._CONNECTIONS_MAX)
        Visitor(pages).get("/")


def test_visitors_who_do_not_read_do_not_keep_others_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_CONNECTIONS_MAX", 5)
    large = PlainTextResponse("a" * (32 << 20))
    monkeypatch.setattr(Site, "page", lambda _site, *_given, **_named: large)
    with shown(cluster) as pages, contextlib.ExitStack() as open_sockets:
        connections = pages._server.server_state.connections
        for number in range(1, 6):
            open_sockets.enter_context(asking(pages, "/?name=a"))
            until(lambda number=number: sum(one.is_waiting for one in connections) == number)  # type: ignore[misc]
        assert Visitor(pages, None).ask("/health").text == "ok\n"


def test_what_fails_is_asked_for_once_by_all_who_wait(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()

    def fail(_cluster: Cluster, **_given: object) -> None:
        asked.append(1)
        raise KafkaStorageError("the disk is away")

    monkeypatch.setattr(Samples, "start", lambda _samples: None)
    monkeypatch.setattr(Cluster, "topic_names", fail)
    with shown(cluster) as pages:
        visitor = Visitor(pages)
        found = [visitor.ask("/") for _ in range(3)]
        assert [visitor.ask("/ready").status for _ in range(3)] == [503] * 3

    assert [one.status for one in found] == [503] * 3
    assert all("the disk is away" in one.text for one in found)
    assert len(asked) == 2  # a page's, and that of /ready


def test_probes_take_one_thread_together(cluster: Cluster, blocked: Blocked) -> None:
    with shown(cluster) as pages, contextlib.ExitStack() as open_sockets:
        asked = [open_sockets.enter_context(asking(pages, f"/ready?{number}")) for number in range(60)]  # fmt: skip
        assert blocked.reached.wait(TIMEOUT_S)
        assert Visitor(pages, None).ask("/health").text == "ok\n"
        assert "font" in Visitor(pages).get("/style.css").text
        blocked.go_on.set()
        assert [status_of(one) for one in asked] == [200] * len(asked)


# A place that hangs, or is gone.


@pytest.fixture
def nothing_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an hour pass between any two looks: what was found before is not shown again."""
    hours_s = itertools.count(3600, 3600)
    monkeypatch.setattr(site_module, "monotonic_s", lambda: float(next(hours_s)))


def test_who_asks_a_place_that_hangs_is_told_so_and_the_next_visitor_gets_what_the_look_finds(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, peeks, peek, address = threading.Event(), list[str](), Cluster.peek, "/topics/events/records"  # fmt: skip

    def blocked(cluster: Cluster, topic: str, **given: Any) -> Any:
        peeks.append(topic)
        assert go_on.wait(TIMEOUT_S)
        return peek(cluster, topic, **given)

    monkeypatch.setattr(Cluster, "peek", blocked)
    monkeypatch.setattr(app_module, "_ANSWERED_WITHIN_S", 0.01)
    with shown(cluster) as pages:
        visitor = Visitor(pages)
        until(lambda: visitor.ask(address).status == 503 and peeks, "a look is late")
        late = visitor.ask(address)
        go_on.set()
        until(lambda: visitor.ask(address).status == 200, "the look is done")

    assert late.status == 503
    assert f"{cluster.address} was not read within 0.01 s" in late.words
    assert peeks == ["events"]


@pytest.mark.usefixtures("nothing_is_fresh")
def test_a_late_page_that_nobody_fetched_is_not_shown_to_who_comes_long_after(
    cluster: Cluster, blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(app_module, "monotonic_s", lambda: now_s[0])
    monkeypatch.setattr(app_module, "_ANSWERED_WITHIN_S", 0.01)
    with shown(cluster) as pages:
        visitor = Visitor(pages)
        assert visitor.ask("/").status == 503
        now_s[0] += 3600
        monkeypatch.setattr(app_module, "_ANSWERED_WITHIN_S", TIMEOUT_S)
        blocked.go_on.set()
        until(lambda: visitor.ask("/").status == 200)

    assert blocked.asked == 2


@pytest.mark.usefixtures("nothing_is_fresh")
def test_a_server_that_hangs_is_told_by_probes_and_pages_until_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = builders.a_cluster(tmp_path).path
    with (
        Served(path, tmp_path / "log") as broker,
        spark_kbatch.connect(broker.address) as cluster,
        shown(cluster) as pages,
    ):
        visitor = Visitor(pages)
        until(lambda: visitor.ask("/ready").status == 200)
        visitor.get("/")
        monkeypatch.setattr(app_module, "_ANSWERED_WITHIN_S", 0.2)
        os.kill(broker.pid, signal.SIGSTOP)
        os.waitpid(broker.pid, os.WUNTRACED)
        try:
            told = [visitor.ask(one) for one in ("/ready", "/ready", "/", "/", "/metrics")]
            assert visitor.ask("/health").status == 200
        finally:
            monkeypatch.setattr(app_module, "_ANSWERED_WITHIN_S", TIMEOUT_S)
            os.kill(broker.pid, signal.SIGCONT)
        until(lambda: {visitor.ask(one).status for one in ("/ready", "/", "/metrics")} == {200})

    assert [one.status for one in told] == [503] * 5
    assert [one.text for one in told[:2]] == ["not ready\n"] * 2
    for page in told[2:]:
        assert f"{broker.address} was not read within 0.2 s" in page.words


@pytest.mark.usefixtures("nothing_is_fresh")
def test_a_folder_without_a_log_dir_that_can_be_read_is_not_ready(tmp_path: Path) -> None:
    made = builders.a_cluster(tmp_path)
    log_dir = Path(made.log_dirs()[0].path)
    with shown(made) as pages:
        assert Visitor(pages, None).ask("/ready").status == 200
        log_dir.rename(tmp_path / "away")
        assert Visitor(pages, None).ask("/ready").status == 503
        assert Visitor(pages).ask("/").status == 503
    (tmp_path / "away").rename(log_dir)
    with Cluster(made.path) as again, shown(again) as pages:
        assert Visitor(pages, None).ask("/ready").status == 200


def test_few_look_at_records_at_a_time_and_others_at_pages_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So what a few bytes unpack to is in memory only a few times."""
    go_on, peek, inside, most = threading.Event(), Cluster.peek, list[int](), list[int]()

    def blocked(cluster: Cluster, topic: str, **given: Any) -> Any:
        inside.append(1)
        most.append(len(inside))
        assert go_on.wait(TIMEOUT_S)
        found = peek(cluster, topic, **given)
        inside.pop()
        return found

    monkeypatch.setattr(Cluster, "peek", blocked)
    with shown(cluster) as pages, contextlib.ExitStack() as open_sockets:
        addresses = [f"/topics/events/records?start=0&key={number}" for number in range(8)]
        asked = [open_sockets.enter_context(asking(pages, one)) for one in addresses]
        until(lambda: len(inside) == 2)
        Visitor(pages).get("/")
        go_on.set()
        assert [status_of(one) for one in asked] == [200] * len(asked)
    assert max(most) == 2


# The end.


def test_a_page_in_progress_is_finished_when_the_server_closes(
    cluster: Cluster, blocked: Blocked
) -> None:
    with shown(cluster) as pages, asking(pages) as sock, asking(pages, "/health") as idle:
        assert status_of(idle) == 200
        assert blocked.reached.wait(TIMEOUT_S)
        closing = threading.Thread(target=pages.close)
        closing.start()
        until(lambda: is_refused(pages))
        blocked.go_on.set()
        assert status_of(sock) == 200
        closing.join(TIMEOUT_S)
        assert not pages._thread.is_alive()
        pages.close()


def test_a_page_that_is_never_made_does_not_keep_the_server(
    cluster: Cluster, blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_ENDS_WITHIN_S", 1)
    with shown(cluster) as pages, asking(pages):
        assert blocked.reached.wait(TIMEOUT_S)
        began = time.monotonic()
        pages.close()
        assert time.monotonic() - began < TIMEOUT_S
        assert is_refused(pages)


def is_refused(pages: WebServer) -> bool:
    try:
        socket.create_connection((pages.host, pages.port), TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    return False


def test_the_kafka_server_beside_goes_on_while_visitors_hold_all_connections(
    tmp_path: Path,
) -> None:
    made = builders.a_cluster(tmp_path)
    with made.serve() as server, shown(made, server) as pages, contextlib.ExitStack() as sockets:
        for _ in range(2 * serving._CONNECTIONS_MAX):
            sockets.enter_context(socket.create_connection((pages.host, pages.port), TIMEOUT_S))
        with (
            spark_kbatch.connect(server.bootstrap_servers) as client,
            client.producer() as producer,
        ):
            producer.send("events", value="v").result()
        assert made.read("events").read_all().num_rows == 1
