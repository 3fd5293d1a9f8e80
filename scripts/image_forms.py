"""Table of image forms: writes a file of each form from an array, and shows that the file is read exactly or refused.

Run ``python -m scripts.image_forms`` for the table as Markdown; the reference page ``image-forms.md`` is made of it.
Files are written byte by byte where Pillow does not write a form.
"""

from __future__ import annotations

import struct
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scripts.documentation.reference import escaped, table
from secure_client.data.image_files import read_image
from secure_client.errors import DataError

Pixels = NDArray[Any]
_RANDOM = np.random.default_rng(37)
GREY: Pixels = np.kron(_RANDOM.integers(0, 256, (2, 3), np.uint8), np.ones((8, 8), np.uint8))
"""Grey of constant 8×8 blocks (16, 24), which JPEG keeps exactly."""
RGB: Pixels = np.stack([np.roll(GREY, shift, axis=1) for shift in (0, 8, 16)], axis=-1)
DEEP: Pixels = _RANDOM.integers(0, 65536, GREY.shape, np.uint16)
FLOATS: Pixels = _RANDOM.random(GREY.shape, np.float32)
DEEP_AS_READ: Pixels = DEEP.astype(np.float32) / np.float32(65535)
OPAQUE: Pixels = np.full(GREY.shape, 255, np.uint8)
FEW: Pixels = GREY // 64
"""Numbers of four colours."""
COLOURS: Pixels = np.array([[0, 0, 0], [250, 10, 20], [30, 200, 40], [255, 255, 255]], np.uint8)
GREYS: Pixels = np.array([[0] * 3, [77] * 3, [180] * 3, [255] * 3], np.uint8)


_PILLOW = {".jpg": "JPEG", ".tif": "TIFF"}
"""Pillow's names of formats where these differ from the suffix."""
_MASKS = (0xFF0000, 0xFF00, 0xFF, 0xFF000000)
"""A BMP's bits of red, green, blue and alpha."""
_MORE = {258: (8,) * 4, 262: (2,), 277: (4,), 338: (0,)}
"""A TIFF's tags for RGB with a fourth sample of no stated meaning."""


@dataclass(frozen=True)
class ImageForm:
    """A form of image file, with its writer and the pixels (H, W, C) that the reader must return; None if refused."""

    file: str
    stored: str
    write: Callable[[Path], object]
    pixels: Pixels | None = None

    @property
    def name(self) -> str:
        """Format and content of the file."""
        return f"{self.file}, {self.stored}"

    def path(self, folder: Path) -> Path:
        """Write the file into ``folder`` and return its path."""
        path = folder / f"image.{self.file.lower().replace(' ', '')}"
        self.write(path)
        return path


def saved(values: Pixels, mode: str | None = None, **options: Any) -> Callable[[Path], object]:
    """Return a writer by Pillow, which converts to ``mode`` first."""
    image = Image.fromarray(values > 0 if mode == "1" else values)
    return _saving(image if mode in (None, "1") else image.convert(mode), options)


def _saving(image: Image.Image, options: Mapping[str, Any]) -> Callable[[Path], object]:
    return lambda path: image.save(path, _PILLOW.get(path.suffix, path.suffix[1:]), **options)


def content(data: bytes) -> Callable[[Path], object]:
    """Return a writer of the bytes."""
    return lambda path: path.write_bytes(data)


def paletted(colours: Pixels, **options: Any) -> Callable[[Path], object]:
    """Return a writer of a palette image by Pillow."""
    image = Image.fromarray(FEW)
    image.putpalette(colours.tobytes())
    return _saving(image, options)


def png(
    values: Pixels,
    *,
    depth: int,
    colour: int,
    width: int = GREY.shape[1],
    chunks: Mapping[bytes, bytes] | None = None,
) -> bytes:
    """Return a PNG of rows of bytes, with further chunks before the pixels."""
    header = struct.pack(">IIBBBBB", width, len(values), depth, colour, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    parts = {b"IHDR": header, **(chunks or {}), b"IDAT": zlib.compress(rows), b"IEND": b""}
    written = b"\x89PNG\r\n\x1a\n"
    for name, part in parts.items():
        written += struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part))
    return written


def tiff(
    values: Pixels,
    tags: Mapping[int, tuple[int, ...]] | None = None,
    *,
    order: Literal["<", ">"] = "<",
    sides: tuple[int, ...] = GREY.shape,
) -> bytes:
    """Return an uncompressed TIFF of the values' bytes, grey unless tags say otherwise; a tag of () is left out."""
    numbers = values.astype(values.dtype.newbyteorder(order)).tobytes()
    kind = {"u": 1, "i": 2, "f": 3, "c": 6}[values.dtype.kind]
    height, width = sides
    stated: dict[int, tuple[int, ...]] = {
        256: (width,),
        257: (height,),
        258: (8 * values.dtype.itemsize,),
        259: (1,),
        262: (1,),
        273: (8,),
        277: (1,),
        278: (height,),
        279: (len(numbers),),
        339: (kind,),
        **(tags or {}),
    }
    stated = {tag: stated[tag] for tag in sorted(stated) if stated[tag]}
    start = 8 + len(numbers)
    free = start + 2 + 12 * len(stated) + 4
    entries, beyond = struct.pack(order + "H", len(stated)), b""
    for tag, entry in stated.items():
        packed = struct.pack(f"{order}{len(entry)}I", *entry)
        place = packed if len(entry) == 1 else struct.pack(order + "I", free + len(beyond))
        entries += struct.pack(order + "HHI", tag, 4, len(entry)) + place
        beyond += packed if len(entry) > 1 else b""
    mark = b"II\x2a\0" if order == "<" else b"MM\0\x2a"
    return mark + struct.pack(order + "I", start) + numbers + entries + bytes(4) + beyond


def bmp(values: Pixels, bits: int, palette: Pixels | None = None, masks: Iterable[int] = ()) -> bytes:
    """Return a BMP of rows of bytes, whose length is a multiple of four."""
    height, width = GREY.shape
    colours = b"" if palette is None else np.insert(palette[:, ::-1], 3, 0, axis=1).tobytes()
    layout = struct.pack("<4I", *masks) if masks else b""
    begin = 14 + 40 + len(layout) + len(colours)
    rows = values[::-1].tobytes()
    head = struct.pack(
        *("<IiiHHIIiiII", 40 + len(layout), width, height, 1, bits, 3 if masks else 0),
        *(len(rows), 0, 0, 0 if palette is None else len(palette), 0),
    )
    return b"BM" + struct.pack("<IHHI", begin + len(rows), 0, 0, begin) + head + layout + colours + rows


def grey(values: Pixels) -> Pixels:
    """Return the values as grey pixels (H, W, 1)."""
    return values[..., np.newaxis]


def turned(orientation: int, values: Pixels) -> Pixels:
    """Return the values as EXIF's orientation shows them: by which sides the first row and column are."""
    shown = values.swapaxes(0, 1) if orientation > 4 else values
    down, right = {
        1: (1, 1),
        2: (1, -1),
        3: (-1, -1),
        4: (-1, 1),
        5: (1, 1),
        6: (1, -1),
        7: (-1, -1),
        8: (-1, 1),
    }[orientation]
    return shown[::down, ::right]


def exif(orientation: int) -> Image.Exif:
    """Return EXIF data that state the orientation alone."""
    stated = Image.Exif()
    stated[274] = orientation
    return stated


def packed(values: Pixels, bits: int) -> Pixels:
    """Return rows of bytes that hold values of fewer bits, the first value in the highest bits."""
    as_bits = np.unpackbits(values[..., np.newaxis].astype(np.uint8), axis=-1)[..., 8 - bits :]
    return np.packbits(as_bits.reshape(len(values), -1), axis=1)


def _read() -> Iterable[ImageForm]:
    """Yield the forms that are read."""
    bit, two, four = GREY > 0, GREY >> 6, GREY >> 4
    black_or_white = grey(bit.astype(np.uint8) * np.uint8(255))
    yield ImageForm("png", "grey, 1 bit", saved(GREY, "1"), black_or_white)
    yield ImageForm("png", "grey, 2 bits", content(png(packed(two, 2), depth=2, colour=0)), grey(two * 85))
    yield ImageForm("png", "grey, 4 bits", content(png(packed(four, 4), depth=4, colour=0)), grey(four * 17))
    yield ImageForm("png", "grey, 8 bits", saved(GREY), grey(GREY))
    yield ImageForm("png", "grey, 16 bits", saved(DEEP), grey(DEEP_AS_READ))
    yield ImageForm("png", "RGB, 8 bits", saved(RGB), RGB)
    yield ImageForm("png", "grey palette", paletted(GREYS), GREYS[FEW][..., :1])
    yield ImageForm("png", "colour palette", paletted(COLOURS), COLOURS[FEW])
    yield ImageForm("png", "colour palette of 8 bits", paletted(COLOURS, bits=8), COLOURS[FEW])
    unused = paletted(COLOURS, transparency=bytes((255, 255, 255, 255)))
    yield ImageForm("png", "opaque palette (tRNS)", unused, COLOURS[FEW])
    yield ImageForm("png", "grey, opaque alpha", saved(np.dstack([GREY, OPAQUE])), grey(GREY))
    yield ImageForm("png", "RGB, opaque alpha", saved(np.dstack([RGB, OPAQUE])), RGB)
    yield ImageForm("png", "turned by EXIF", saved(GREY, exif=exif(6)), grey(turned(6, GREY)))
    profile = f"\napp1\n{len(exif(6).tobytes()):8}\n{exif(6).tobytes().hex()}\n".encode()
    raw = png(GREY, depth=8, colour=0, chunks={b"tEXt": b"Raw profile type APP1\0" + profile})
    yield ImageForm("png", "turned by EXIF of ImageMagick", content(raw), grey(turned(6, GREY)))
    yield ImageForm("jpg", "PNG under another name", content(png(GREY, depth=8, colour=0)), grey(GREY))
    yield ImageForm("jpg", "grey", saved(GREY, quality=100), grey(GREY))
    yield ImageForm("jpg", "colour", saved(RGB, quality=100, keep_rgb=True), RGB)
    for orientation in range(1, 9):
        stated = saved(RGB, quality=100, keep_rgb=True, exif=exif(orientation))
        yield ImageForm("jpg", f"turned by EXIF, orientation {orientation}", stated, turned(orientation, RGB))
    yield from _read_tiff()
    for bits, values in ((1, FEW > 0), (4, FEW), (8, FEW)):
        data = bmp(aligned(packed(values, bits)), bits, COLOURS[: 2 if bits == 1 else 4])
        yield ImageForm("bmp", f"colour palette, {bits_of(bits)}", content(data), COLOURS[values.astype(int)])
    yield ImageForm("bmp", "grey palette", paletted(GREYS), GREYS[FEW][..., :1])
    yield ImageForm("bmp", "black and white, 1 bit", saved(GREY, "1"), black_or_white)
    inverted = bmp(aligned(packed(bit, 1)), 1, GREYS[[3, 0]])
    yield ImageForm("bmp", "white and black, 1 bit", content(inverted), 255 - black_or_white)
    yield ImageForm("bmp", "grey, 8 bits", saved(GREY), grey(GREY))
    yield ImageForm("bmp", "RGB, 24 bits", saved(RGB), RGB)
    bgrx = np.dstack([RGB[..., ::-1], OPAQUE * 0])
    yield ImageForm("bmp", "RGB, 32 bits", content(bmp(bgrx, 32)), RGB)
    bgra = np.dstack([RGB[..., ::-1], OPAQUE])
    yield ImageForm("bmp", "RGB, opaque alpha", content(bmp(bgra, 32, masks=_MASKS)), RGB)


def _read_tiff() -> Iterable[ImageForm]:
    """Yield the forms of TIFF that are read."""
    colours = 257 * np.pad(COLOURS.astype(int), ((0, 252), (0, 0))).T.ravel()
    for white, shown in (({}, "black as 0"), ({262: (0,)}, "white as 0")):
        for bits in (1, 2, 4):
            values = GREY >> (8 - bits)
            scaled = grey(values * np.uint8(255 // (2**bits - 1)))
            data = tiff(packed(values, bits), {258: (bits,), **white})
            yield ImageForm(
                "tif", f"grey, {bits_of(bits)}, {shown}", content(data), 255 - scaled if white else scaled
            )
        read = grey(255 - GREY if white else GREY)
        yield ImageForm("tif", f"grey, 8 bits, {shown}", content(tiff(GREY, white)), read)
        deep = (65535 - DEEP if white else DEEP).astype(np.float32) / np.float32(65535)
        yield ImageForm("tif", f"grey, 16 bits, {shown}", content(tiff(DEEP, white)), grey(deep))
    yield ImageForm(
        "tif", "grey, 8 bits, a single page of a document", content(tiff(GREY, {254: (2,)})), grey(GREY)
    )
    few = tiff(FEW, {262: (3,), 320: tuple(int(value) for value in colours), 281: (3,)})
    yield ImageForm("tif", "colour palette, with the largest number used", content(few), COLOURS[FEW])
    used = {281: (int(GREY.max()),)}
    yield ImageForm("tif", "grey, 8 bits, with the largest value used", content(tiff(GREY, used)), grey(GREY))
    yield ImageForm("tif", "grey, 16 bits, big-endian", content(tiff(DEEP, order=">")), grey(DEEP_AS_READ))
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
        yield ImageForm(
            "tif", f"grey, 8 bits, {compression}", saved(GREY, compression=compression), grey(GREY)
        )
        write = saved(DEEP, compression=compression)
        yield ImageForm("tif", f"grey, 16 bits, {compression}", write, grey(DEEP_AS_READ))
        write = saved(FLOATS, compression=compression)
        yield ImageForm("tif", f"floats of 32 bits in [0, 1], {compression}", write, grey(FLOATS))
    bit = grey((GREY > 0).astype(np.uint8) * np.uint8(255))
    yield ImageForm("tif", "grey, 1 bit, group4", saved(GREY, "1", compression="group4"), bit)
    yield ImageForm("tif", "grey, 8 bits, jpeg", saved(GREY, compression="jpeg", quality=100), grey(GREY))
    yield ImageForm("tif", "floats of 32 bits in [0, 1]", content(tiff(FLOATS)), grey(FLOATS))
    yield ImageForm("tif", "floats, big-endian", content(tiff(FLOATS, order=">")), grey(FLOATS))
    yield ImageForm("tif", "RGB, 8 bits", saved(RGB), RGB)
    yield ImageForm("tif", "RGB, 8 bits, BigTIFF", saved(RGB, big_tiff=True), RGB)
    yield ImageForm("tif", "RGB, 8 bits, tiff_lzw", saved(RGB, compression="tiff_lzw"), RGB)
    yield ImageForm("tif", "RGB, opaque alpha", saved(np.dstack([RGB, OPAQUE])), RGB)
    yield ImageForm("tif", "grey, opaque alpha", saved(np.dstack([GREY, OPAQUE])), grey(GREY))
    yield ImageForm("tif", "colour palette", paletted(COLOURS), COLOURS[FEW])
    yield ImageForm("tif", "grey palette", paletted(GREYS), GREYS[FEW][..., :1])
    for name, values, read in (
        ("8 bits", GREY, GREY),
        ("16 bits", DEEP, DEEP_AS_READ),
        ("floats", FLOATS, FLOATS),
    ):
        data = tiff(values, {274: (8,)})
        yield ImageForm("tif", f"turned by its orientation, {name}", content(data), grey(turned(8, read)))


def bits_of(count: int) -> str:
    """Return the count with its noun."""
    return "1 bit" if count == 1 else f"{count} bits"


def aligned(rows: Pixels) -> Pixels:
    """Return rows of bytes with zeros up to a multiple of four."""
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4)))


def _refused() -> Iterable[ImageForm]:
    """Yield forms that are refused."""
    deep_rgb = np.stack([DEEP] * 3, axis=-1).astype(">u2")
    half = np.full(GREY.shape, 128, np.uint8)
    yield ImageForm("png", "RGB, 16 bits", content(png(deep_rgb, depth=16, colour=2)))
    yield ImageForm("png", "grey and alpha, 16 bits", content(png(deep_rgb[..., :2], depth=16, colour=4)))
    twelve = png((DEEP >> 4).astype(">u2"), depth=16, colour=0, chunks={b"sBIT": bytes((12,))})
    yield ImageForm("png", "grey, 12 of 16 bits (sBIT)", content(twelve))
    yield ImageForm("png", "RGB, transparent pixels", saved(np.dstack([RGB, half])))
    yield ImageForm("png", "grey, transparent pixels", saved(np.dstack([GREY, half])))
    yield ImageForm(
        "png", "palette, transparent pixels", paletted(COLOURS, transparency=bytes((255, 0, 255, 255)))
    )
    yield ImageForm("png", "grey, a transparent colour", saved(GREY, transparency=7))
    yield ImageForm(
        "png", "animated", saved(GREY, save_all=True, append_images=[Image.fromarray(255 - GREY)])
    )
    apple = content(png(RGB, depth=8, colour=2, chunks={b"CgBI": bytes(4)}))
    yield ImageForm("png", "of iOS apps (CgBI)", apple)
    yield ImageForm("jpg", "CMYK", saved(RGB, "CMYK"))
    stereo = saved(RGB, save_all=True, append_images=[Image.fromarray(255 - RGB)])
    yield ImageForm("mpo", "several pictures", stereo)
    yield from _refused_tiff()
    yield ImageForm("bmp", "16 bits", content(bmp(DEEP, 16)))
    yield ImageForm("bmp", "short grey palette", content(bmp(GREY & 1, 8, GREYS[[0, 3]])))
    yield ImageForm("bmp", "RGB, transparent pixels", content(bmp(np.dstack([RGB, half]), 32, masks=_MASKS)))
    yield ImageForm("png", "no pixels", content(png(GREY[:, :0], depth=8, colour=0, width=0)))
    yield ImageForm("png", "cut short", content(png(GREY, depth=8, colour=0)[:-20]))
    yield ImageForm("png", "empty", content(b""))
    yield ImageForm("jpg", "a web page instead", content(b"<!DOCTYPE html>"))
    yield ImageForm("png", "a pointer of Git LFS", content(b"version https://git-lfs.github.com/spec/v1\n"))
    yield ImageForm("gif", "any", saved(GREY))
    yield ImageForm("webp", "any", saved(RGB, lossless=True))
    yield ImageForm("jp2", "any", content(b"\0\0\0\x0cjP  \r\n\x87\n"))
    yield ImageForm("dcm", "any", content(bytes(128) + b"DICM"))
    yield ImageForm("nii", "any", content(bytes(344) + b"n+1\0"))
    yield ImageForm("nii.gz", "any", content(b"\x1f\x8b\x08\0"))


def _refused_tiff() -> Iterable[ImageForm]:
    """Yield forms of TIFF that are refused."""
    half = np.full(GREY.shape, 128, np.uint8)
    for name, values in (
        ("signed, 8 bits", GREY.astype(np.int8)),
        ("signed, 16 bits", DEEP.astype(np.int16)),
        ("signed, 32 bits", DEEP.astype(np.int32)),
        ("unsigned, 32 bits", DEEP.astype(np.uint32)),
        ("floats of 16 bits", FLOATS.astype(np.float16)),
        ("floats of 64 bits", FLOATS.astype(np.float64)),
        ("floats beyond [0, 1]", FLOATS * 255),
        ("floats below 0", FLOATS * 2 - 1),
        ("floats that are not finite", np.where(FLOATS > 0.5, FLOATS, np.float32(np.nan))),
        ("complex numbers", FLOATS.astype(np.complex64)),
    ):
        yield ImageForm("tif", name, content(tiff(values)))
    yield ImageForm("tif", "grey, 12 bits", content(tiff(packed(GREY, 8), {258: (12,), 256: (16,)})))
    yield ImageForm("tif", "12 of 16 bits (MaxSampleValue)", content(tiff(DEEP >> 4, {281: (4095,)})))
    swapped = tiff(FLOATS, {259: (8,)}, order=">")
    yield ImageForm("tif", "floats, big-endian, compressed", content(swapped))
    yield ImageForm("tif", "floats, white as 0", content(tiff(FLOATS, {262: (0,)})))
    yield ImageForm("tif", "16 bits, white as 0, big-endian", content(tiff(DEEP, {262: (0,)}, order=">")))
    yield ImageForm("tif", "neither black nor white as 0", content(tiff(GREY, {262: ()})))
    three = {258: (16, 16, 16), 262: (2,), 277: (3,)}
    yield ImageForm("tif", "RGB, 16 bits", content(tiff(np.stack([DEEP] * 3, axis=-1), three)))
    yield ImageForm("tif", "RGB, transparent pixels", saved(np.dstack([RGB, half])))
    yield ImageForm("tif", "RGB and an unnamed sample", content(tiff(np.dstack([RGB, half]), _MORE)))
    yield ImageForm("tif", "CMYK", saved(RGB, "CMYK"))
    yield ImageForm("tif", "CIELAB", saved(RGB, "LAB"))
    yield ImageForm("tif", "YCbCr", saved(RGB, "YCbCr"))
    fine = tuple(int(entry) for entry in np.arange(768) * 85)
    yield ImageForm("tif", "palette of 16 bits", content(tiff(GREY, {262: (3,), 320: fine})))
    yield ImageForm(
        "tif", "two pages", saved(GREY, save_all=True, append_images=[Image.fromarray(255 - GREY)])
    )
    yield ImageForm("tif", "a stack in one page (ImageDepth)", content(tiff(GREY, {32997: (2,)})))
    yield ImageForm("tif", "a stack of MetaMorph", content(tiff(GREY, {33629: (0,) * 12})))
    shaped = saved(GREY, description='{"shape": [5, 16, 24]}')
    yield ImageForm("tif", "a stack in one page of tifffile", shaped)
    ome = '<OME><Image><Pixels SizeC="1" SizeT="1" SizeZ="5"/></Image></OME>'
    yield ImageForm("tif", "one plane of an OME volume", saved(GREY, description=ome))
    yield ImageForm(
        "tif", "signed, 16 bits of ImageJ", saved(DEEP, description="ImageJ=1.54f\ncf=0\nc0=-32768.0\n")
    )
    yield ImageForm("tif", "values that end at 127 (MaxSampleValue)", content(tiff(GREY >> 1, {281: (127,)})))
    yield ImageForm("tif", "reversed bits", content(tiff(GREY, {266: (2,)})))
    planes = {258: (8, 8), 277: (2,), 284: (2,), 338: (2,), 273: (8, 8), 279: (GREY.size, GREY.size)}
    yield ImageForm("tif", "grey and alpha in planes", content(tiff(GREY, planes)))
    yield ImageForm("tif", "a strip that was not written", content(tiff(GREY, {273: (0,), 279: (0,)})))
    fewer = {278: (8,), 279: (GREY.size // 2,)}
    yield ImageForm("tif", "fewer strips than rows need", content(tiff(GREY, fewer)))
    yield ImageForm("tif", "a strip that is too short", content(tiff(GREY, {279: (GREY.size - 1,)})))
    yield ImageForm("tif", "slices of ImageJ", saved(GREY, description="ImageJ=1.54f\nimages=5\nslices=5\n"))
    for tag, value in ((254, 1), (255, 2)):
        yield ImageForm("tif", f"a preview first (tag {tag})", content(tiff(GREY, {tag: (value,)})))


READ: tuple[ImageForm, ...] = tuple(_read())
REFUSED: tuple[ImageForm, ...] = tuple(_refused())


def image_forms() -> str:
    """Return the tables of forms that are read and refused; raise ValueError for a form that is otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        read = [(form.file, escaped(form.stored), escaped(_check_read(form, Path(folder)))) for form in READ]
        refused = [
            (form.file, escaped(form.stored), escaped(_check_refused(form, Path(folder)))) for form in REFUSED
        ]
    return "\n\n".join(
        (
            *("## Forms that are read", table(("file", "stored", "read as"), read)),
            *(
                "## Forms that are refused",
                table(("file", "stored", "message, after the file's path"), refused),
            ),
        )
    )


def _check_read(form: ImageForm, folder: Path) -> str:
    """Describe the pixels; raise ValueError unless all are as they were written."""
    pixels = read_image(form.path(folder))
    wanted = form.pixels
    if wanted is None or pixels.dtype != wanted.dtype or not np.array_equal(pixels, wanted):
        raise ValueError(f"{form.name}: read otherwise than written")
    kind = "float32 in [0, 1]" if pixels.dtype == np.float32 else "uint8"
    return f"{'grey' if pixels.shape[2] == 1 else 'RGB'}, {kind}"


def _check_refused(form: ImageForm, folder: Path) -> str:
    """Return the refusal's message without the file's path; raise ValueError if the file is read."""
    path = form.path(folder)
    try:
        read_image(path)
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    raise ValueError(f"{form.name}: is read, and should be refused")


if __name__ == "__main__":
    sys.stdout.write(image_forms() + "\n")
