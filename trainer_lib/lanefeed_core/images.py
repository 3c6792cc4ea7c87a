"""Which columns hold encoded images, and what each becomes: the words of `data.images`, shared by everybody.

Part of the pod's configuration; the operator checks and passes it on, `lanefeed.open` takes it, the sidecar decodes by
it (`lanefeed_sidecar.formats.images`). Sizes only: no pixel is touched here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from lanefeed_core.errors import CoreError

__all__ = [
    "LAYOUTS",
    "MAX_SIDE",
    "MODES",
    "RESIZES",
    "ImageColumn",
    "ImageError",
    "image_bytes",
    "image_columns",
    "image_options",
]

#: Channels of each mode.
MODES = {"RGB": 3, "L": 1}
CENTER_CROP, STRETCH, NONE = "CenterCrop", "Stretch", "None"
RESIZES = (CENTER_CROP, STRETCH, NONE)
CHW, HWC = "CHW", "HWC"
LAYOUTS = (CHW, HWC)
#: Longest side of what is delivered.
MAX_SIDE = 8192


class ImageError(CoreError):
    """An image column that cannot be asked for so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageColumn:
    """A binary column of JPEG, PNG or WebP files, delivered as uint8 pixels of one size.

    resize: CenterCrop (scaled so that the shorter side fits, what is over is cut off on both sides), Stretch (scaled
    to the size, whatever its proportions), None (images have the size already; others are an error).
    """

    column: str
    height: int
    width: int
    mode: str = "RGB"
    resize: str = CENTER_CROP
    layout: str = CHW

    def __post_init__(self) -> None:
        """Refuse what cannot work, naming the field."""
        if not isinstance(self.column, str):
            raise ImageError(f"data.images: a column is {self.column!r}: name the column that holds the images")
        if not self.column:
            raise ImageError("data.images has an entry without a column: name the column that holds the images")
        for name in ("height", "width"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIDE:
                raise ImageError(
                    f"data.images: {name} of column {self.column!r} is {value!r}: it must be a number of pixels, 1 to "
                    f"{MAX_SIDE}"
                )
        for name, known in (("mode", tuple(MODES)), ("resize", RESIZES), ("layout", LAYOUTS)):
            if getattr(self, name) not in known:
                raise ImageError(
                    f"data.images: {name} of column {self.column!r} is {getattr(self, name)!r}: it must be one of "
                    f"{', '.join(known)}"
                )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one row as delivered."""
        channels = MODES[self.mode]
        if self.layout == CHW:
            return channels, self.height, self.width
        return self.height, self.width, channels

    @property
    def nbytes(self) -> int:
        """Of one row as delivered."""
        return MODES[self.mode] * self.height * self.width

    def to_dict(self) -> dict[str, Any]:
        """JSON form; the keys are the attribute names."""
        return asdict(self)


def image_columns(given: Sequence[ImageColumn | Mapping[str, Any]]) -> tuple[ImageColumn, ...]:
    """Image columns from their JSON forms, or as they are. Raises ImageError naming what is wrong."""
    found: list[ImageColumn] = []
    for one in given:
        if not isinstance(one, ImageColumn):
            one = _from_json(one)
        if any(other.column == one.column for other in found):
            raise ImageError(f"data.images names column {one.column!r} twice: name each column once")
        found.append(one)
    return tuple(found)


def _from_json(given: Any) -> ImageColumn:
    names = [field.name for field in fields(ImageColumn)]
    keys = list(given) if isinstance(given, Mapping) else []
    unknown = [repr(key) for key in keys if key not in names]
    missing = [name for name in names[:3] if name not in keys]
    if unknown or missing:
        wrong = f"has {', '.join(unknown)}" if unknown else f"lacks {', '.join(missing)}"
        raise ImageError(
            f"data.images: {given!r} is no image column{f': it {wrong}' if keys else ''}; give column, height and "
            "width, and mode, resize or layout where the defaults do not suit"
        )
    return ImageColumn(**given)


def image_bytes(images: Sequence[ImageColumn]) -> int:
    """Bytes that the images of a row add to what its shards' metadata say, which is their size when encoded."""
    return sum(image.nbytes for image in images)


def image_options(images: Sequence[ImageColumn]) -> list[str]:
    """What the indexer is told of them, so that it refuses at once what a sidecar would."""
    return ["--images", json.dumps([image.to_dict() for image in images])] if images else []
