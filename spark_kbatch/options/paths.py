"""Paths of folders as users write them: a cluster's, a log dir's; and the schemes of buckets."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from spark_kbatch.errors import ConfigError
from spark_kbatch.options import arguments

StrPath = str | os.PathLike[str]

_NAME_BYTES_MAX = 255
_MEMORY = "memory://"
_NETWORK = ("http", "kafka", "tcp", "ssl", "tls", "plaintext", "sasl")  # how such schemes start
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

FILE_BUCKET, MEMORY_BUCKET = "file+bucket", "memory+bucket"  # for tests
BUCKET_SCHEMES = ("s3", "s3a", "gs", "abfss", "abfs", "az", FILE_BUCKET, MEMORY_BUCKET)


def bucket_scheme(address: object) -> str:
    """Return the scheme of the URL of a bucket, in lower case; empty for any other address."""
    scheme = _SCHEME.match(address) if isinstance(address, str) else None
    found = scheme[1].lower() if scheme else ""
    return found if found in BUCKET_SCHEMES else ""


def is_in_memory(address: object) -> bool:
    """Return True if an address is of topics in this process's memory."""
    return isinstance(address, str) and address.startswith(_MEMORY)


def absolute_path(path: StrPath, name: str = "path") -> Path:
    """Return the folder that `path` names; it may be a `file:` URI, or start with `~`.

    As in Spark, "#" and "?" are ordinary characters of a name, also in a `file:` URI.

    Args:
        path: as the user gave it.
        name: of the argument, for errors.

    Raises:
        ConfigError: another scheme, an empty path, a path that no file system can hold, or not a path.
    """
    text = arguments.path_text(name, path)
    named = text
    scheme = _SCHEME.match(text)
    if scheme:
        if scheme[1].lower() != "file":
            is_network = scheme[1].lower().startswith(_NETWORK)
            raise ConfigError(
                f"path {text!r} has the scheme {scheme[1]!r}; a cluster must be on a POSIX file system "
                "that driver and executors share: give a folder, such as /data/events or "
                f"file:/data/events{'; a real cluster is HOST:PORT alone' * is_network}"
            )
        named = _path_of_file_uri(text)
    if not named.strip():
        raise ConfigError("the path is empty; give the cluster's folder")
    try:
        named.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"path {text!r} has a character that UTF-8 cannot encode; rename the folder"
        ) from None
    if "\0" in named:
        raise ConfigError(f"path {text!r} has a NUL character, which no folder's name may contain")
    longest = max(Path(named).parts, key=lambda part: len(part.encode()), default="")
    if len(longest.encode()) > _NAME_BYTES_MAX:
        raise ConfigError(
            f"path {text!r} has a name of {len(longest.encode())} bytes; file systems allow "
            f"{_NAME_BYTES_MAX}: shorten it"
        )
    if text.startswith("~"):
        try:
            named = str(Path(text).expanduser())
        except RuntimeError:
            raise ConfigError(
                f"path {text!r} starts with '~', but there is no such user with a home folder; for a "
                f"folder whose name starts with '~' give ./{text}"
            ) from None
    # abspath() would keep two leading slashes.
    return Path(f"/{os.path.abspath(named).lstrip('/')}")  # noqa: PTH100  resolve() would follow links that may move


def _path_of_file_uri(text: str) -> str:
    """Return the path in a `file:` URI, unescaped."""
    path = text.partition(":")[2]
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise ConfigError(f"path {text!r} names the host {host!r}; write file:/folder")
        path = slash + rest
    if "%2f" in path.lower():
        raise ConfigError(
            f"path {text!r} has the escape %2F, a slash, which no name may contain; write '/'"
        )
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise ConfigError(
            f"path {text!r} has escapes that are not UTF-8; write the folder without `file:`"
        ) from None
