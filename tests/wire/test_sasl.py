"""SASL of a client's connections: accepted, refused at once, repeated when a session ends; and its tokens."""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kbatch.errors import ConfigError, SaslAuthenticationError
from spark_kbatch.options.remote import parse_cluster_options
from spark_kbatch.wire import sasl
from spark_kbatch.wire.connection import ConnectionConfig
from spark_kbatch.wire.connections import Connections
from spark_kbatch.wire.protocol import SUPPORTED, ApiKey, MetadataRequest
from tests.support.sasl_servers import PASSWORD, USER, SaslAnswers
from tests.support.wire_servers import LoopbackServer

METADATA = (ApiKey.METADATA, MetadataRequest(topics=[]))
QUICKLY_S = 5
TOKEN = "a-token-of-the-test"


def secured(mechanism: str, jaas: str = "", **options: str) -> Connections:
    given = {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        **({"sasl.jaas.config": jaas} if jaas else {}),
        **{key.replace("_", "."): value for key, value in options.items()},
    }
    return Connections(
        ConnectionConfig(request_timeout_ms=20_000), security=parse_cluster_options(given).security
    )


def login(user: str = USER, password: str = PASSWORD) -> str:
    return f'org.apache.kafka.AnyLoginModule required username="{user}" password="{password}";'


def oauth(options: str = "") -> str:
    return f"org.apache.kafka.OAuthBearerLoginModule required {options};"


def answered(connections: Connections, server: LoopbackServer) -> Any:
    with connections:
        return connections.request(server.node, *METADATA).cluster_id


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
class TestPassword:
    """Mechanisms with a user name and a password."""

    def test_right_one_is_accepted(self, mechanism: str) -> None:
        with LoopbackServer(SaslAnswers()) as server:
            assert answered(secured(mechanism, login()), server) == "a-cluster"

    def test_wrong_one_is_refused_at_once_and_not_shown(self, mechanism: str) -> None:
        started = time.monotonic()
        with LoopbackServer(SaslAnswers()) as server:
            with pytest.raises(SaslAuthenticationError) as raised:
                answered(secured(mechanism, login(password="a-wrong-one")), server)
            assert server.accepted == 1

        assert time.monotonic() - started < QUICKLY_S
        assert "Invalid username or password" in str(raised.value)
        assert "sasl.jaas.config" in str(raised.value)
        assert "a-wrong-one" not in str(raised.value)


def test_refusal_is_told_from_a_connection_that_is_lost() -> None:
    with LoopbackServer(SaslAnswers()) as server:
        for password, is_final in (("a-wrong-one", True), (PASSWORD, False)):
            with secured("PLAIN", login(password=password)) as connections:
                while not connections.ready(server.node) and not connections.refusal(server.node):
                    connections.poll(1000)
                connections.disconnect(server.node)
                refusal = connections.refusal(server.node)
                assert isinstance(refusal, SaslAuthenticationError) == is_final
                assert connections.last_error(server.node) is not None


def test_server_that_does_not_know_the_password_is_refused() -> None:
    with LoopbackServer(SaslAnswers(knows_password=False)) as server:
        with pytest.raises(SaslAuthenticationError, match="wrong signature"):
            answered(secured("SCRAM-SHA-512", login()), server)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("iterations", [1, 4095])
def test_server_that_asks_for_few_iterations_gets_no_proof(mechanism: str, iterations: int) -> None:
    answers = SaslAnswers(iterations=iterations)
    with LoopbackServer(answers) as server:
        with pytest.raises(SaslAuthenticationError, match=rf"{iterations} iterations.*4096 are"):
            answered(secured(mechanism, login()), server)

    assert answers.proofs == 0


def test_server_that_asks_for_very_many_iterations_gets_no_proof() -> None:
    answers = SaslAnswers(iterations=2**31 - 1)
    with LoopbackServer(answers) as server:
        with pytest.raises(SaslAuthenticationError, match=r"2147483647 iterations.*1000000 are"):
            answered(secured("SCRAM-SHA-256", login()), server)

    assert answers.proofs == 0


def test_iterations_of_a_second_exchange_are_looked_at_too() -> None:
    given = {
        "bootstrap.servers": "host:9092", "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": login(),
    }  # fmt: skip
    security = parse_cluster_options(given).security
    authenticator = sasl.Authenticator(security, "host", "host:9092")
    for _ in range(2):
        authenticator.start()
        nonce = authenticator.next_bytes().rsplit(b",r=", 1)[1]
        with pytest.raises(SaslAuthenticationError, match="it asks for 1 iterations"):
            authenticator.receive(b"r=" + nonce + b"srv,s=c2FsdA==,i=4096,i=1")


def test_mechanisms_of_the_server_are_named_if_it_lacks_the_one_that_is_asked_for() -> None:
    with LoopbackServer(SaslAnswers(mechanisms=("PLAIN", "OAUTHBEARER"))) as server:
        with pytest.raises(
            SaslAuthenticationError, match=r"it has: OAUTHBEARER, PLAIN.*sasl\.mech"
        ):
            answered(secured("SCRAM-SHA-512", login()), server)


def test_server_without_sasl_is_refused() -> None:
    offered = {key: SUPPORTED[key] for key in (ApiKey.API_VERSIONS, ApiKey.METADATA)}
    with LoopbackServer(offered=offered) as server:
        with pytest.raises(SaslAuthenticationError, match=r"does not use SASL.*security\.protocol"):
            answered(secured("PLAIN", login()), server)


def test_client_without_sasl_is_told_to_look_at_the_protocol() -> None:
    with LoopbackServer(SaslAnswers()) as server, Connections() as connections:
        with pytest.raises(Exception, match=r"before it answered.*security\.protocol=PLAINTEXT"):
            connections.request(server.node, *METADATA)


class TestSessionLifetime:
    """A server that limits it."""

    def test_client_authenticates_again_before_its_end(self) -> None:
        answers = SaslAnswers(session_lifetime_ms=400)
        ended: list[Any] = []
        with LoopbackServer(answers) as server, secured("PLAIN", login()) as connections:
            start = time.monotonic()
            while answers.exchanges < 4 and time.monotonic() < start + 30:
                if connections.ready(server.node):
                    connections.send(server.node, *METADATA, lambda *end: ended.append(end))
                connections.poll(10)
            took_s = time.monotonic() - start
            assert connections.request(server.node, *METADATA).cluster_id == "a-cluster"
            assert server.accepted == 1

        assert answers.exchanges >= 4
        assert took_s > 3 * 0.85 * 0.4  # none before its session's last part
        assert all(error is None for _, error in ended)

    def test_request_is_sent_though_the_session_came_to_its_last_part_since_it_was_ready(
        self,
    ) -> None:
        answers = SaslAnswers(session_lifetime_ms=60_000)
        ended: list[Any] = []
        with LoopbackServer(answers) as server, secured("PLAIN", login()) as connections:
            connections.request(server.node, *METADATA)
            assert connections.ready(server.node)
            connection = connections._peers[server.node].connection
            assert connection is not None
            connection._authenticate_again_ms = 0
            connections.send(server.node, *METADATA, lambda *end: ended.append(end))
            assert not connections.can_send(server.node)
            while not ended:
                connections.poll(1000)
            connections.request(server.node, *METADATA)
            assert server.accepted == 1

        assert ended[0][1] is None
        assert answers.exchanges == 2

    def test_password_changed_meanwhile_ends_the_connection(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with LoopbackServer(SaslAnswers(session_lifetime_ms=200)) as server:
            with secured("PLAIN", login()) as connections:
                connections.request(server.node, *METADATA)
                monkeypatch.setattr("tests.support.sasl_servers.PASSWORD", "a new one")
                time.sleep(0.25)
                with pytest.raises(SaslAuthenticationError):
                    connections.request(server.node, *METADATA)


@pytest.mark.parametrize(
    ("mechanism", "package"), [("GSSAPI", "gssapi"), ("AWS_MSK_IAM", "botocore")]
)
def test_missing_package_is_named(
    mechanism: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(**_: Any) -> None:
        raise RuntimeError("not found")

    monkeypatch.setattr(sasl, "get_sasl_mechanism", lambda _: missing)
    authenticator = authenticator_of(mechanism)
    with pytest.raises(ConfigError, match=f"pip install {package}"):
        authenticator.start()


def authenticator_of(mechanism: str) -> sasl.Authenticator:
    given = {
        "bootstrap.servers": "host:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.kerberos.service.name": "kafka",
    }
    return sasl.Authenticator(parse_cluster_options(given).security, "host", "host:1")


def test_amazons_mechanism_signs_for_the_host_with_what_botocore_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = SimpleNamespace(access_key="AN-ID", secret_key="a-key-of-the-test", token="a-session")
    session = SimpleNamespace(
        get_credentials=lambda: SimpleNamespace(get_frozen_credentials=lambda: found),
        get_config_variable=lambda _: "eu-west-1",
    )
    monkeypatch.setitem(sys.modules, "botocore", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "botocore.session", SimpleNamespace(Session=lambda: session))
    authenticator = authenticator_of("AWS_MSK_IAM")
    authenticator.start()
    sent = authenticator.next_bytes()
    authenticator.receive(b'{"version": "2020_10_22", "request-id": "1"}')

    assert authenticator.is_done
    message = json.loads(sent)
    assert message["host"] == "host"
    assert "/eu-west-1/kafka-cluster/aws4_request" in message["x-amz-credential"]
    assert message["x-amz-security-token"] == "a-session"
    assert b"a-key-of-the-test" not in sent


def test_kerberos_takes_as_many_steps_as_its_library_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        """Two tokens of each side, then the level of protection."""

        complete = False

        def __init__(self, **_: Any) -> None:
            self._steps = [b"first", b"second"]

        def step(self, given: bytes | None) -> bytes:
            assert given == {2: None, 1: b"of the server"}[len(self._steps)]
            self.complete = len(self._steps) == 1
            return self._steps.pop(0)

        def unwrap(self, given: bytes) -> Any:
            return SimpleNamespace(message=given)

        def wrap(self, given: bytes, _: bool) -> Any:
            return SimpleNamespace(message=b"wrapped " + given)

    def name(text: str, **_: Any) -> Any:
        return SimpleNamespace(canonicalize=lambda _: text)

    gssapi = SimpleNamespace(
        SecurityContext=Context,
        Name=name,
        NameType=SimpleNamespace(hostbased_service=0),
        MechType=SimpleNamespace(kerberos=0),
    )
    monkeypatch.setitem(sys.modules, "gssapi", gssapi)
    authenticator = authenticator_of("GSSAPI")
    authenticator.start()
    sent = []
    for answer in (b"of the server", b"\x07\x00\x10\x00", b""):
        assert not authenticator.is_done
        sent.append(authenticator.next_bytes())
        authenticator.receive(answer)

    assert authenticator.is_done
    assert sent == [b"first", b"second", b"wrapped \x01\x00\x10\x00kafka@host"]


def a_token() -> str:
    """Return a token, as a user's function does."""
    return TOKEN


class TestTokens:
    """OAUTHBEARER."""

    @pytest.fixture
    def server(self) -> Iterator[LoopbackServer]:
        with LoopbackServer(SaslAnswers(token=TOKEN)) as server:
            yield server

    def test_of_a_function(self, server: LoopbackServer) -> None:
        path = f"{__name__}.a_token"
        connections = secured("OAUTHBEARER", sasl_login_callback_handler_class=path)

        assert answered(connections, server) == "a-cluster"

    def test_of_a_file(self, server: LoopbackServer, tmp_path: Path) -> None:
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        url = (tmp_path / "token").as_uri()

        connections = secured("OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=url)
        assert answered(connections, server) == "a-cluster"

    def test_unsecured(self) -> None:
        answers = SaslAnswers()
        with (
            LoopbackServer(answers) as server,
            secured("OAUTHBEARER", oauth('unsecuredLoginStringClaim_sub="alice"')) as connections,
        ):
            with pytest.raises(SaslAuthenticationError):
                connections.request(server.node, *METADATA)
            sent = next(
                bytes(one.body.auth_bytes)
                for one in server.requests
                if one.api_key == ApiKey.SASL_AUTHENTICATE
            )
        head, claims, signature = sent.split(b"Bearer ")[1].split(b"\x01")[0].split(b".")
        assert json.loads(base64.urlsafe_b64decode(head + b"==")) == {"alg": "none"}
        assert json.loads(base64.urlsafe_b64decode(claims + b"=="))["sub"] == "alice"
        assert signature == b""

    def test_refused_one_is_an_error_at_once(self, server: LoopbackServer, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("another-token")
        url = (tmp_path / "token").as_uri()
        with pytest.raises(SaslAuthenticationError, match=r"token\.endpoint") as raised:
            answered(secured("OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=url), server)
        assert "another-token" not in str(raised.value)

    def test_nothing_said_of_them_is_refused(self, server: LoopbackServer) -> None:
        with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.token\.endpoint\.url"):
            answered(secured("OAUTHBEARER"), server)

    def test_of_an_endpoint_are_used_again(self, server: LoopbackServer) -> None:
        with Endpoint() as endpoint:
            options = oauth('clientId="me" clientSecret="my-secret" scope="kafka"')
            for _ in range(2):
                connections = secured(
                    "OAUTHBEARER", options, sasl_oauthbearer_token_endpoint_url=endpoint.url
                )
                assert answered(connections, server) == "a-cluster"

            assert endpoint.asked == [
                (b"me:my-secret", "grant_type=client_credentials&scope=kafka")
            ]

    def test_client_that_the_endpoint_refuses_is_an_error_at_once(
        self, server: LoopbackServer
    ) -> None:
        with Endpoint(code=401) as endpoint:
            connections = secured(
                "OAUTHBEARER",
                oauth('clientId="me" clientSecret="my-secret"'),
                sasl_oauthbearer_token_endpoint_url=endpoint.url,
            )
            with pytest.raises(SaslAuthenticationError, match=r"401.*client id, secret") as raised:
                answered(connections, server)
        assert "my-secret" not in str(raised.value)


class Endpoint:
    """An identity provider on loopback."""

    def __init__(self, code: int = 200) -> None:
        self.asked: list[tuple[bytes, str]] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                credentials = self.headers["Authorization"].removeprefix("Basic ")
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                asked.append((base64.b64decode(credentials), body))
                self.send_response(code)
                self.end_headers()
                self.wfile.write(json.dumps({"access_token": TOKEN, "expires_in": 60}).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Endpoint:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
