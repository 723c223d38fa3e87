"""What a session's settings for S3 say is translated to options of a bucket's store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_kbatch
from spark_kbatch.errors import ConfigError
from spark_kbatch.spark.hadoop import translated
from tests.support.bucket_objects import values
from tests.support.object_servers import KEY, SECRET, ObjectServer, moto
from tests.support.store_proxy import StoreProxy

KEYS = {"access.key": KEY, "secret.key": SECRET}
WITH_KEYS = {"store.access.key.id": KEY, "store.secret.access.key": SECRET}
PROVIDER = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        (KEYS, WITH_KEYS),
        ({**KEYS, "session.token": "t"}, {**WITH_KEYS, "store.session.token": "t"}),
        ({"endpoint": "http://localhost:9000"}, {"store.endpoint": "http://localhost:9000"}),
        ({"endpoint": "minio:9000"}, {"store.endpoint": "https://minio:9000"}),
        ({"endpoint": "minio:9000", "connection.ssl.enabled": "true"}, {"store.endpoint": "https://minio:9000"}),
        ({"endpoint": "minio:9000", "connection.ssl.enabled": "false"}, {"store.endpoint": "http://minio:9000"}),
        ({"endpoint.region": "eu-west-1"}, {"store.region": "eu-west-1"}),
        ({"endpoint": "s3.amazonaws.com"}, {}),
        ({"endpoint": "https://s3.eu-central-1.amazonaws.com"}, {"store.region": "eu-central-1"}),
        ({"endpoint": "s3-us-west-2.amazonaws.com"}, {"store.region": "us-west-2"}),
        ({"endpoint": "s3.cn-north-1.amazonaws.com.cn"}, {"store.region": "cn-north-1"}),
        ({"endpoint": "s3.dualstack.eu-west-3.amazonaws.com"}, {"store.region": "eu-west-3"}),
        (
            {"endpoint": "s3.eu-west-1.amazonaws.com", "endpoint.region": "eu-west-2"},
            {"store.region": "eu-west-2"},
        ),
        (
            {"endpoint": "bucket.vpce-1a.s3.us-east-1.vpce.amazonaws.com"},
            {"store.endpoint": "https://bucket.vpce-1a.s3.us-east-1.vpce.amazonaws.com"},
        ),
        ({**KEYS, "aws.credentials.provider": f"a.Other,\n {PROVIDER}"}, WITH_KEYS),
        ({**KEYS, "aws.credentials.provider": "a.IAMInstanceCredentialsProvider"}, {}),
    ],
)  # fmt: skip
def test_settings_become_options(settings: dict[str, str], options: dict[str, str]) -> None:
    assert translated(lambda name: settings.get(name, "")) == options


def test_a_session_of_spark_connect_has_no_settings_to_translate() -> None:
    with pytest.raises(ConfigError, match="Spark Connect"):
        spark_kbatch.store_options(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["az://container/place", "gs://bucket/place", "a/folder"])
def test_other_stores_have_no_such_settings(url: str) -> None:
    with pytest.raises(ConfigError, match=r"only settings fs\.s3a"):
        spark_kbatch.store_options(object(), url)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """A store whose creates go on one at a time: moto's own are not atomic, which a probe may find."""
    with moto(tmp_path_factory.mktemp("moto")) as server, StoreProxy(server.address) as proxy:
        yield server._replace(address=proxy.address)


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[dict[str, str]]:
    """Settings of the session, which are gone after the test once they are in here."""
    given: dict[str, str] = {}
    yield given
    for key in given:
        spark.conf.unset(key)


def set_all(spark: SparkSession, settings: dict[str, str], **values_by_name: Any) -> None:
    for name, value in values_by_name.items():
        key = f"fs.s3a.{name.replace('_', '.')}"
        settings[key] = value
        spark.conf.set(key, value)


@pytest.mark.spark
def test_a_session_with_settings_for_s3_writes_and_reads_with_them(
    spark: SparkSession, server: ObjectServer, settings: dict[str, str]
) -> None:
    set_all(
        spark, settings, endpoint=server.address, connection_ssl_enabled="false",
        access_key="of another bucket", secret_key="of another bucket", endpoint_region="us-east-1",
        bucket_events_access_key=KEY, bucket_events_secret_key=SECRET,
    )  # fmt: skip
    url = server.url.replace("s3://", "s3a://")
    options = spark_kbatch.store_options(spark, url)

    frame = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("kbatch").options(**options, topic="events").mode("append").save(url)

    assert options == {**server.options(), "store.region": "us-east-1"}
    rows = spark.read.format("kbatch").options(**options, subscribe="events").load(url).collect()
    assert sorted(bytes(row.value) for row in rows) == [b"0", b"1", b"2"]
    with spark_kbatch.open(url, store=options) as cluster:
        assert sorted(values(cluster)) == ["0", "1", "2"]


@pytest.mark.spark
def test_the_token_of_a_session_is_refused_for_a_stream_and_not_shown(
    spark: SparkSession, settings: dict[str, str]
) -> None:
    set_all(spark, settings, access_key=KEY, secret_key=SECRET, session_token="a-token-of-tests")
    assert spark_kbatch.store_options(spark)["store.session.token"] == "a-token-of-tests"
    with pytest.raises(ConfigError, match=r"store\.credentials") as raised:
        spark_kbatch.store_options(spark, stream=True)
    assert "a-token-of-tests" not in str(raised.value)


@pytest.mark.spark
def test_settings_that_do_not_fit_together_are_refused(
    spark: SparkSession, settings: dict[str, str]
) -> None:
    set_all(spark, settings, access_key=KEY)
    with pytest.raises(ConfigError, match="give both"):
        spark_kbatch.store_options(spark)
