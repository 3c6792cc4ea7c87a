"""`spec.data.images` as a user writes it: part of `spec`. What it means is the core's (`lanefeed_core.images`)."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from lanefeed_core.images import MAX_SIDE, ImageColumn
from lanefeed_operator.api.base import Model

__all__ = ["Image", "ImageLayout", "ImageMode", "ImageResize"]

Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


class ImageMode(StrEnum):
    """Colour, or luminance alone."""

    RGB = "RGB"
    L = "L"


class ImageResize(StrEnum):
    """How other sizes are treated."""

    CENTER_CROP = "CenterCrop"
    STRETCH = "Stretch"
    NONE = "None"


class ImageLayout(StrEnum):
    """Channels first, or last."""

    CHW = "CHW"
    HWC = "HWC"


class Image(Model):
    """A binary column of JPEG, PNG or WebP files, delivered as uint8 pixels."""

    #: Name of the column.
    column: str
    #: Pixels.
    height: Side
    #: Pixels.
    width: Side
    mode: ImageMode = ImageMode.RGB
    resize: ImageResize = ImageResize.CENTER_CROP
    layout: ImageLayout = ImageLayout.CHW

    @property
    def core(self) -> ImageColumn:
        """The same as the core has it."""
        return ImageColumn(
            column=self.column,
            height=self.height,
            width=self.width,
            mode=self.mode.value,
            resize=self.resize.value,
            layout=self.layout.value,
        )
