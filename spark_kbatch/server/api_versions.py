"""ApiVersions: the requests, with their versions, that this server answers.

It is every client's first request, sent before it knows which versions the server supports. So a request
of an unknown version is answered in version 0, with the error and the list.

Source: KIP-511; ApiVersionsRequest.isValid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from spark_kbatch.server.requests import Received, Respond
from spark_kbatch.wire import protocol
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import Versions

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_WITH_SOFTWARE = 3


class ApiVersionsHandler:
    """Handler of ApiVersions requests."""

    def __init__(self, supported: Callable[[], Mapping[int, Versions]]) -> None:
        """Answer with what `supported` returns: the supported versions by api key."""
        self._supported = supported

    def handle(self, received: Received, respond: Respond) -> None:
        """Answer an ApiVersions request, which has no decoded body if its version is unknown."""
        body = received.body
        if body is None:
            respond(self._answer(ErrorCode.UNSUPPORTED_VERSION))
            return
        error = 0
        if received.version >= _FIRST_WITH_SOFTWARE:
            software = (body.client_software_name, body.client_software_version)
            if not all(_SOFTWARE.fullmatch(text or "") for text in software):
                error = ErrorCode.INVALID_REQUEST
        respond(self._answer(error))

    def _answer(self, error: int) -> Any:
        response = protocol.ApiVersionsResponse
        keys = [
            response.ApiVersion(api_key=key, min_version=one.first, max_version=one.last)
            for key, one in sorted(self._supported().items())
        ]
        return response(error_code=error, api_keys=keys)
