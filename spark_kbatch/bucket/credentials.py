"""Credentials from a function of the user's, which the option `store.credentials` names.

    def credentials(url):
        return {"access_key_id": "..", "secret_access_key": "..", "token": "..", "expires_at": when}

Each process imports the function and calls it with the bucket's URL: before its first request, again some time
before `expires_at`, a datetime with a time zone, and again after the store did not accept what it returned. What a
store takes:

    s3          access_key_id, secret_access_key, and token if there is one
    Azure       access_key, sas_token or token
    Google      token

Without `expires_at` they count as good for the life of the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from spark_kbatch.errors import ConfigError
from spark_kbatch.options import kinds
from spark_kbatch.options.object_store import CREDENTIALS
from spark_kbatch.options.security import Secret

logger = logging.getLogger(__name__)

# The part of the time until they expire, and the most of it, in which they are renewed.
_MARGIN, _MARGIN_MAX = 0.2, timedelta(minutes=5)
_EXPIRES_AT = "expires_at"
_TEXTS = ("access_key_id", "secret_access_key", "token", "access_key", "sas_token")
_ACCEPTED = f"a mapping of text by {', '.join(_TEXTS)}, with {_EXPIRES_AT} as a datetime that has a time zone, or None"


class FunctionCredentials:
    """Credentials for a bucket from a function of the user's, in the form that the library of stores takes."""

    def __init__(self, url: str, path: str) -> None:
        """Import the function.

        Args:
            url: of the bucket.
            path: "package.module:function".

        Raises:
            ConfigError: it cannot be imported, or is not a function.
        """
        self._url, self._path = url, path
        accepted = "'package.module:function', a function of the bucket's URL"
        self._function: Callable[[str], Any] = kinds.imported(CREDENTIALS, path, accepted)
        self.secrets: tuple[Secret, ...] = ()  # that it returned last

    def __call__(self) -> dict[str, Any]:
        """Call the function; raises ConfigError if it fails, or returns something else."""
        logger.debug("asking %s for credentials", self._path)
        try:
            returned = self._function(self._url)
        except Exception as error:
            raise ConfigError(
                f"option {CREDENTIALS!r} is {self._path!r}, which raised {type(error).__name__}: {error}"
            ) from error
        found = self._checked(returned)
        self.secrets = tuple(
            Secret(value) for key, value in found.items() if key in _TEXTS and value
        )
        expires_at = found[_EXPIRES_AT]
        if expires_at is not None:
            left = expires_at - datetime.now(UTC)
            found[_EXPIRES_AT] = expires_at - min(left * _MARGIN, _MARGIN_MAX)
        return found

    def _checked(self, found: Any) -> dict[str, Any]:
        wrong = ""
        if not isinstance(found, Mapping):
            wrong = f"a {type(found).__name__}"
        else:
            for key, value in found.items():
                is_time = isinstance(value, datetime) and value.tzinfo is not None
                if key == _EXPIRES_AT:
                    wrong = wrong or (
                        "" if value is None or is_time else f"{_EXPIRES_AT}={value!r}"
                    )
                elif key not in _TEXTS:
                    wrong = wrong or f"the key {key!r}"
                elif not (isinstance(value, str) or (value is None and key == "token")):
                    wrong = wrong or f"{key} of type {type(value).__name__}"
        if wrong:
            raise ConfigError(
                f"option {CREDENTIALS!r} is {self._path!r}, which returned {wrong}; accepted: {_ACCEPTED}"
            )
        return {_EXPIRES_AT: None, **found}
