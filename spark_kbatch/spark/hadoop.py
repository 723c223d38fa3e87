"""Options of a bucket's store from the Hadoop configuration of a session, which Spark's own S3 reads go by.

    fs.s3a.access.key, fs.s3a.secret.key    store.access.key.id, store.secret.access.key
    fs.s3a.session.token                    store.session.token
    fs.s3a.endpoint.region                  store.region
    fs.s3a.endpoint                         store.endpoint, unless it is Amazon's own
    fs.s3a.connection.ssl.enabled           whether an endpoint without `http://` or `https://` has TLS

A setting `fs.s3a.bucket.BUCKET.NAME` comes before `fs.s3a.NAME` for that bucket. Keys are taken only if one of the
configured `fs.s3a.aws.credentials.provider` takes them.

Source: Hadoop's documentation of S3A, "General S3A Client configuration", "Configuring different S3 buckets with
Per-Bucket Configuration".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from spark_kbatch.errors import ConfigError
from spark_kbatch.options import arguments
from spark_kbatch.options.object_store import CREDENTIALS, parse_store_options, store_kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIX = "fs.s3a."
_AMAZON = re.compile(r"(?:^|\.)s3[.-](?:dualstack\.)?(?:([a-z0-9-]+)\.)?amazonaws\.com(?:\.cn)?$")
# Providers of credentials that take them from the configuration.
_WITH_KEYS = ("SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider")
_IN_LISTS = re.compile(r"[,\s]+")


def store_options(spark: SparkSession, url: str, *, stream: bool) -> dict[str, str]:
    """Return the options that a session's configuration has, as `spark_kbatch.store_options` says."""
    arguments.text("url", url)
    arguments.boolean("stream", stream)
    if url and store_kind(url) != "s3":
        raise ConfigError(
            f"{url!r} is not in S3, and only settings fs.s3a.* can be translated; give the options `store.*` of "
            "its store"
        )
    found = translated(_lookup(spark, urlsplit(url).netloc))
    if stream and "store.session.token" in found:
        raise ConfigError(
            "the session's fs.s3a.session.token ends while a stream runs on, and then the stream fails; give the "
            f"option {CREDENTIALS!r} instead, a function that each process asks for new credentials"
        )
    parse_store_options(found, url or "s3a://bucket")
    return found


def _lookup(spark: SparkSession, bucket: str) -> Callable[[str], str]:
    """Return a function that returns a setting of S3A by the end of its name; empty if there is none."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        raise ConfigError(
            "this session is one of Spark Connect, whose Hadoop configuration is on the server; give the options "
            "`store.*`, or let the server's environment have them"
        )
    configuration = session.sessionState().newHadoopConf()

    def look_up(name: str) -> str:
        for key in ([f"{_PREFIX}bucket.{bucket}.{name}"] if bucket else []) + [_PREFIX + name]:
            # Of keys also from the files with credentials that Hadoop knows.
            is_secret = name.endswith((".key", ".token"))
            value = configuration.getPassword(key) if is_secret else configuration.getTrimmed(key)
            if value is not None:
                text = "".join(value).strip()
                if text:
                    return text
        return ""

    return look_up


def translated(look_up: Callable[[str], str]) -> dict[str, str]:
    """Return the options for the settings that are found.

    Args:
        look_up: returns a setting by its name after "fs.s3a."; empty if there is none.
    """
    found = {"store.region": look_up("endpoint.region"), **_endpoint(look_up)}
    providers = _IN_LISTS.split(look_up("aws.credentials.provider"))
    if providers == [""] or any(one.endswith(_WITH_KEYS) for one in providers):
        found["store.access.key.id"] = look_up("access.key")
        found["store.secret.access.key"] = look_up("secret.key")
        found["store.session.token"] = look_up("session.token")
    return {key: value for key, value in found.items() if value}


def _endpoint(look_up: Callable[[str], str]) -> dict[str, str]:
    endpoint = look_up("endpoint")
    if endpoint and "://" not in endpoint:
        is_plain = look_up("connection.ssl.enabled").lower() == "false"
        endpoint = f"{'http' if is_plain else 'https'}://{endpoint}"
    amazon = _AMAZON.search(urlsplit(endpoint).hostname or "")
    if amazon is None:
        return {"store.endpoint": endpoint}
    region = look_up("endpoint.region") or amazon[1] or ""
    return {"store.region": region}
