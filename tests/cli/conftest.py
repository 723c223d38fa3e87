"""What tests of commands leave behind in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _level_of_the_log() -> Iterator[None]:
    """Restore the level of the log, which a command sets for its process."""
    logger = logging.getLogger("spark_kbatch")
    level = logger.level
    yield
    logger.setLevel(level)
