"""One schema for all shards: called by the indexer, refuses what differs and names both files.

A column that is all null in some shards has its type from the others; strings and large strings, dictionaries and
their values are the same thing to a trainer (`formats.types.plain_type`).
"""

from dataclasses import dataclass

import pyarrow as pa

from lanefeed_core.manifest import Field
from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.formats.types import plain_type

__all__ = ["Flat", "ShardSchema", "flat_fields", "leaves", "unify"]


@dataclass(frozen=True, slots=True)
class Flat:
    """One column of one shard: its Arrow type, and whether its schema allows nulls (also those of its struct)."""

    kind: pa.DataType
    may_be_null: bool


@dataclass(frozen=True, slots=True)
class ShardSchema:
    """The columns of one shard: name -> (type, holds nulls as far as known)."""

    path: str
    columns: dict[str, tuple[pa.DataType, bool]]


def flat_fields(schema: pa.Schema) -> dict[str, Flat]:
    """Columns by name in the order of the file, structs flattened by one level ("a.b").

    Raises ValueError where two columns have one name.
    """
    flat: dict[str, Flat] = {}
    for field in schema:
        if pa.types.is_struct(field.type):
            made = [(f"{field.name}.{f.name}", Flat(f.type, field.nullable or f.nullable)) for f in field.type]
        else:
            made = [(field.name, Flat(field.type, field.nullable))]
        for name, column in made:
            if name in flat:
                raise ValueError(f"it has two columns of the name {name!r}: rename one")
            flat[name] = column
    return flat


def leaves(kind: pa.DataType) -> int:
    """Number of Parquet columns that an Arrow type takes."""
    if isinstance(kind, pa.BaseExtensionType):
        return leaves(kind.storage_type)
    if pa.types.is_nested(kind):
        return sum(leaves(kind.field(i).type) for i in range(kind.num_fields))
    return 1


def unify(schemas: list[ShardSchema]) -> tuple[Field, ...]:
    """The fields of the dataset, in the first shard's order.

    Raises DataError naming two shards and the column in which they differ.
    """
    first = schemas[0]
    kinds = {name: (plain_type(kind), first.path) for name, (kind, _) in first.columns.items()}
    nullable = {name: null or pa.types.is_null(kind) for name, (kind, null) in first.columns.items()}
    for schema in schemas[1:]:
        if schema.columns.keys() != first.columns.keys():
            raise _other_names(first, schema)
        for name, (kind, null) in schema.columns.items():
            nullable[name] = nullable[name] or null or pa.types.is_null(kind)
            known, where = kinds[name]
            plain = known if kind == known else plain_type(kind)
            if plain == known or pa.types.is_null(plain):
                continue
            if not pa.types.is_null(known):
                raise DataError(
                    f"two schemas in one dataset: column {name!r} is {known} in {where} and {plain} in {schema.path}; "
                    "write the shards with one type, or index them as separate datasets"
                )
            kinds[name] = (plain, schema.path)
    return tuple(Field(name, str(kind), nullable[name]) for name, (kind, _) in kinds.items())


def _other_names(first: ShardSchema, other: ShardSchema) -> DataError:
    missing = [n for n in first.columns if n not in other.columns]
    extra = [n for n in other.columns if n not in first.columns]
    parts = [
        f"{verb} {', '.join(map(repr, names[:8]))}{', ...' if len(names) > 8 else ''}"
        for verb, names in (("lacks", missing), ("also has", extra))
        if names
    ]
    return DataError(
        f"two schemas in one dataset: compared with {first.path}, {other.path} {' and '.join(parts)}; "
        "write the shards alike, or index them as separate datasets"
    )
