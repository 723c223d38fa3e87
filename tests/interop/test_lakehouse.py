"""What docs/lakehouse.md says of Delta: a micro-batch that Spark repeats is in each table once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, SPARK
from tests.support.kafka import MissingToolError, class_path

pytestmark = [pytest.mark.interop, pytest.mark.spark]

POM = Path(__file__).with_name("delta-pom.xml")
HAVE_A_JAR = ((4, 0), (4, 1), (4, 2))  # as the page says

PROGRAM = """
import json, os, shutil, sys
from pathlib import Path
from pyspark.sql import SparkSession
import spark_kbatch

jars, lake, block = sys.argv[1:]
spark = (
    SparkSession.builder.config("spark.jars", jars)
    .config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)

def produce(*rooms):
    with spark_kbatch.open(f"{lake}/cluster", create=True) as cluster, cluster.producer() as producer:
        for number, room in enumerate(rooms):
            producer.send("readings", str(number), key=room)

def run():
    readings = (
        spark.readStream.format("kbatch").option("subscribe", "readings")
        .option("startingOffsets", "earliest").load(f"{lake}/cluster")
        .selectExpr("CAST(key AS STRING) AS room", "CAST(value AS STRING) AS reading", "partition", "offset")
    )
    exec(block, {"readings": readings, "lake": lake})

def counts():
    return [spark.read.format("delta").load(f"{lake}/{room}").count() for room in ("cellar", "attic")]

produce("cellar", "attic", "cellar")
run()
found = [counts()]
commits = Path(lake, "checkpoints", "readings", "commits")
newest = max((one for one in commits.iterdir() if one.name.isdigit()), key=lambda one: int(one.name))
for one in (newest, commits / f".{newest.name}.crc"):  # as if it was killed after it had written
    one.unlink(missing_ok=True)
run()
found.append(counts())
produce("attic")
run()
found.append(counts())
print("found", json.dumps(found))
"""


@pytest.mark.skipif(SPARK not in HAVE_A_JAR, reason="Delta has no JAR for this Spark yet")
def test_a_micro_batch_that_is_repeated_is_in_delta_once(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "lakehouse.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- delta -->\n```text\n(.*?)```", page, re.DOTALL)
    assert found is not None
    version = ".".join(map(str, SPARK))
    try:
        jars = class_path(tmp_path, f"-Dspark.version={version}", pom=POM).strip().split(":")
    except MissingToolError as missing:
        pytest.fail(str(missing), pytrace=False)
    # The rest is Spark's own.
    own = ",".join(jar for jar in jars if "/io/delta/" in jar or "/io/unitycatalog/" in jar)
    assert re.search(r"delta-spark_4\.2_2\.13:(\S+?)`", page)[1] in own  # type: ignore[index]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, own, str(tmp_path / "lake"), found[1]],
        capture_output=True, text=True, check=False, timeout=600, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (one for one in done.stdout.splitlines() if one.startswith("found "))
    assert json.loads(line.removeprefix("found ")) == [[2, 1], [2, 1], [2, 2]]
