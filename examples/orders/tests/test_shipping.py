import json
from itertools import count

import pytest
from shipping import ship

INVOICES = [("ada", {"id": "o-1"}), ("bob", {"id": "o-2"}), ("eve", "no JSON")]


@pytest.fixture
def topics(kafka, kbatch_topic) -> dict[str, str]:
    """The topics of the service, under names that no other test uses, and its group."""
    names = {name: kbatch_topic(name) for name in ("parcels", "rejected")}
    names["invoices"] = names["group"] = kbatch_topic("invoices", INVOICES)
    return names


def test_each_invoice_is_shipped_once_or_put_aside(kafka, topics, kbatch_records) -> None:
    ship(kafka.bootstrap_servers, lambda: committed(kafka, topics) == 3, **topics)

    assert [one["value"] for one in kbatch_records(topics["rejected"])] == ["no JSON"]
    assert shipped(kbatch_records(topics["parcels"], 2)) == [("ada", "o-1"), ("bob", "o-2")]
    assert committed(kafka, topics) == 3


def test_a_restarted_service_goes_on_after_the_last_invoice(
    kafka, topics, kbatch_topic, kbatch_records
) -> None:
    ship(kafka.bootstrap_servers, lambda: committed(kafka, topics) == 3, **topics)
    kbatch_topic.send(topics["invoices"], [("ida", {"id": "o-5"})])
    ship(kafka.bootstrap_servers, lambda: committed(kafka, topics) == 4, **topics)

    assert shipped(kbatch_records(topics["parcels"], 3))[2:] == [("ida", "o-5")]


def test_a_new_leader_costs_no_parcel(kafka, topics, kbatch_records) -> None:
    attempts = count(1)
    kafka.intercept(
        "Produce", lambda request: next(attempts) <= 2 and request.fail("NOT_LEADER_OR_FOLLOWER")
    )
    ship(kafka.bootstrap_servers, lambda: committed(kafka, topics) == 3, **topics)

    assert shipped(kbatch_records(topics["parcels"], 2)) == [("ada", "o-1"), ("bob", "o-2")]
    assert next(attempts) - 1 == 3 + 2


def committed(kafka, topics) -> int:
    """Return how many invoices the service is done with."""
    groups = {group.group_id: group for group in kafka.cluster.groups()}
    offsets = groups[topics["group"]].offsets if topics["group"] in groups else {}
    return sum(one.committed_offset or 0 for one in offsets.values())


def shipped(parcels) -> list[tuple[str, str]]:
    return [(one["key"], json.loads(one["value"])["id"]) for one in parcels]
