"""The fixture of Kafka's own tools, for the folders of tests that run them."""

from __future__ import annotations

import pytest

from tests.support.kafka import Kafka, MissingToolError, class_path


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Kafka:
    try:
        return Kafka(class_path(tmp_path_factory.mktemp("kafka")))
    except MissingToolError as missing:
        pytest.fail(str(missing), pytrace=False)
