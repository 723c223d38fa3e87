"""Errors for missing tools that the other tests here need."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka import Kafka, MissingToolError, class_path

pytestmark = pytest.mark.interop


def test_the_error_for_a_missing_maven_has_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(MissingToolError, match="apt-get install maven"):
        class_path(tmp_path)


def test_the_error_for_a_missing_java_has_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    with pytest.raises(MissingToolError, match=r"sh conf/ensure-java\.sh"):
        Kafka("")
