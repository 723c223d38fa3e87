"""Two versions of a schema of orders, and what Spark makes of the second."""

from __future__ import annotations

from tests.support.avro import a_record

CUSTOMER = a_record(("id", "int"), ("city", ["null", "string"]), name="Customer")
FIRST = a_record(("id", "long"), ("customer", CUSTOMER), name="Order")
SECOND = a_record(
    *FIRST["fields"],
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "default": "\x00"},
    {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    {"name": "counts", "type": {"type": "map", "values": "int"}, "default": {}},
    {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
    {"name": "local", "type": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}], "default": None},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 0},
    {"name": "either", "type": ["null", "string", "long"], "default": None},
    name="Order",
)  # fmt: skip
SECOND_TYPE = (
    "struct<id:bigint,customer:struct<id:int,city:string>,price:decimal(9,2),tags:array<string>,"
    "counts:map<string,int>,at:timestamp,local:timestamp_ntz,day:date,"
    "either:struct<member0:string,member1:bigint>>"
)
