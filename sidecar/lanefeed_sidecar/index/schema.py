"""One schema for all shards: called by the indexer, refuses what differs and names both files.

A column that is all null in some shards has their type nowhere; strings and large strings, dictionaries and their values
are the same thing to a trainer.
"""

from dataclasses import dataclass

import pyarrow as pa

from lanefeed_core.manifest import Field
from lanefeed_sidecar.errors import DataError

__all__ = ["ShardSchema", "flat_fields", "unify"]


@dataclass(frozen=True, slots=True)
class ShardSchema:
    """The columns of one shard: name -> (type, may hold nulls)."""

    path: str
    columns: dict[str, tuple[pa.DataType, bool]]


def flat_fields(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Columns by name, structs flattened by one level ("a.b")."""
    flat: dict[str, pa.DataType] = {}
    for field in schema:
        if pa.types.is_struct(field.type):
            for inner in field.type:
                flat[f"{field.name}.{inner.name}"] = inner.type
        else:
            flat[field.name] = field.type
    return flat


def unify(schemas: list[ShardSchema]) -> tuple[Field, ...]:
    """The fields of the dataset, in the first shard's order.

    Raises DataError naming two shards and the column in which they differ.
    """
    first = schemas[0]
    kinds = {name: (kind, first.path) for name, (kind, _) in first.columns.items()}
    nullable = {name: null or pa.types.is_null(kind) for name, (kind, null) in first.columns.items()}
    for schema in schemas[1:]:
        _same_names(first, schema)
        for name, (kind, null) in schema.columns.items():
            known, where = kinds[name]
            merged = _merge(known, kind)
            if merged is None:
                raise DataError(
                    f"two schemas in one dataset: column {name!r} is {known} in {where} and {kind} in {schema.path}; "
                    "write the shards with one type, or index them as separate datasets"
                )
            kinds[name] = (merged, where if merged == known else schema.path)
            nullable[name] = nullable[name] or null or pa.types.is_null(kind)
    return tuple(Field(name, str(_plain(kind)), nullable[name]) for name, (kind, _) in kinds.items())


def _same_names(first: ShardSchema, other: ShardSchema) -> None:
    if first.columns.keys() == other.columns.keys():
        return
    missing = [n for n in first.columns if n not in other.columns]
    extra = [n for n in other.columns if n not in first.columns]
    what = f"{other.path} lacks {', '.join(missing)}" if missing else f"{other.path} also has {', '.join(extra)}"
    raise DataError(
        f"two schemas in one dataset: {first.path} has {', '.join(first.columns)} and {what}; "
        "write the shards alike, or index them as separate datasets"
    )


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type as delivered: dictionaries are their values."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


_ALIKE = {"large_string": "string", "large_binary": "binary"}


def _merge(known: pa.DataType, kind: pa.DataType) -> pa.DataType | None:
    known, kind = _plain(known), _plain(kind)
    if pa.types.is_null(known):
        return kind
    if pa.types.is_null(kind) or known == kind:
        return known
    if _ALIKE.get(str(known), str(known)) == _ALIKE.get(str(kind), str(kind)):
        return known
    if pa.types.is_list(known) and pa.types.is_list(kind) and known.value_type == kind.value_type:
        return known
    return None
