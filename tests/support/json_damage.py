"""Decodes many damaged values of JSON in a process of its own, and says what that took.

A round has one type and VALUES values. All are decoded at once, and some of them again, alone: they
have the same values and the same errors. Prints {"values", "refused", "peak_mib"}; the peak is that
of the whole process.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa

from spark_kbatch.kernels import jit
from spark_kbatch.values.json_decoder import JsonDecoder
from tests.support.ddls import ddl_of
from tests.support.fuzz_rounds import for_each_round, mutated
from tests.support.json_documents import Documents, a_type
from tests.support.json_rules import JsonRules, comparable

VALUES, DOCUMENTS, ALONE = 200, 10, 3


def main() -> None:
    jit._Spent.plain_us_max = 0  # all is compiled, with bounds checks if the environment says so
    outcomes = Counter[str]()
    for_each_round("json", lambda rng: decode_damaged(rng, outcomes))
    # Of this program: what getrusage says may be of the process that started it.
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak_mib = int(next(line.split()[1] for line in status if line.startswith("VmHWM"))) >> 10
    print(json.dumps({**outcomes, "peak_mib": peak_mib}))


def decode_damaged(rng: random.Random, outcomes: Counter[str]) -> None:
    kind = a_type(rng)
    documents = Documents(rng, kind)
    whole = [documents.any() for _ in range(DOCUMENTS)]
    rows = [mutated(rng, rng.choice(whole)) for _ in range(VALUES - DOCUMENTS)] + whole
    rng.shuffle(rows)
    decoder, rules = JsonDecoder(kind), JsonRules(kind)

    found = decoder.decode(pa.array(rows, pa.binary()))

    found.values.validate(full=True)
    errors = {error.row: error._replace(row=0) for error in found.errors}
    for row in rng.sample(range(VALUES), ALONE):
        about = f"{ddl_of(kind)}: {rows[row]!r}"
        value = comparable(found.values[row].as_py())
        again = decoder.decode(pa.array(rows[row : row + 1]))
        assert comparable(again.values.to_pylist()) == [value], about
        assert again.errors == ((errors[row],) if row in errors else ()), about
        right = rules.decode(rows[row])
        assert (row in errors, value) == (right.is_bad, comparable(right.value)), about
    outcomes["values"] += len(rows)
    outcomes["refused"] += len(errors)


if __name__ == "__main__":
    main()
