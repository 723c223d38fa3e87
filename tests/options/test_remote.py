"""Options of a client of a real cluster: addresses, keys, security, and secrets that stay hidden."""

from __future__ import annotations

import logging
import pickle
import traceback
from typing import Any

import pytest

import spark_kbatch
from spark_kbatch.errors import ConfigError
from spark_kbatch.options.read import parse_read_options
from spark_kbatch.options.remote import (
    ClusterOptions,
    is_address,
    parse_cluster_options,
)
from spark_kbatch.options.security import Secret, parse_jaas
from spark_kbatch.options.write import parse_write_options

SERVERS = {"kafka.bootstrap.servers": "host:9092"}
SECRET = 's3cr;t="quoted"'
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SECURED = {
    **SERVERS,
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": f'{SCRAM} required username="alice" password="s3cr;t=\\"quoted\\"";',
    "kafka.ssl.keystore.key": f"-----BEGIN PRIVATE KEY----- {SECRET} -----END PRIVATE KEY-----",
    "kafka.ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----",
    "kafka.ssl.key.password": SECRET,
    "kafka.sasl.oauthbearer.client.credentials.client.secret": SECRET,
}


@pytest.mark.parametrize(
    "text",
    ["host:9092", "h1:9092,h2:9092", " h1:9092 , h2:9092,", "[::1]:9092", "10.0.0.1:9092",
     "PLAINTEXT://h:9092", "SASL_SSL://b-1.msk.eu-west-1.amazonaws.com:9098", "my_host:1"],
)  # fmt: skip
def test_servers_are_an_address(text: str) -> None:
    assert is_address(text)


@pytest.mark.parametrize(
    "text",
    ["", ",", "/data:9092", "./a:9092", "../a:1", "~/a:1", "file:/x", "file:///x:1", "file:9092",
     "data", "data/x:1", "host", "host:", "host:port", "::1:9092", "host:123456", "a b:1"],
)  # fmt: skip
def test_folder_is_not_an_address(text: str) -> None:
    assert not is_address(text)


def test_an_address_in_the_place_of_a_path_is_a_real_cluster() -> None:
    written = parse_write_options({"path": "h:1, h:2", "topic": "t", "kafka.client.id": "me"})
    assert written.path == ""
    assert written.cluster == parse_cluster_options(
        {"kafka.bootstrap.servers": "h:1,h:2", "kafka.client.id": "me"}
    )
    read = parse_read_options({"path": "[::1]:9092", "subscribe": "t"})
    assert (read.path, str(read.cluster)) == ("", "[::1]:9092")
    assert parse_read_options({"path": "./h:1", "subscribe": "t"}).cluster is None


@pytest.mark.parametrize("text", ["http://localhost:9092", "h:1,HTTPS://h:9092"])
def test_an_address_of_http_is_refused_by_name(text: str) -> None:
    for refused in (lambda: spark_kbatch.connect(text), lambda: spark_kbatch.open(text)):
        with pytest.raises(
            ConfigError, match=r"a Kafka broker speaks no HTTP; accepted: HOST:PORT"
        ):
            refused()
    with pytest.raises(ConfigError, match="a Kafka broker speaks no HTTP"):
        parse_cluster_options({"kafka.bootstrap.servers": text})


@pytest.mark.parametrize("text", ["kafka+ssl://h:9096", "http://h:9092/topics", "kafka://h/t"])
def test_a_url_that_is_no_place_says_how_a_real_cluster_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="a real cluster is HOST:PORT alone"):
        spark_kbatch.open(text)


def test_an_address_is_no_path() -> None:
    for path, servers in (("host:9092", "b:1"), ("host:9092", "/data")):
        with pytest.raises(ConfigError, match=r"give one of them; a folder .* is '\./host:9092'"):
            parse_write_options({"path": path, "kafka.bootstrap.servers": servers, "topic": "t"})
    with pytest.raises(ConfigError, match=r"spark_kbatch.connect\('host:9092'\)"):
        spark_kbatch.open("host:9092", create=True)

    assert parse_write_options({"path": "./host:9092", "topic": "t"}).path == "./host:9092"


def test_servers_lose_their_scheme_and_doubles() -> None:
    found = parse_cluster_options({"bootstrap.servers": "PLAINTEXT://a:1, [::1]:2,a:1"})

    assert found.bootstrap_servers == ("a:1", "[::1]:2")
    assert str(found) == "a:1,[::1]:2"


@pytest.mark.parametrize("servers", ["host", "/data", "host:0", "host:65536"])
def test_other_servers_are_refused(servers: str) -> None:
    with pytest.raises(ConfigError, match=r"option 'bootstrap.servers' is"):
        parse_cluster_options({"kafka.bootstrap.servers": servers})


def test_keys_match_in_any_case_with_and_without_prefix() -> None:
    found = parse_cluster_options(
        {**SERVERS, "KAFKA.Client.Id": "me", "client.rack": "east", "kafka.fetch.max.wait.ms": "7"}
    )

    assert (found.client_id, found.client_rack, found.fetch_max_wait_ms) == ("me", "east", 7)
    assert found == parse_cluster_options(
        {"bootstrap_servers": ["host:9092"], "client_id": "me", "client_rack": "east",
         "fetch_max_wait_ms": 7}, alone=True
    )  # fmt: skip


def test_keys_of_spark_and_of_consumers_are_left_to_others() -> None:
    given = {**SERVERS, "subscribe": "a", "kafka.isolation.level": "x", "kafka.group.id": "g"}

    assert parse_cluster_options(given) == parse_cluster_options(SERVERS)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("kafka.sasl.mechnism", "nearest known one is 'sasl.mechanism'"),
        ("kafka.ssl.trustore.location", "nearest known one is 'ssl.truststore.location'"),
        ("kafka.enable.auto.commit", "nothing is committed"),
        ("kafka.ssl.truststore.password", "leave it out"),
        ("kafka.ssl.engine.factory.class", "no Java"),
    ],
)
def test_misspelt_forbidden_and_unusable_keys_are_refused(key: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_cluster_options({**SERVERS, key: "x"})


def test_unknown_key_is_refused_where_all_options_are_the_clients() -> None:
    with pytest.raises(ConfigError, match=r"'client\.id'"):
        parse_cluster_options({"bootstrap_servers": "h:1", "client_idd": "x"}, alone=True)


def test_options_are_hashable_and_can_be_pickled() -> None:
    found = parse_cluster_options(SECURED)

    assert pickle.loads(pickle.dumps(found)) == found
    assert hash(found) == hash(parse_cluster_options(SECURED))
    assert {found: 1}[parse_cluster_options(SECURED)] == 1


class TestSecrets:
    """What must never be shown."""

    def test_parsed_options_have_them(self) -> None:
        security = parse_cluster_options(SECURED).security

        assert security.sasl_jaas_config.get("password") == SECRET
        assert security.ssl_key_password.text == SECRET

    @pytest.mark.parametrize("shown", [repr, str, "{}".format], ids=["repr", "str", "format"])
    def test_no_text_of_the_options_has_them(self, shown: Any) -> None:
        options = parse_cluster_options(SECURED)
        for one in (options, options.security, [options], options.security.sasl_jaas_config):
            assert "s3cr" not in shown(one)

    def test_no_log_line_has_them(self, caplog: pytest.LogCaptureFixture) -> None:
        logging.getLogger("spark_kbatch").warning("%s %r", *[parse_cluster_options(SECURED)] * 2)

        assert "host:9092" in caplog.text
        assert "s3cr" not in caplog.text

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("kafka.sasl.jaas.config", f'{SCRAM} required username="a" password="s3cret"'),
            ("kafka.sasl.jaas.config", f'{SCRAM} username="a" password="s3cret";'),
            ("kafka.sasl.jaas.config", f'{SCRAM} required username="a" password="s3cret;'),
            ("kafka.sasl.jaas.config", f'{SCRAM} required password="s3cret";'),
            ("kafka.sasl.jaas.config", f'{SCRAM} required a b="s3cret";'),
            ("kafka.ssl.keystore.certificate.chain", ""),
            ("kafka.sasl.mechanism", "PLAIN-TEXT"),
        ],
        ids=[
            "no semicolon",
            "no flag",
            "open quote",
            "no user",
            "no equals sign",
            "no chain",
            "mechanism",
        ],
    )
    def test_no_error_has_them(self, key: str, value: str) -> None:
        with pytest.raises(ConfigError) as raised:
            parse_cluster_options({**SECURED, key: value})

        assert key.removeprefix("kafka.") in str(raised.value)
        trace = "".join(traceback.format_exception(raised.value))
        assert "s3cr" not in trace
        assert "s3cr" not in repr(raised.value.args)

    def test_twice_given_ones_are_not_shown(self) -> None:
        with pytest.raises(ConfigError, match="given twice") as raised:
            parse_cluster_options({**SECURED, "ssl.key.password": "s3cret too"})
        assert "s3cr" not in str(raised.value)

    def test_secret_is_true_if_there_is_one(self) -> None:
        assert (bool(Secret()), bool(Secret("x"))) == (False, True)


class TestJaas:
    """Texts that people paste."""

    @pytest.mark.parametrize(
        "text",
        [
            'org.x.PlainLoginModule required username="a" password="b";',
            "  org.x.PlainLoginModule   REQUIRED\n  username='a'\n  password=b ; ",
            'kafkashaded.org.x.PlainLoginModule required username = "a" password = "b";',
            'PlainLoginModule sufficient username="a" password="b" serviceName="kafka";',
        ],
    )
    def test_module_and_options_are_found(self, text: str) -> None:
        found = parse_jaas("sasl.jaas.config", text)

        assert found.module == "PlainLoginModule"
        assert (found.get("username"), found.get("password")) == ("a", "b")

    def test_quoted_marks_and_escapes_belong_to_the_value(self) -> None:
        found = parse_jaas("k", r'M required username="a" password="= ; \" \\ x";')

        assert found.get("password") == r'= ; " \ x'

    def test_module_without_options_is_accepted(self) -> None:
        assert (
            parse_jaas("k", "software.amazon.msk.auth.iam.IAMLoginModule required;").options == ()
        )


@pytest.mark.parametrize(
    ("key", "store", "says"),
    [
        ("ssl.truststore.location", "/ca.jks", "keytool -importkeystore -srckeystore /ca.jks"),
        ("ssl.truststore.location", "/ca.p12", "openssl pkcs12 -in /ca.p12 -nokeys -out ca.pem"),
        ("ssl.keystore.location", "/me.pfx", "openssl pkcs12 -in /me.pfx -out client.pem"),
        ("ssl.keystore.type", "JKS", "keytool"),
        ("ssl.truststore.type", "PKCS12", "openssl pkcs12"),
    ],
)
def test_java_stores_are_refused_with_the_command_that_converts_them(
    key: str, store: str, says: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_cluster_options({**SERVERS, key: store})

    assert says in str(raised.value)


def test_options_that_do_not_fit_together_are_refused() -> None:
    for more, says in (
        ({"ssl.truststore.location": "/a", "ssl.truststore.certificates": "b"}, "give one of them"),
        (
            {"ssl.keystore.location": "/a", "ssl.keystore.key": "b"},
            "give the file, or the two texts",
        ),
        ({"ssl.keystore.key": "b"}, "give both"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "no user name and password"),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.jaas.config": f'{SCRAM} required username="a" password="b";',
            },
            "'sasl.mechanism' is 'GSSAPI'.*give 'sasl.mechanism' as 'SCRAM-SHA-512'",
        ),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "AWS_MSK_IAM"},
            "AWS_MSK_IAM needs 'SASL_SSL'",
        ),
    ):
        with pytest.raises(ConfigError, match=says):
            parse_cluster_options({**SERVERS, **more})


def test_connections_are_not_secured_unless_that_is_asked_for() -> None:
    assert parse_cluster_options(SERVERS) == ClusterOptions(("host:9092",))
    assert not parse_cluster_options(SERVERS).security.uses_tls
