"""Which columns a job delivers, and as what: the manifest's, those that were selected, images as pixels.

Called by the indexer, which refuses at once what a sidecar would refuse, and by `delivery`.
"""

import difflib
from collections.abc import Mapping

from lanefeed_core.images import ImageColumn
from lanefeed_core.layout import FIXED, Column
from lanefeed_core.manifest import Field, Manifest
from lanefeed_sidecar.errors import ConfigError
from lanefeed_sidecar.formats.packed import packed_columns
from lanefeed_sidecar.formats.types import Unsupported, column_of

__all__ = ["delivered_columns"]


def delivered_columns(
    manifest: Manifest, selected: tuple[str, ...], images: tuple[ImageColumn, ...] = ()
) -> tuple[Column, ...]:
    """The columns as delivered: `selected` in that order, or all; those of `images` as pixels.

    Raises ConfigError for a column that does not exist (with the nearest name) or whose type no slot can hold.
    """
    if manifest.packing is not None:
        return packed_columns(manifest.packing, selected, images)
    fields = {f.name: f for f in manifest.fields}
    for name in selected:
        if selected.count(name) > 1:
            raise ConfigError(f"data.columns names {name!r} twice: name each column once")
        if name not in fields:
            raise _unknown("data.columns", name, fields)
    wanted = {image.column: image for image in images}
    for name in wanted:
        if name not in fields:
            raise _unknown("data.images", name, fields)
        if selected and name not in selected:
            raise ConfigError(
                f"data.images names {name!r} and data.columns does not: add it there, or take it out here"
            )
    return tuple(_column(fields[name], wanted.get(name)) for name in selected or tuple(fields))


def _column(field: Field, image: ImageColumn | None) -> Column:
    made = column_of(field.name, field.type, nullable=field.nullable)
    if image is not None:
        if isinstance(made, Unsupported) or not made.ragged or made.logical != "binary":
            raise ConfigError(
                f"data.images names {field.name!r}, which is {field.type}: an image column is binary, and holds whole "
                "JPEG, PNG or WebP files"
            )
        return Column(field.name, "uint8", image.shape, FIXED, field.nullable)
    if isinstance(made, Unsupported):
        raise ConfigError(
            f"column {field.name!r} ({field.type}) cannot be delivered: {made.reason}; leave it out with "
            "data.columns, or write it as a supported type"
        )
    return made


def _unknown(where: str, name: str, fields: Mapping[str, Field]) -> ConfigError:
    # Hugging Face's image feature is a struct of the bytes and a path.
    near = [f"{name}.bytes"] if f"{name}.bytes" in fields else difflib.get_close_matches(name, fields, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"{where} names {name!r}, which the dataset does not have: {hint}It has {', '.join(fields)}")
