"""One encoded image to pixels of one size: JPEG, PNG and WebP by Pillow, nothing else, whatever the bytes say they are.

Called by `image_reader`, in decode threads; Pillow lets go of the GIL while it decodes and resizes. Bytes are
untrusted: the sizes in the header are checked before anything is decoded, and whatever Pillow raises becomes an
ImageDecodeError, to which the reader adds file and row. The pixels are a function of the bytes, of `data.images` and of
the libraries' versions (`decoder_version`), and of nothing else: no random augmentation happens here.
"""

import contextlib
import io
import re
import struct
import threading
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.images import CENTER_CROP, CHW, NONE, ImageColumn
from lanefeed_sidecar.errors import ConfigError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["MAX_PIXELS", "ImageDecodeError", "ImageDecoder", "decoder_version"]

#: Other formats are not tried: each is a parser more for bytes of others.
FORMATS = ("JPEG", "PNG", "WEBP")
#: Whatever the memory allows.
MAX_PIXELS = 64 << 20
#: Images that take more than this while they are decoded are decoded one at a time.
_LARGE_BYTES = 16 << 20
#: A JPEG is decoded at a half, a quarter or an eighth of its size where that is still so many times what is wanted
#: (Pillow's own default for thumbnails): what is lost, the resize would lose too.
REDUCING_GAP = 2
#: Each scan of a progressive JPEG is one more pass over all of it, and takes a few bytes in the file.
MAX_SCANS = 500
#: Three times as quick as bytes.count on entropy-coded data.
_SCAN = re.compile(rb"\xff\xda")
#: What Pillow raises for bytes that it cannot decode; its parsers let through what reading odd bytes may give.
_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    # Where warnings are errors: of odd metadata.
    Warning,
)


class ImageDecodeError(Exception):
    """Bytes that are no image that can be delivered: the reason, and what to do."""


def decoder_version() -> str:
    """What decodes, for names of cached pixels: other libraries may give others. Raises ConfigError: there is none."""
    try:
        import PIL
        from PIL import features
    except ImportError:
        raise ConfigError(
            "data.images needs Pillow, which this sidecar does not have: pip install 'lanefeed[images]', or leave "
            "sidecar.image out, as the sidecar's own image has it"
        ) from None
    parts = [f"pillow {PIL.__version__}"]
    for kind, name in (("jpg", "libjpeg_turbo"), ("zlib", "zlib"), ("webp", "webp")):
        if not features.check(kind):
            raise ConfigError(
                f"data.images needs a Pillow that reads JPEG, PNG and WebP, and {PIL.__version__} here was built "
                f"without {kind}: install it from a wheel (pip install 'lanefeed[images]')"
            )
        parts.append(f"{name} {features.version(name)}")
    return ", ".join(parts)


class ImageDecoder:
    """Makes pixels of one column. Thread safe."""

    #: One large image at a time, whatever the column: their memory is in nobody's budget.
    _one_large = threading.Lock()

    def __init__(self, spec: ImageColumn, most_bytes: int) -> None:
        """`most_bytes`: memory that one image may take while it is decoded. Raises ConfigError: Pillow is missing."""
        decoder_version()
        # Else the first image of the last one loads every format that Pillow knows.
        from PIL import JpegImagePlugin, PngImagePlugin, WebPImagePlugin  # noqa: F401

        self.spec, self._most = spec, most_bytes

    def decode(self, data: bytes, out: NDArray[np.uint8]) -> None:
        """Fill `out`, of the spec's shape. Raises ImageDecodeError."""
        from PIL import Image, UnidentifiedImageError

        _check_bytes(data)
        try:
            with Image.open(io.BytesIO(data), formats=FORMATS) as image, self._room(image):
                self._write(self._fit(_plain(image, self.spec.mode)), out)
        except ImageDecodeError:
            raise
        except UnidentifiedImageError:
            raise ImageDecodeError(
                f"it is no JPEG, PNG or WebP image: its {len(data)} bytes begin with {data[:8].hex(' ')}"
            ) from None
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise ImageDecodeError(f"it has more than the {MAX_PIXELS} pixels that are decoded ({error})") from None
        except _ERRORS as error:
            raise ImageDecodeError(f"it is damaged: {str(error) or type(error).__name__}") from None

    def _room(self, image: "Image.Image") -> "contextlib.AbstractContextManager[Any]":
        """Check what decoding it takes, by its header, and wait where a large one is being decoded already.

        A lock without a deadline: whoever holds it decodes one image of a bounded size, and waits for nothing.
        """
        width, height = image.size
        pixels = width * height
        if pixels > MAX_PIXELS:
            raise ImageDecodeError(f"it has {width} x {height} pixels, and at most {MAX_PIXELS} are decoded")
        if image.format in ("JPEG", "MPO"):
            if self.spec.resize != NONE:
                image.draft(None, (REDUCING_GAP * self.spec.width, REDUCING_GAP * self.spec.height))
            # A progressive one is kept whole, as coefficients, however small it is decoded.
            needed = (6 * pixels if image.info.get("progressive") else 0) + 4 * image.size[0] * image.size[1]
        else:
            # What is decoded, its conversion, and the canvas that WebP is decoded to.
            needed = (4 if image.mode in ("RGB", "L") else 8) * pixels + (8 * pixels if image.format == "WEBP" else 0)
        if needed > self._most:
            raise ImageDecodeError(
                f"it has {width} x {height} pixels and takes {needed} bytes while it is decoded, and a quarter of "
                f"sidecar.readAheadBytes, {self._most}, is allowed for one: raise that to {4 * needed}, or store "
                "smaller images"
            )
        return self._one_large if needed > _LARGE_BYTES else contextlib.nullcontext()

    def _fit(self, image: "Image.Image") -> "Image.Image":
        from PIL import Image, ImageOps

        spec = self.spec
        wanted = (spec.width, spec.height)
        if spec.resize == NONE:
            if image.size != wanted:
                raise ImageDecodeError(
                    f"it is {image.size[0]} x {image.size[1]} pixels (width x height) and data.images says "
                    f"{spec.width} x {spec.height} with resize None: choose CenterCrop or Stretch, or store images of "
                    "that size"
                )
            return image
        # Bilinear over all pixels that the new one covers: antialiased, as torchvision's Resize on images.
        if spec.resize == CENTER_CROP:
            return ImageOps.fit(image, wanted, Image.Resampling.BILINEAR)
        return image.resize(wanted, Image.Resampling.BILINEAR)

    def _write(self, image: "Image.Image", out: NDArray[np.uint8]) -> None:
        if self.spec.mode == "L":
            out.reshape(self.spec.height, self.spec.width)[...] = np.asarray(image)
        elif self.spec.layout == CHW:
            for plane, band in zip(out, image.split(), strict=True):
                plane[...] = np.asarray(band)
        else:
            out[...] = np.asarray(image)


def _plain(image: "Image.Image", mode: str) -> "Image.Image":
    """Its first frame in the wanted mode: transparency is dropped, 16 bits become their upper 8."""
    from PIL import Image

    if image.mode.startswith("I"):
        wide = np.asarray(image)
        image = Image.fromarray((wide >> 8).astype(np.uint8))
    if image.mode == mode:
        image.load()
        return image
    image.info.pop("transparency", None)
    return image.convert(mode)


def _check_bytes(data: bytes) -> None:
    """What Pillow would find out too late. Raises ImageDecodeError."""
    if not data:
        raise ImageDecodeError("it is empty: leave such rows out, or write a null")
    if data[:2] == b"\xff\xd8" and len(_SCAN.findall(data)) > MAX_SCANS:
        raise ImageDecodeError(f"it is a JPEG of more than {MAX_SCANS} scans: store it as a baseline JPEG")
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        # Pillow makes the canvas when it opens the file.
        width, height = _webp_size(data)
        if width * height > MAX_PIXELS:
            raise ImageDecodeError(f"it has {width} x {height} pixels, and at most {MAX_PIXELS} are decoded")


def _webp_size(data: bytes) -> tuple[int, int]:
    """(width, height) by the header; (0, 0): there is none, which Pillow will say."""
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return 0, 0
    if kind == b"VP8X":
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack("<HH", body[6:10])
    return width & 0x3FFF, height & 0x3FFF
