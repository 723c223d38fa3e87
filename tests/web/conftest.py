"""What all tests of pages need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kbatch.web import app
from tests.support.pages import TIMEOUT_S


@pytest.fixture(scope="session", autouse=True)
def _no_page_is_late() -> Iterator[None]:
    """Let visitors wait as long as tests do: on a machine with much else to do, any page may take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "_ANSWERED_WITHIN_S", TIMEOUT_S)
        yield
