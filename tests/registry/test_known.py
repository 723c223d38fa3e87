"""What is known of a registry: in the process, on the machine, and what is not asked for again."""

from __future__ import annotations

import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from spark_kbatch.errors import (
    INSTALL_EXTRA,
    SchemaNotFoundError,
    SchemaRegistryError,
    SchemaRegistryUnavailableError,
)
from spark_kbatch.registry.endpoint import Endpoint, RegistryClient
from spark_kbatch.registry.folder import FolderRegistry
from spark_kbatch.registry.known import KnownSchemas, SchemaCache, registry_of
from spark_kbatch.registry.schemas import (
    LATEST_VERSION,
    ReferencedSchema,
    RegisteredSchema,
    Schema,
    SchemaReference,
)
from tests.registry.conftest import TIMEOUTS, Pauses, endpoint_of, options_of
from tests.support.fake_registry import FakeRegistry

TEXT, LONG = Schema('"string"'), Schema('"long"')
FULL = RegisteredSchema(
    7,
    Schema("message A {}", "PROTOBUF", (SchemaReference("b.proto", "b", 2),)),
    True,
    "orders-value",
    3,
    (ReferencedSchema("b.proto", "b", 2, "message B {}"),),
)
PASSWORD = "password-of-the-test"


def a_process(fake: FakeRegistry, folder: Path, pauses: Pauses | None = None) -> KnownSchemas:
    """Return what a new process knows of a registry, on the machine whose cache is in a folder."""
    pauses = pauses or Pauses()
    endpoint = endpoint_of(fake.url, pauses)
    return KnownSchemas(
        RegistryClient(endpoint),
        RegistryClient(endpoint, retries=False),
        SchemaCache(fake.url, folder=folder),
        monotonic_ms=pauses.monotonic_ms,
    )


def test_an_id_is_asked_for_once_by_all_processes_of_a_machine(
    fake: FakeRegistry, tmp_path: Path
) -> None:
    fake.register("orders-value", TEXT.text)
    first, second = a_process(fake, tmp_path), a_process(fake, tmp_path)

    for registry in (first, first, second, a_process(fake, tmp_path)):
        assert registry.by_id(1, "orders-value").schema == TEXT
    assert len(fake.asked) == 1


def test_threads_that_need_an_id_at_once_ask_for_it_once(
    fake: FakeRegistry, tmp_path: Path
) -> None:
    fake.register("orders-value", TEXT.text)
    registry = a_process(fake, tmp_path)
    found: list[RegisteredSchema] = []
    threads = [
        threading.Thread(target=lambda: found.append(registry.by_id(1, "orders-value")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [one.schema for one in found] == [TEXT] * 8
    assert len(fake.asked) == 1


def test_the_ids_of_versions_are_known_once_these_were_asked_for(
    fake: FakeRegistry, tmp_path: Path
) -> None:
    fake.register("orders-value", TEXT.text)
    fake.register("orders-value", LONG.text)
    registry = a_process(fake, tmp_path)
    registry.version("orders-value", 1)
    registry.version("orders-value", LATEST_VERSION)
    asked = len(fake.asked)

    assert registry.by_id(1, "orders-value").schema == TEXT
    assert registry.by_id(2, "orders-value").schema == LONG
    assert len(fake.asked) == asked


def test_the_latest_version_is_asked_for_each_time(fake: FakeRegistry, tmp_path: Path) -> None:
    registry = a_process(fake, tmp_path)
    for number, text in enumerate((TEXT.text, LONG.text), 1):
        fake.register("orders-value", text)
        assert registry.version("orders-value", LATEST_VERSION).version == number
        assert registry.versions("orders-value") == [*range(1, number + 1)]

    fake.next_answers("500", times=1000)
    with pytest.raises(SchemaRegistryUnavailableError):
        registry.version("orders-value", LATEST_VERSION)


def test_what_a_query_asked_before_is_answered_while_the_registry_is_down(
    fake: FakeRegistry, tmp_path: Path, pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    registry = a_process(fake, tmp_path, pauses)
    registered = registry.register("orders-value", TEXT)
    version = registry.version("orders-value", 1)
    looked_up = registry.look_up("orders-value", TEXT)
    fake.next_answers("500", times=1000)

    next_process = a_process(fake, tmp_path, pauses)
    assert next_process.register("orders-value", TEXT) == registered
    assert next_process.version("orders-value", 1) == version
    assert next_process.look_up("orders-value", TEXT) == looked_up
    assert next_process.by_id(1, "orders-value").schema == TEXT  # of that version
    assert "going on with schema id 1" in caplog.text
    assert pauses.taken == []
    with pytest.raises(SchemaRegistryUnavailableError):
        next_process.register("orders-value", LONG)


def test_at_most_20_unknown_ids_a_minute_are_asked_for(
    fake: FakeRegistry, tmp_path: Path, pauses: Pauses
) -> None:
    registry = a_process(fake, tmp_path, pauses)
    for minute in range(3):
        for schema_id in range(1000, 1100):
            with pytest.raises(SchemaNotFoundError) as error:
                registry.by_id(schema_id, "orders-value")
        assert "it is not asked, as it did not have 20 other ids" in str(error.value)
        assert len(fake.asked) == 20 * (minute + 1)
        pauses.sleep(60)


def test_unknown_ids_of_one_topic_keep_no_other_from_asking(
    fake: FakeRegistry, tmp_path: Path, pauses: Pauses
) -> None:
    registry = a_process(fake, tmp_path, pauses)
    fake.register("orders-value", TEXT.text)
    for schema_id in range(1000, 1100):
        with pytest.raises(SchemaNotFoundError):
            registry.by_id(schema_id, "garbage-value")

    assert registry.by_id(1, "orders-value").schema == TEXT


def test_an_unknown_id_is_asked_for_again_after_a_minute(
    fake: FakeRegistry, tmp_path: Path, pauses: Pauses
) -> None:
    registry = a_process(fake, tmp_path, pauses)
    for _ in range(5):
        with pytest.raises(SchemaNotFoundError):
            registry.by_id(1, "orders-value")
    fake.register("orders-value", TEXT.text)
    with pytest.raises(SchemaNotFoundError):
        registry.by_id(1, "orders-value")
    assert len(fake.asked) == 1

    pauses.sleep(60)
    assert registry.by_id(1, "orders-value").schema == TEXT


def test_ids_that_the_registry_has_are_not_counted(fake: FakeRegistry, tmp_path: Path) -> None:
    for number in range(40):
        fake.register("orders-value", f'["null", "n{number}"]')
    registry = a_process(fake, tmp_path)

    assert {registry.by_id(n, "orders-value").id for n in range(1, 41)} == {*range(1, 41)}


class Down:
    """A client of a registry that is found to be down as soon as a number of threads wait for it."""

    name = "http://registry"

    def __init__(self, waiting: threading.Semaphore, threads: int) -> None:
        self.calls, self._waiting, self._threads = 0, waiting, threads

    def by_id(self, schema_id: int, subject: str = "") -> RegisteredSchema:
        self.calls += 1
        for _ in range(self._threads):
            self._waiting.acquire()
        raise SchemaRegistryUnavailableError(self.name, f"schema id {schema_id}", "it is down")


def test_threads_that_waited_for_a_registry_that_is_down_do_not_wait_again(tmp_path: Path) -> None:
    looks = threading.Semaphore(0)  # each at the clock
    times = iter(range(1_000_000))

    def monotonic_ms() -> int:
        looks.release()
        return next(times)

    client = Down(looks, threads=4)
    registry = KnownSchemas(
        client, client, SchemaCache(client.name, folder=tmp_path), monotonic_ms=monotonic_ms  # type: ignore[arg-type]
    )  # fmt: skip
    errors: list[str] = []

    def ask() -> None:
        try:
            registry.by_id(7)
        except SchemaRegistryUnavailableError as error:
            errors.append(str(error))

    # One more look is by the thread that asks, after it has the lock.
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == ["schema registry http://registry, asked for schema id 7: it is down"] * 3
    assert client.calls == 1


def test_a_registry_that_was_set_up_anew_is_noticed_by_an_id_with_another_schema(
    fake: FakeRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for text in (TEXT.text, LONG.text):
        fake.register("orders-value", text)
    registry = a_process(fake, tmp_path)
    assert [registry.by_id(n, "orders-value").schema for n in (1, 2)] == [TEXT, LONG]

    fake.add_at(1, "orders-value", '"bytes"')
    fake.add_at(2, "orders-value", '"int"')
    assert registry.version("orders-value", LATEST_VERSION).id == 2
    assert registry.by_id(2, "orders-value").schema.text == '"int"'
    assert registry.by_id(1, "orders-value").schema.text == '"bytes"'
    assert a_process(fake, tmp_path).by_id(1, "orders-value").schema.text == '"bytes"'
    assert "has another schema under id 2 than before" in caplog.text


def test_an_id_of_two_contexts_has_two_meanings_whatever_the_subjects_say_of_them(
    fake: FakeRegistry, tmp_path: Path
) -> None:
    fake.register(":.a:orders", TEXT.text)
    fake.register(":.b:items", LONG.text)
    registry = a_process(fake, tmp_path)

    assert registry.by_id(1, ":.a:orders").schema == TEXT
    assert registry.by_id(1, ":.b:items").schema == LONG
    # The registry looks for these in all contexts.
    assert registry.by_id(1, "orders").schema == TEXT
    assert registry.by_id(1, "items").schema == LONG


def test_subjects_of_one_context_share_what_an_id_means(fake: FakeRegistry, tmp_path: Path) -> None:
    fake.register(":.a:orders", TEXT.text)
    registry = a_process(fake, tmp_path)

    for subject in (":.a:orders", ":.a:items"):
        assert registry.by_id(1, subject).subject == subject
    assert len(fake.asked) == 1


def test_the_machine_keeps_all_of_a_schema(tmp_path: Path) -> None:
    SchemaCache("http://a", folder=tmp_path).put("a question", FULL)

    assert SchemaCache("http://a", folder=tmp_path).get("a question") == FULL
    assert SchemaCache("http://a", folder=tmp_path).get("another question") is None
    assert SchemaCache("http://b", folder=tmp_path).get("a question") is None


def test_a_damaged_file_counts_as_none_and_is_replaced(tmp_path: Path) -> None:
    cache = SchemaCache("http://a", folder=tmp_path)
    cache.put("a question", FULL)
    (path,) = tmp_path.rglob("*.json")
    whole = path.read_bytes()

    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        assert cache.get("a question") is None
    for position in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        assert cache.get("a question") is None

    cache.put("a question", FULL)
    assert cache.get("a question") == FULL


def test_a_file_that_answers_another_question_counts_as_none(tmp_path: Path) -> None:
    cache = SchemaCache("http://a", folder=tmp_path)
    cache.put("a question", FULL)
    (path,) = tmp_path.rglob("*.json")
    cache.put("another question", FULL)
    (other,) = {*tmp_path.rglob("*.json")} - {path}

    other.write_bytes(path.read_bytes())
    assert cache.get("another question") is None


def test_processes_write_the_same_files_at_once_and_none_is_ever_found_damaged(
    tmp_path: Path,
) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.registry.test_known import FULL\n"
        "from spark_kbatch.registry.known import SchemaCache\n"
        "cache = SchemaCache('http://a', folder=Path(sys.argv[1]))\n"
        "for n in range(200):\n"
        "    cache.put(str(n % 5), FULL)\n"
        "    assert cache.get(str(n % 5)) == FULL\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]

    assert [(process.communicate()[1], process.returncode) for process in processes] == [(b"", 0)] * 3  # fmt: skip
    assert len([*tmp_path.rglob("*.json")]) == len([*tmp_path.glob("*/*")]) == 5


def test_the_machines_files_are_their_users_alone_and_have_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with FakeRegistry(user_info=f"user:{PASSWORD}") as fake:
        fake.register("orders-value", TEXT.text)
        options = options_of(fake.url.replace("//", f"//user:{PASSWORD}@"))
        assert registry_of(options).by_id(1).schema == TEXT
        assert registry_of(options_of(fake.url, basic_auth_user_info="user:wrong")).by_id(1)
        # By their user some registries tell which of them is meant.
        with pytest.raises(SchemaRegistryError):
            registry_of(options_of(fake.url, basic_auth_user_info="other:wrong")).by_id(1)

    (shared,) = tmp_path.iterdir()
    found = [shared, *shared.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o700}
    (file,) = [path for path in found if path.is_file()]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for secret in (PASSWORD, "user"):
        assert secret not in file.read_text()
        assert all(secret not in path.name for path in found)


def test_a_machine_that_can_remember_nothing_asks_the_registry(
    fake: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    fake.register("orders-value", TEXT.text)
    for _ in range(2):
        endpoint = Endpoint(options_of(fake.url), timeouts=TIMEOUTS)
        client = RegistryClient(endpoint)
        assert KnownSchemas(client, client, SchemaCache(fake.url)).by_id(1).schema == TEXT

    assert len(fake.asked) == 2


def test_a_process_has_one_registry_for_the_same_options(tmp_path: Path) -> None:
    url = "http://127.0.0.1:1"

    assert registry_of(options_of(url)) is registry_of(options_of(f"{url}/"))
    assert registry_of(options_of(url)) is not registry_of(options_of(url, bearer_auth_token="t"))
    assert isinstance(registry_of(options_of(tmp_path)), FolderRegistry)


def test_the_same_urls_in_another_order_are_the_same_registry(
    fake: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fake.register("orders-value", TEXT.text)
    other = fake.url.replace("127.0.0.1", "localhost")

    for urls in (f"{fake.url},{other}", f"{other},{fake.url}"):
        assert registry_of(options_of(urls)).by_id(1).schema == TEXT
    assert len(fake.asked) == 1


def test_without_urllib3_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['urllib3'] = None\n"
        "from spark_kbatch.options.registry import parse_registry_options\n"
        "from spark_kbatch.registry.known import registry_of\n"
        "registry_of(parse_registry_options({'schema.registry.url': '/folder'}))\n"
        "registry_of(parse_registry_options({'schema.registry.url': 'http://host'}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "line 5" in done.stderr
    assert INSTALL_EXTRA.format("registry") in done.stderr


def test_what_refers_to_the_latest_version_is_looked_up_each_time(
    fake: FakeRegistry, tmp_path: Path
) -> None:
    """Else a machine would keep for ever what was the latest version once."""
    money = {"name": "Money", "subject": "money", "version": -1}
    fake.register("money", '{"type": "fixed", "name": "Money", "size": 1}')
    order = fake.register("order", '["null", "Money"]', references=[money])
    days = {"name": "Order", "subject": "order", "version": 1}
    day = fake.register("day", '["int", "Order"]', references=[days])
    registry = a_process(fake, tmp_path)

    for schema_id in (order, day):
        assert '"size": 1' in registry.by_id(schema_id).referenced[0].text
        registry.version("order", 1)
    fake.register("money", '{"type": "fixed", "name": "Money", "size": 2}')
    for one in (registry, a_process(fake, tmp_path)):
        for schema_id in (order, day):
            assert '"size": 2' in one.by_id(schema_id).referenced[0].text
