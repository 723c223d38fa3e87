"""The schemas that wrote values, by their ids: from a plan, or from a registry."""

from __future__ import annotations

from collections.abc import Iterable

from spark_kbatch.errors import ConfigError, SchemaError, SchemaNotFoundError
from spark_kbatch.options.registry import RegistryOptions
from spark_kbatch.registry.known import registry_of
from spark_kbatch.registry.schemas import AVRO, RegisteredSchema
from spark_kbatch.values.avro_schema import Schema, parse


def parsed(schema: RegisteredSchema) -> Schema:
    """Return a schema of a registry as a graph of types; raises SchemaError."""
    return parse(schema.schema.text, [one.text for one in schema.referenced])


def why_unreadable(schema: RegisteredSchema) -> str:
    """Return why no value of a schema can be read; empty if that is not known."""
    if schema.schema.type != AVRO:
        return f"it is a schema of type {schema.schema.type}, and not of Avro"
    if schema.encrypts:
        return "a rule of the schema has clients encrypt its values, which cannot be read here"
    return ""


def ensure_usable(key: str, schema: RegisteredSchema) -> None:
    """Check that the schema which an option chooses is one that can be used.

    Raises:
        ConfigError: it is not.
    """
    why = why_unreadable(schema)
    if why:
        raise ConfigError(f"option {key!r}: schema id {schema.id}: {why}")


class WritersSchemas:
    """The schemas that wrote values, by their ids."""

    def __init__(
        self,
        registry: RegistryOptions | None,
        subject: str,
        known: Iterable[RegisteredSchema] = (),
    ) -> None:
        """Ask a registry for ids in the context of a subject, but for schemas that are known."""
        self._registry, self._subject = registry, subject
        self._known = {one.id: one for one in known}

    def of(self, schema_id: int) -> Schema | str:
        """Return the schema of an id, or why its values cannot be read.

        Raises:
            SchemaRegistryError: the registry does not answer, or refuses to.
        """
        try:
            schema = self._known.get(schema_id) or self._asked(schema_id)
            return why_unreadable(schema) or parsed(schema)
        except SchemaNotFoundError as error:
            if schema_id == 0:
                return f"{error}; an id of 0 looks like Apicurio's framing, with ids of 8 bytes"
            return str(error)
        except SchemaError as error:
            return f"its schema is none that can be used: {error}"

    def _asked(self, schema_id: int) -> RegisteredSchema:
        assert self._registry is not None  # which Confluent's framing needs
        return registry_of(self._registry).by_id(schema_id, self._subject)
