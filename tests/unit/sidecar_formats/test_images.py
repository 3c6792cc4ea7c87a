"""One image to pixels: every format and policy against plain Pillow, and a clear answer to all other bytes."""

import io
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from lanefeed_core.images import ImageColumn
from lanefeed_sidecar.errors import ConfigError
from lanefeed_sidecar.formats.images import MAX_PIXELS, ImageDecodeError, ImageDecoder, decoder_version
from support.images import FORMATS, encode, pixels, plain

SPEC = ImageColumn(column="image", height=24, width=32)
ROOM = 64 << 20


def decode(data: bytes, spec: ImageColumn = SPEC, room: int = ROOM) -> np.ndarray:
    out = np.full(spec.shape, 0xAB, np.uint8)
    ImageDecoder(spec, room).decode(data, out)
    return out


def refusal(data: bytes, spec: ImageColumn = SPEC, room: int = ROOM) -> str:
    with pytest.raises(ImageDecodeError) as caught:
        decode(data, spec, room)
    return str(caught.value)


def photo(width: int = 80, height: int = 50, channels: int = 3, number: int = 1) -> Image.Image:
    array = pixels(number, width, height, channels)
    return Image.fromarray(array[:, :, 0] if channels == 1 else array)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("resize", ["CenterCrop", "Stretch"])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_every_policy_is_what_plain_pillow_gives(kind: str, mode: str, resize: str, layout: str) -> None:
    spec = ImageColumn(column="image", height=24, width=32, mode=mode, resize=resize, layout=layout)
    for number, (width, height) in enumerate([(32, 24), (33, 24), (80, 50), (50, 80), (7, 5), (1, 90), (400, 300)]):
        data = encode(photo(width, height, 3, number), kind)
        assert np.array_equal(decode(data, spec), plain(data, spec)), f"{width} x {height}"


def test_tooth_one_flipped_bit_of_a_pixel_is_seen() -> None:
    data = encode(photo(), "PNG")
    want = plain(data, SPEC)
    want[0, 3, 3] ^= 1
    assert not np.array_equal(decode(data), want)


def test_sizes_must_be_equal_where_nothing_is_resized() -> None:
    exact = replace(SPEC, resize="None")
    data = encode(photo(32, 24), "PNG")
    assert np.array_equal(decode(data, exact), pixels(1, 32, 24).transpose(2, 0, 1))
    text = refusal(encode(photo(24, 32), "PNG"), exact)
    assert text.startswith("it is 24 x 32 pixels (width x height) and data.images says 32 x 24 with resize None")


def test_what_is_cut_off_lies_at_both_ends() -> None:
    wide = np.zeros((24, 64, 3), np.uint8)
    wide[:, :16], wide[:, 48:], wide[:, 16:48] = 10, 20, 200
    assert (decode(encode(Image.fromarray(wide), "PNG")) == 200).all()


def test_a_large_jpeg_is_decoded_at_a_part_of_its_size_and_looks_the_same() -> None:
    data = encode(photo(640, 480), "JPEG")
    whole = np.asarray(Image.open(io.BytesIO(data)).resize((32, 24), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.abs(decode(data).astype(int) - whole).mean() < 2


@pytest.mark.parametrize(
    ("name", "make", "want"),
    [
        ("transparency is dropped", lambda: encode(photo(32, 24).convert("RGBA"), "PNG"), pixels(1, 32, 24)),
        ("grey and alpha", lambda: encode(photo(32, 24, 1).convert("LA"), "PNG"), pixels(1, 32, 24, 1).repeat(3, 2)),
        (
            "WebP with alpha",
            lambda: encode(photo(32, 24).convert("RGBA"), "WEBP", lossless=True),
            pixels(1, 32, 24),
        ),
    ],
)
def test_modes_have_one_answer(name: str, make: Callable[[], bytes], want: np.ndarray) -> None:
    assert np.array_equal(decode(make()), want.transpose(2, 0, 1)), name


def test_sixteen_bits_become_their_upper_eight() -> None:
    wide = (np.arange(24 * 32, dtype=np.uint32) * 85).astype(np.uint16).reshape(24, 32)
    data = encode(Image.fromarray(wide), "PNG")
    assert np.array_equal(decode(data, replace(SPEC, mode="L"))[0], (wide >> 8).astype(np.uint8))
    assert np.array_equal(decode(data)[2], (wide >> 8).astype(np.uint8))


def test_palettes_with_transparency_and_two_colours() -> None:
    image = photo(32, 24).quantize(16)
    data = encode(image, "PNG", transparency=bytes(range(16)))
    assert np.array_equal(decode(data), np.asarray(image.convert("RGB")).transpose(2, 0, 1))
    stripes = Image.fromarray((np.arange(24 * 32).reshape(24, 32) % 2 * 255).astype(np.uint8)).convert("1")
    assert set(decode(encode(stripes, "PNG")).reshape(-1).tolist()) == {0, 255}


def test_cmyk_is_converted() -> None:
    data = encode(Image.new("CMYK", (32, 24), (0, 255, 255, 0)), "JPEG")
    assert np.array_equal(decode(data), plain(data, SPEC))
    red = decode(data).mean(axis=(1, 2))
    assert red[0] > 200 > 60 > red[1]


def test_the_orientation_of_exif_is_left_alone() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned, straight = encode(photo(32, 24), "JPEG", exif=exif), encode(photo(32, 24), "JPEG")
    assert turned != straight
    assert np.array_equal(decode(turned), decode(straight))


@pytest.mark.parametrize("kind", ["WEBP", "PNG"])
def test_the_first_picture_of_an_animation(kind: str) -> None:
    first, second = Image.new("RGB", (32, 24), (200, 0, 0)), Image.new("RGB", (32, 24), (0, 200, 0))
    more = {"lossless": True} if kind == "WEBP" else {}
    data = encode(first, kind, save_all=True, append_images=[second], **more)
    assert getattr(Image.open(io.BytesIO(data)), "n_frames", 1) == 2
    assert np.array_equal(decode(data), np.asarray(first).transpose(2, 0, 1))


def test_interlaced_and_progressive_ones() -> None:
    for data in (encode(photo(), "JPEG", progressive=True), encode(photo(), "PNG", optimize=True)):
        assert np.array_equal(decode(data), plain(data, SPEC))


# ---- what is no image, or too much of one ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "it is empty: leave such rows out, or write a null"),
        (b"hello, world", "it is no JPEG, PNG or WebP image: its 12 bytes begin with 68 65 6c 6c 6f 2c 20 77"),
        (encode(photo(), "GIF"), "it is no JPEG, PNG or WebP image"),
        (encode(photo(), "BMP"), "it is no JPEG, PNG or WebP image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is no JPEG, PNG or WebP image"),
    ],
)
def test_other_bytes(data: bytes, text: str) -> None:
    assert refusal(data).startswith(text)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_truncated_one_is_an_error_wherever_it_ends(kind: str) -> None:
    data = encode(photo(40, 30), kind)
    for end in {*range(1, 60), *range(60, len(data) - 20, 97), len(data) // 2}:
        assert refusal(data[:end])


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    parts = [png_chunk(kind, body) for kind, body in chunks]
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(parts) + png_chunk(b"IEND", b"")


def bomb(nbytes: int) -> bytes:
    """A few KB that decompress to `nbytes` zeros."""
    machine = zlib.compressobj(9)
    block = bytes(1 << 20)
    return b"".join(machine.compress(block) for _ in range(nbytes >> 20)) + machine.flush()


def peak(action: Callable[[], object]) -> int:
    """Bytes by which the process grew at most while it ran."""

    def now() -> int:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))

    before, most, done = now(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, now())
            done.wait(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        action()
    finally:
        done.set()
        thread.join()
    return most - before


@pytest.mark.parametrize(
    ("width", "height"), [(100_000, 100_000), (1 << 16, 1 << 10), (1, (1 << 26) + 1), ((1 << 31) - 1, (1 << 31) - 1)]
)
def test_sizes_in_the_header_are_checked_before_anything_is_decoded(width: int, height: int) -> None:
    data = png(width, height, (b"IDAT", bomb(64 << 20)))
    assert len(data) < 100_000
    text = ""

    def run() -> None:
        nonlocal text
        text = refusal(data)

    assert peak(run) < 32 << 20
    assert "pixels" in text
    if width * height > MAX_PIXELS:
        assert str(MAX_PIXELS) in text


def test_a_webp_of_a_huge_canvas_is_not_even_opened() -> None:
    body = b"VP8X" + struct.pack("<I", 10) + b"\0" * 4 + b"\xff\xff\xff" * 2
    data = b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body
    assert refusal(data) == f"it has {1 << 24} x {1 << 24} pixels, and at most {MAX_PIXELS} are decoded"


@pytest.mark.parametrize("kind", [b"zTXt", b"iCCP", b"iTXt"])
def test_chunks_beside_the_pixels_cannot_be_bombs(kind: bytes) -> None:
    packed = bomb(512 << 20)
    body = b"a\0\1\0\0\0" + packed if kind == b"iTXt" else b"a\0\0" + packed
    rows = zlib.compress(b"".join(b"\0" + bytes(96) for _ in range(24)))
    data = png(32, 24, (kind, body), (b"IDAT", rows))

    def run() -> None:
        try:
            decode(data)
        except ImageDecodeError:
            pass

    assert peak(run) < 128 << 20


def test_more_pixels_in_the_data_than_the_header_says_are_ignored() -> None:
    data = png(32, 24, (b"IDAT", bomb(256 << 20)))
    out = np.zeros(SPEC.shape, np.uint8)
    assert peak(lambda: ImageDecoder(SPEC, ROOM).decode(data, out)) < 32 << 20


def test_what_one_image_may_take_follows_from_the_budget() -> None:
    data = encode(photo(200, 100), "PNG")
    text = refusal(data, room=40_000)
    assert text == (
        "it has 200 x 100 pixels and takes 80000 bytes while it is decoded, and a quarter of sidecar.readAheadBytes, "
        "40000, is allowed for one: raise that to 320000, or store smaller images"
    )
    # A JPEG is decoded at an eighth of its size, a progressive one is kept whole meanwhile.
    assert decode(encode(photo(512, 384), "JPEG"), room=64 * 48 * 4 * 4).any()
    assert "bytes while it is decoded" in refusal(encode(photo(512, 384), "JPEG", progressive=True), room=64 * 48 * 16)


def test_large_images_are_decoded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four threads hold a small image each in the decoder at once, large ones never."""
    data = {"small": encode(photo(), "PNG"), "large": encode(Image.new("RGB", (2500, 2000)), "PNG")}
    real, lock, inside, most = ImageDecoder._fit, threading.Lock(), 0, 0
    together = threading.Barrier(4)

    def fit(self: ImageDecoder, image: Image.Image) -> Image.Image:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        if size == "small":
            together.wait(60)
        made = real(self, image)
        with lock:
            inside -= 1
        return made

    monkeypatch.setattr(ImageDecoder, "_fit", fit)
    for size, allowed in (("small", 4), ("large", 1)):
        most = 0
        threads = [threading.Thread(target=decode, args=(data[size],)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert most == allowed, size


def test_no_other_format_is_loaded() -> None:
    code = (
        "from PIL import Image; from lanefeed_core.images import ImageColumn; import numpy as np, io\n"
        "from lanefeed_sidecar.formats.images import ImageDecoder\n"
        "out = io.BytesIO(); Image.new('RGB', (4, 4)).save(out, 'PNG')\n"
        "spec = ImageColumn(column='x', height=2, width=2)\n"
        "ImageDecoder(spec, 1 << 20).decode(out.getvalue(), np.zeros(spec.shape, np.uint8))\n"
        "assert not {'EPS', 'TIFF', 'PSD'} & Image.OPEN.keys(), sorted(Image.OPEN)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_a_jpeg_of_endless_scans_is_refused() -> None:
    data = encode(photo(), "JPEG", progressive=True)
    at = data.rindex(b"\xff\xda")
    scan = data[at:-2]
    assert "more than 500 scans" in refusal(data[:-2] + scan * 600 + data[-2:])


@pytest.mark.parametrize("kind", FORMATS)
def test_bytes_that_were_changed_give_pixels_or_an_error_and_nothing_else(kind: str) -> None:
    """A seeded corpus: flipped bits, bytes set to extremes, parts taken out, doubled or moved."""
    rng = np.random.default_rng([9, FORMATS.index(kind)])
    seeds = [encode(photo(40, 30, 3, n), kind) for n in range(3)]
    seeds.append(encode(photo(40, 30).convert("L"), kind))
    refused = 0
    for turn in range(400):
        data = bytearray(seeds[turn % len(seeds)])
        for _ in range(int(rng.integers(1, 6))):
            at, how = int(rng.integers(0, len(data))), int(rng.integers(0, 5))
            if how == 0:
                data[at] ^= 1 << int(rng.integers(0, 8))
            elif how == 1:
                data[at : at + 4] = bytes([int(rng.choice([0, 255, 127, 128]))]) * 4
            elif how == 2:
                del data[at : at + int(rng.integers(1, 40))]
            elif how == 3:
                data[at:at] = data[at : at + 30]
            else:
                data[at : at + 8] = rng.bytes(8)
            if not data:
                data = bytearray(b"x")
        out = np.zeros(SPEC.shape, np.uint8)
        try:
            ImageDecoder(SPEC, ROOM).decode(bytes(data), out)
        except ImageDecodeError as error:
            refused += bool(str(error))
    assert refused > 40


def test_without_pillow_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match=r"pip install 'lanefeed\[images\]'"):
        ImageDecoder(SPEC, ROOM)


def test_the_version_names_all_that_decodes() -> None:
    assert [part.split()[0] for part in decoder_version().split(", ")] == ["pillow", "libjpeg_turbo", "zlib", "webp"]
