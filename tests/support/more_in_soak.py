"""Which tests do more in `make soak` than in `make test`: those that it runs besides the slow ones.

Each test of a property has the marker `more_in_soak` by itself, since Hypothesis draws more there. A test that asks
`is_soak` has it by its own hand, and fails without.
"""

from __future__ import annotations

import os

import pytest

MARKER = "more_in_soak"
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "tests")
_may_ask = False


class NotInSoakError(BaseException):
    """No error that a test looks for: one that it does not run may not do more in `make soak`."""


def is_soak() -> bool:
    """Return True in `make soak`. Only a test that it runs may ask."""
    if not _may_ask:
        raise NotInSoakError(f"it does more in `make soak`, so it needs the marker `{MARKER}`")
    return PROFILE == "soak"


def mark(item: pytest.Item) -> None:
    """Mark a test of a property."""
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        item.add_marker(MARKER)


def begin(item: pytest.Item) -> None:
    """Let this test ask, if it is one that `make soak` runs."""
    global _may_ask
    _may_ask = any(item.get_closest_marker(name) for name in ("slow", MARKER))
