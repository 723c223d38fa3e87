"""Options of a schema registry: addresses, one way to authenticate, and no secret in any text."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from spark_kbatch.errors import ConfigError
from spark_kbatch.options.registry import RegistryOptions, parse_registry_options

URL = "http://registry:8081"
PASSWORD = "password-of-the-test"


def parsed(url: str = URL, **given: Any) -> RegistryOptions:
    keys = {f"schema.registry.{key.replace('_', '.')}": value for key, value in given.items()}
    found = parse_registry_options({"schema.registry.url": url, **keys})
    assert found is not None
    return found


def test_options_of_a_read_name_no_registry() -> None:
    assert parse_registry_options({"subscribe": "events", "kafka.ssl.key.password": "x"}) is None


def test_keys_are_those_of_confluent_in_any_case() -> None:
    options = parse_registry_options(
        {"Schema.Registry.URL": URL, "schema.registry.basic.auth.user.info": "user:pass"}
    )

    assert options is not None
    assert options.user_info.text == "user:pass"


@pytest.mark.parametrize(
    ("given", "urls", "user_info"),
    [
        ("http://registry:8081/", ("http://registry:8081",), ""),
        ("HTTPS://Registry", ("https://registry",), ""),
        (" http://a:1 , http://b:2,", ("http://a:1", "http://b:2"), ""),
        ("http://a,http://a/", ("http://a",), ""),
        ("http://[::1]:8081/contexts/.x/", ("http://[::1]:8081/contexts/.x",), ""),
        ("http://user:p%40ss%2C@a:1,http://b", ("http://a:1", "http://b"), "user:p@ss,"),
        ("http://user@a:1", ("http://a:1",), "user:"),
    ],
)
def test_urls_are_told_from_the_user_in_them(
    given: str, urls: tuple[str, ...], user_info: str
) -> None:
    options = parsed(given)

    assert options.url.urls == urls
    assert options.user_info.text == user_info
    assert options.url.folder == ""


@pytest.mark.parametrize(
    ("given", "folder"),
    [("/data/registry", "/data/registry"), ("file:/data/registry", "/data/registry"), ("./r", "r")],
)
def test_a_folder_is_made_absolute(given: str, folder: str) -> None:
    options = parsed(given)

    assert options.url.folder == str(Path(folder) if folder[0] == "/" else Path.cwd() / folder)
    assert options.url.urls == ()
    assert str(options.url) == options.url.folder


@pytest.mark.parametrize(
    "url",
    [
        "", "registry:8081", "ftp://registry", "mock://registry", "http://", "http://a:99999999",
        "http://a?x=1", "http://a#x", "http://a, /data", ",", "http://,",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(
        ConfigError, match=r"schema\.registry\.url.*accepted: URLs of http"
    ) as error:
        parsed(url)
    assert "http://localhost:8081" in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{PASSWORD},@a:1",
        f"http://user:{PASSWORD}/@a:1",
        f"http://user:{PASSWORD}@",
        f"http://user:{PASSWORD}@a:1,http://user:other@b:1",
        f"user:{PASSWORD}@registry:8081",
        f"ftp://user:{PASSWORD}@registry",
    ],
)
def test_an_address_with_a_password_that_is_refused_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        parsed(url)
    assert PASSWORD not in str(error.value)


def test_a_repr_has_no_secret() -> None:
    shown = [
        repr(parsed(f"http://user:{PASSWORD}@a")),
        repr(parsed(basic_auth_user_info=f"user:{PASSWORD}")),
        repr(parsed(basic_auth_user_info="user", basic_auth_password=PASSWORD)),
        repr(parsed(bearer_auth_token=PASSWORD, ssl_key_password=PASSWORD)),
    ]

    assert all("RegistryOptions(url=http://" in one for one in shown)
    assert not any(PASSWORD in one for one in shown)


def test_the_password_may_be_an_option_of_its_own() -> None:
    options = parsed(basic_auth_user_info="user", basic_auth_password="a:b")

    assert options.user_info.text == "user:a:b"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"basic_auth_credentials_source": "USER_INFO"}, "is not given"),
        ({"basic_auth_credentials_source": "SASL_INHERIT"}, "accepted: URL, USER_INFO"),
        ({"basic_auth_credentials_source": "URL", "basic_auth_user_info": "a:b"}, "once"),
        ({"url": "http://a:b@c", "basic_auth_user_info": "a:b"}, "once"),
        ({"basic_auth_user_info": "user"}, "neither is the case"),
        ({"basic_auth_user_info": "a:b", "basic_auth_password": "c"}, "neither is the case"),
        ({"basic_auth_password": "c"}, "neither is the case"),
        ({"basic_auth_user_info": "a:b", "bearer_auth_token": "c"}, "give one of them"),
        ({"url": "http://a:b@c", "bearer_auth_token": "c"}, "give one of them"),
        ({"bearer_auth_token": "a\r\nHost: b"}, "characters that no token has"),
        ({"bearer_auth_tokens": "a"}, r"nearest known one is 'schema\.registry\.bearer\.auth\.token'"),
        ({"bearer_auth_token": 7}, "is of type int"),
        ({"ssl_truststore_type": "JKS"}, "keytool"),
        ({"ssl_truststore_password": "x"}, "leave it out"),
        (
            {"ssl_truststore_location": "a.pem", "ssl_truststore_certificates": "b"},
            r"'schema\.registry\.ssl\.truststore\.location' and 'schema\.registry\.ssl\.truststore",
        ),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parsed(**given)


def test_an_option_that_is_given_twice_is_refused_without_its_values() -> None:
    with pytest.raises(ConfigError, match="is given twice") as error:
        parse_registry_options(
            {
                "schema.registry.url": URL,
                "schema.registry.bearer.auth.token": PASSWORD,
                "SCHEMA.REGISTRY.bearer.auth.token": "another",
            }
        )
    assert PASSWORD not in str(error.value)


def test_options_without_a_url_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'schema\.registry\.url' is not given"):
        parse_registry_options({"schema.registry.bearer.auth.token": "a"})


def test_tls_is_by_kafkas_options() -> None:
    options = parsed(ssl_truststore_location="/ca.pem", ssl_key_password=PASSWORD, ssl_protocol="x")

    assert options.security.ssl_truststore_location == "/ca.pem"
    assert options.security.ssl_key_password.text == PASSWORD


def test_options_travel_to_tasks_and_identify_a_registry() -> None:
    options = parsed(basic_auth_user_info="user:pass")
    copy = pickle.loads(pickle.dumps(options))

    assert copy == options
    assert hash(copy) == hash(options)
    assert copy.user_info.text == "user:pass"
