"""Objects in a real store, over the library `obstore`, which the extra `bucket` installs.

Four things about the library are minded here:

- It has threads of its own, which a fork does not take along: in a child whose parent had used it the first
  call would hang. So such a child gets an error.
- It retries what fails. A create must be asked once: where it is repeated after a lost answer, the store says that
  the object exists, which is its own. So creates go through a second client, which retries nothing.
- It retries requests that fail, but not all whose answer breaks off in the middle. So reads are asked again.
- A list of a folder on disk is in no order.

A status of 409, for a create that met another one, is an "exists" for the library too. What it cannot tell apart
from a lost answer, such as 429, counts as UNKNOWN.

Credentials may come from a function of the user's, which the option `store.credentials` names:

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

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from spark_kbatch.bucket.objects import CreateAnswer, ObjectInfo, pause_by_chance
from spark_kbatch.clock import monotonic_ms, sleep_ms
from spark_kbatch.errors import (
    INSTALL_EXTRA,
    BucketForkedError,
    ConfigError,
    NoCredentialsError,
    ObjectAccessDeniedError,
    ObjectStoreError,
)
from spark_kbatch.options import kinds
from spark_kbatch.options.object_store import CREDENTIALS, store_kind
from spark_kbatch.options.security import Secret, without_secrets

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

UPLOAD_PART_BYTES = 8 << 20
_UPLOADS_AT_ONCE = 2  # parts of one upload that are in memory and on their way
_LISTED_AT_ONCE = 1000
_READS_MAX, _ASKED_AGAIN_MS, _PAUSE_MS = 5, 10_000, 20
_SECRET_LENGTH_MIN = 4
# Some stores repeat in an error what they were asked with.
_SECRET_VARIABLES = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CLIENT_SECRET",
)  # fmt: skip
# Lists, deletes of several objects and parts of uploads are refused by other errors than single
# objects are; and some credentials by 400 and a code, among them those of S3 that have expired.
_DENIED = re.compile(
    r"status code: 40[13]\b|\b(AccessDenied|ExpiredToken|InvalidToken|TokenRefreshRequired"
    r"|RequestExpired|InvalidAuthenticationInfo)\b"
)
_ASKED = re.compile(r"\bperforming [A-Z]+ (https?://\S+)")
_REFUSED_BY_OTHERS = re.compile(r"status code: 4")
_LIMITS = re.compile(r" retries, max_retries: \d+, retry_timeout: \S+")
_OWN_VIEW = "\n\nDebug source:"
# Of an answer that may repeat a token elsewhere.
_CODE = re.compile(r"<(?:Code|Message)>([^<]+)<")
_LOOKED_AT = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "azure": "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_SECRET",
    "google": "GOOGLE_SERVICE_ACCOUNT, GOOGLE_APPLICATION_CREDENTIALS",
}
_NO_RETRIES = {"max_retries": 0}
_SCHEMES_WITHOUT_CLIENT = ("memory", "file")

# The part of the time until credentials expire, and the most of it, in which they are renewed.
_MARGIN, _MARGIN_MAX = 0.2, timedelta(minutes=5)
_EXPIRES_AT = "expires_at"
_TEXTS = ("access_key_id", "secret_access_key", "token", "access_key", "sas_token")
_ACCEPTED = f"a mapping of text by {', '.join(_TEXTS)}, with {_EXPIRES_AT} as a datetime that has a time zone, or None"

_process_id: int | None = (
    None  # the first process that used the library: this one, or one it is a fork of
)


def _remember_use() -> None:
    """Note that this process uses the library.

    Raises:
        BucketForkedError: it is a fork of a process that has used it.
    """
    global _process_id
    if _process_id is None:
        _process_id = os.getpid()
    elif _process_id != os.getpid():
        raise BucketForkedError(_process_id, os.getpid())


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


class RealObjects:
    """The objects at a URL; `Objects`. Thread-safe.

    What it is made of does not go to another process: each opens the URL by itself.
    """

    def __init__(
        self,
        url: str,
        config: Mapping[str, Any] | None = None,
        client_options: Mapping[str, Any] | None = None,
        credentials: FunctionCredentials | None = None,
        secrets: Iterable[Secret] = (),
    ) -> None:
        """Open the objects below a URL, such as s3://bucket/prefix, without a request.

        Args:
            url: with a scheme of the library's.
            config: settings of the library for the store: its endpoint, credentials, region.
            client_options: settings of the library for connections.
            credentials: where they come from, if not from the settings or the environment.
            secrets: texts in the settings that errors do not show.

        Raises:
            ConfigError: the library is missing, or refuses the URL or a setting.
            BucketForkedError: this is a fork of a process that has used the library.
        """
        _remember_use()
        self._obstore = _library()
        self._is_ordered = url.partition(":")[0] not in _SCHEMES_WITHOUT_CLIENT
        self._credentials, self._secrets = credentials, tuple(secrets)
        self._url = url
        settings: dict[str, Any] = {}
        if self._is_ordered:
            settings = {
                "config": dict(config or {}),
                "client_options": dict(client_options or {}),
                **({} if credentials is None else {"credential_provider": credentials}),
            }

        def client(retrying: Mapping[str, Any]) -> Any:
            return self._opened({**settings, **retrying})

        self._client = client  # no attribute holds what is in the settings
        self._open()

    def _open(self) -> None:
        """Make the clients, which keep what they know of credentials."""
        self._store = self._client({})
        self._creating = None if self._is_ordered else self._store  # once one is needed: 4 ms

    def _client_for_creates(self) -> Any:
        found = self._creating  # another thread may set it to None
        if found is None:
            found = self._creating = self._client({"retry_config": _NO_RETRIES})
        return found

    def _opened(self, settings: Mapping[str, Any]) -> Any:
        try:
            return self._obstore.store.from_url(self._url, **settings)
        except (self._obstore.exceptions.BaseError, ValueError) as error:
            raise ConfigError(f"{self._url} cannot be opened: {self._said(error)}") from None
        except BaseException as error:
            # So the library answers to some settings that it does not know.
            if type(error).__name__ != "PanicException":
                raise
            raise ConfigError(
                f"{self._url} cannot be opened: a setting is wrong: {self._said(error)}"
            ) from None

    def __repr__(self) -> str:
        return f"RealObjects({self._url!r})"

    def __reduce__(self) -> str:
        raise TypeError("objects of a bucket do not go to another process; open the URL there")

    def get(self, name: str) -> bytes | None:
        """Return an object's content; None if there is none."""
        return self._read(name, lambda: bytes(self._obstore.get(self._store, name).bytes()))

    def get_many(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of several objects."""
        if len(names) < 2:
            return [self.get(name) for name in names]
        with ThreadPoolExecutor(len(names), "kbatch-bucket") as pool:
            return [*pool.map(self.get, names)]

    def get_range(self, name: str, position: int, size_in_bytes: int) -> bytes | None:
        """Return a range of an object."""

        def get() -> bytes:
            found = self._obstore.get_range(self._store, name, start=position, length=size_in_bytes)
            if len(found) != size_in_bytes:
                raise ObjectStoreError("get", name, f"{len(found)} bytes came of {size_in_bytes}")
            return bytes(found)

        return self._read(name, get)

    def _read(self, name: str, get: Callable[[], bytes]) -> bytes | None:
        """Return what `get` gets of an object; None if there is none."""
        return self._with_credentials(lambda: _asked_again(lambda: self._found("get", name, get)))

    def _found(self, request: str, name: str, ask: Callable[[], _Answer]) -> _Answer | None:
        """Return the answer to a request; None if there is no such object."""
        with self.failures(request, name), contextlib.suppress(FileNotFoundError):
            return ask()
        return None

    def create(self, name: str, data: bytes) -> CreateAnswer:
        """Create an object unless it exists; asks the store once."""
        kinds = self._obstore.exceptions
        try:
            with self.failures("create", name):
                try:
                    client = self._client_for_creates()
                    self._obstore.put(client, name, data, mode="create", use_multipart=False)
                except (kinds.AlreadyExistsError, kinds.PreconditionError):
                    return CreateAnswer.EXISTS
        except ObjectStoreError:
            return CreateAnswer.UNKNOWN
        return CreateAnswer.CREATED

    def put(self, name: str, data: bytes) -> None:
        """Create an object, or replace it."""

        def put() -> None:
            with self.failures("put", name):
                self._obstore.put(self._store, name, data, use_multipart=False)

        self._with_credentials(put)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects in the order of names."""
        found = self._list(prefix, start_after)
        return found if self._is_ordered else iter(sorted(found))

    def _list(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        after, chunks = start_after, None

        def next_chunk() -> Sequence[Any] | None:
            nonlocal chunks
            with self.failures("list", prefix):
                try:
                    if chunks is None:
                        chunks = self._obstore.list(
                            self._store, prefix, offset=after or None, chunk_size=_LISTED_AT_ONCE
                        )
                    return next(chunks, None)
                except BaseException:
                    chunks = None  # it goes on after an error as if that was the end
                    raise

        while (
            chunk := self._with_credentials(
                lambda: _asked_again(next_chunk) if self._is_ordered else next_chunk()
            )
        ) is not None:
            for one in chunk:
                modified_ms = round(one["last_modified"].timestamp() * 1000)
                yield ObjectInfo(one["path"], one["size"], modified_ms)
                after = one["path"]

    def copy(self, name: str, to: str) -> bool:
        """Copy an object within the store."""

        def copy() -> bool:
            self._obstore.copy(self._store, name, to)
            return True

        return bool(self._with_credentials(lambda: self._found("put", to, copy)))

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects."""
        wanted = [*names]

        def delete() -> None:
            with self.failures("delete", wanted[0]):
                try:
                    self._obstore.delete(self._store, wanted)
                except FileNotFoundError:
                    # Some stores say so of one that is gone, and may have left out the others.
                    for name in wanted:
                        with contextlib.suppress(FileNotFoundError):
                            self._obstore.delete(self._store, name)

        if wanted:
            self._with_credentials(delete)

    def upload(self, name: str) -> _RealUpload:
        """Begin an object that is put at once if it is small, and else in parts of UPLOAD_PART_BYTES."""
        return _RealUpload(self, name)

    def open_writer(self, name: str) -> Any:
        """Begin an object that is put in parts of UPLOAD_PART_BYTES, as the library's own writer."""
        with self.failures("put", name):
            return self._obstore.open_writer(
                self._store,
                name,
                buffer_size=UPLOAD_PART_BYTES,
                max_concurrency=_UPLOADS_AT_ONCE,
            )

    def holds(self, name: str, size: int) -> bool:
        """Return True if an object is there, with that size; False if the store does not tell."""
        with contextlib.suppress(ObjectStoreError, ObjectAccessDeniedError):
            with self.failures("head", name):
                found: int = self._obstore.head(self._store, name)["size"]
            return found == size
        return False

    def _with_credentials(self, ask: Callable[[], _Answer]) -> _Answer:
        """Return the answer to a request, which is repeated with new credentials of a function if it is denied."""
        try:
            return ask()
        except ObjectAccessDeniedError:
            if self._credentials is None:
                raise
        return ask()

    @contextlib.contextmanager
    def failures(self, request: str, name: str) -> Iterator[None]:
        """Raise the library's errors within as those of `Objects`.

        Those who ask for an object that may be missing handle that before.
        """
        _remember_use()
        kinds = self._obstore.exceptions
        try:
            yield
        except (kinds.BaseError, OSError) as error:
            said = self._said(error)
            is_denied = isinstance(error, (kinds.PermissionDeniedError, kinds.UnauthenticatedError))
            asked = _ASKED.search(said)
            if asked and not _is_of(asked[1], self._url):
                looked = _LOOKED_AT.get(store_kind(self._url), "")
                why = (
                    f"looked at the options store.*, {looked} and the machine's metadata service; "
                    f"then: {said}"
                )
                if _REFUSED_BY_OTHERS.search(said):
                    raise NoCredentialsError(request, name, why) from None
                why = f"no credentials were found: {why}"
                raise ObjectStoreError(request, name, why) from None
            if not (is_denied or _DENIED.search(said)):
                raise ObjectStoreError(request, name, said) from None
            if self._credentials is not None:
                self._open()  # so that the next request asks for new ones
            raise ObjectAccessDeniedError(request, name, said) from None

    def _said(self, error: BaseException) -> str:
        """Return what the library says of an error, without what may name headers."""
        lines = str(error).partition(_OWN_VIEW)[0].splitlines() or [type(error).__name__]
        # Of an answer in XML only what tells something: some have the token in them, too.
        first = _LIMITS.sub(" times", lines[0])
        text = " ".join((first.partition("<")[0].rstrip(), *_CODE.findall("".join(lines))))
        named = [Secret(os.environ.get(variable, "")) for variable in _SECRET_VARIABLES]
        returned = self._credentials.secrets if self._credentials is not None else ()
        secrets = [one.text for one in (*self._secrets, *returned, *named)]
        long = [one for one in secrets if len(one) >= _SECRET_LENGTH_MIN]
        return without_secrets(text.encode(errors="replace"), long)


class _RealUpload:
    """An upload; what fits into one part is one put, which can be repeated."""

    def __init__(self, objects: RealObjects, name: str) -> None:
        self._objects, self._name = objects, name
        self._held = bytearray()
        self._writer: Any = None  # of an object that is larger than a part
        self._size = 0  # of what it was given

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._writer is None:
            if len(self._held) + len(data) <= UPLOAD_PART_BYTES:
                self._held += data
                return
            self._writer = self._objects.open_writer(self._name)
            data, self._held = self._held + data, bytearray()
        self._size += len(data)
        with self._objects.failures("put", self._name):
            self._writer.write(bytes(data))  # it looks at the buffer later

    def finish(self) -> None:
        if self._writer is None:
            self._objects.put(self._name, bytes(self._held))
            return
        try:
            with self._objects.failures("put", self._name):
                self._writer.close()
        except ObjectStoreError:
            # If the answer to the last request is lost, the library sends that again, and stores refuse it.
            # No one else puts an object of this name.
            if not self._objects.holds(self._name, self._size):
                raise

    def abandon(self) -> None:
        self._writer, self._held = None, bytearray()


def _is_of(asked: str, url: str) -> bool:
    """Return True if a request went to the store of a URL, so it names its host or its bucket.

    What is below the bucket tells nothing: AWS's metadata service has a `latest` too.
    """
    host, *path = asked.partition("://")[2].replace("?", "/").split("/")
    names = url.partition("://")[2].partition("/")[0].split("@")
    return any(name in (host, *path) or host.startswith(f"{name}.") for name in names)


def _asked_again(ask: Callable[[], _Answer]) -> _Answer:
    """Return the answer to a read, which is asked again if it fails soon; later the library has retried it."""
    deadline_ms = monotonic_ms() + _ASKED_AGAIN_MS
    for attempt in range(_READS_MAX - 1):
        try:
            return ask()
        except ObjectStoreError:
            if monotonic_ms() >= deadline_ms:
                raise
            sleep_ms(pause_by_chance(_PAUSE_MS << attempt))
    return ask()


def _library() -> Any:
    try:
        import obstore  # noqa: PLC0415  only those who use a bucket have it
        import obstore.exceptions  # noqa: PLC0415
        import obstore.store  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigError(
            f"a bucket needs the package obstore: {INSTALL_EXTRA.format('bucket')}"
        ) from None
    return obstore
