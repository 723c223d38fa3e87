"""Decoding of UTF-8 into one Arrow array of strings, with an error for each bad row."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa

from spark_kbatch.values.decoded import DecodedValues, RowError
from spark_kbatch.values.framing import NO_SCHEMA_ID

OnBadText = Literal["strict", "replace"]  # what to do about bytes that are not UTF-8


class TextDecoder:
    """Decodes byte strings into strings; with "replace", U+FFFD is put for bytes that are not UTF-8."""

    def __init__(self, on_bad_text: OnBadText = "strict") -> None:
        self._on_bad_text = on_bad_text

    def decode(self, array: pa.Array, *, memory_max: int | None = None) -> DecodedValues:
        """Decode an array of binary, whose bytes are shared, but for what is not UTF-8."""
        schema_ids = np.full(len(array), NO_SCHEMA_ID, np.int32)
        try:
            values = array.cast(pa.string())  # shares the bytes, and checks them
        except pa.ArrowInvalid:
            texts: list[str | None] = []
            errors = []
            for row, data in enumerate(array.to_pylist()):
                try:
                    texts.append(None if data is None else data.decode(errors=self._on_bad_text))
                except UnicodeDecodeError as error:
                    texts.append(None)
                    errors.append(
                        RowError(
                            row, f"{data[error.start]:#04x} is not UTF-8", position=error.start
                        )
                    )
            return DecodedValues(pa.array(texts, pa.string()), schema_ids, tuple(errors))
        return DecodedValues(values, schema_ids, ())
