"""Reader of image files: every form on a list is read exactly, everything else is refused by name.

A file's content decides what it is, not its suffix. The list, whose table ``scripts/image_forms.py`` proves:

====  ====================================================================================================
PNG   grey of 1, 2, 4, 8 or 16 bits; RGB of 8 bits; palettes
JPEG  grey and colour of 8 bits
TIFF  grey of 1, 2, 4, 8 or 16 bits, also with white as 0; RGB of 8 bits; palettes; floats in [0, 1]
BMP   palettes; RGB of 24 or 32 bits
====  ====================================================================================================

Orientation (EXIF, TIFF, XMP), photometric interpretation and palettes are applied. An alpha channel is dropped if every
pixel is opaque; otherwise the file is refused. A file with several pages or frames is refused.

Limits: colour profiles, gamma, response curves, chromaticities, resolutions and ImageJ's display range are ignored, and
so are previews within EXIF or MPF, gain maps and TIFF's SubIFDs. Only PNG and TIFF's deflate have checksums: pixels
that were overwritten in other files are not noticed.
"""

from __future__ import annotations

import math
import re
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps, TiffImagePlugin, UnidentifiedImageError

from secure_client.data.samples import Inputs
from secure_client.errors import DataError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff"})

ARRAYS = (
    "store its pixels as uint8, as uint16 or as floats in [0, 1] in an .npz, or read it by module:function"
)
"""Remedy for pixels that no form on the list can hold, or that Pillow would cut."""

_SCAN = "apply its rescaling and window and store 16-bit grey PNG, or read it by module:function"
_OTHER_KINDS: tuple[tuple[int, bytes, str, str], ...] = (
    (128, b"DICM", "DICOM", _SCAN),
    (344, b"n+1\0", "NIfTI", _SCAN),
    (344, b"ni1\0", "NIfTI", _SCAN),
    (0, b"\x1f\x8b", "gzip", "unpack it; a NIfTI volume's slices may be stored as 16-bit PNG"),
    (0, b"PK\x03\x04", "zip", "unpack it"),
    (0, b"GIF8", "GIF", "store the frame as PNG"),
    (8, b"WEBP", "WebP", "store it as PNG"),
    (0, b"\0\0\0\x0cjP  ", "JPEG 2000", "store it as PNG"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000", "store it as PNG"),
    (0, b"\0\0\0\x0cJXL ", "JPEG XL", "store it as PNG"),
    (0, b"\xff\x0a", "JPEG XL", "store it as PNG"),
    (4, b"ftyp", "HEIC, AVIF or video", "store it as PNG"),
    (0, b"8BPS", "Photoshop", "store it as PNG without layers"),
    (0, b"%PDF", "PDF", "store its picture as PNG"),
    (0, b"\x89HDF", "HDF5", ARRAYS),
    (0, b"\x93NUMPY", "NumPy", "save the arrays of all images in one .npz"),
    (0, b"v/1\x01", "OpenEXR", ARRAYS),
    (0, b"P5", "PGM", "store it as PNG with the same bits"),
    (0, b"P6", "PPM", "store it as PNG"),
    (0, b"version https://git-lfs", "Git LFS pointer", "fetch the image by git lfs pull"),
    (0, b"<", "HTML, XML or SVG", "get the image itself, as PNG"),
)
"""Files by the bytes at an offset, their name, and what to do about them."""


class _Refused(Exception):
    """Refusal of a form, with the remedy; the file is not named yet."""


def read_image(path: Path) -> Inputs:
    """Return the pixels of one image, (H, W, C), with one channel (grey) or three (RGB).

    uint8; float32 in [0, 1] for 16-bit grey, which is divided by 65535, and for floats, which are kept. Raises
    :class:`DataError` for a file that is missing, damaged or in a form that is not read exactly.
    """
    kind: str | None = None
    try:
        with path.open("rb") as file, warnings.catch_warnings():
            # Pillow warns of odd metadata in files whose pixels are whole.
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            kind = _identify(file)
            if kind is None:
                raise _Refused(_describe_unread(file))
            return _READERS[kind](file)
    except _Refused as refusal:
        raise DataError(f"{path}: {refusal}") from refusal
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(
            f"{path}: has more than {Image.MAX_IMAGE_PIXELS} pixels; shrink or cut the image"
        ) from error
    except OSError as error:
        if error.errno is not None:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error
        raise DataError(f"{path}: {_describe_undecoded(kind, error)}") from error
    except (ValueError, SyntaxError, LookupError, TypeError, struct.error, zlib.error) as error:
        raise DataError(f"{path}: {_describe_undecoded(kind, error)}") from error


def _describe_undecoded(kind: str | None, error: Exception) -> str:
    reason = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
    return f"is damaged, or a {kind} that Pillow does not decode{reason}; restore the file or store it as PNG"


def describe_unread(path: Path) -> str:
    """Say what a file is that has no suffix of an image, and what to do about it."""
    try:
        with path.open("rb") as file:
            kind = _identify(file)
            if kind is None:
                return _describe_unread(file)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return f"holds a {kind} image, but its name does not end like one; rename or remove the file"


def _identify(file: BinaryIO) -> str | None:
    """Return the format of an image that is read, by the file's first bytes."""
    file.seek(0)
    head = file.read(8)
    for kind, starts in _STARTS.items():
        if head.startswith(starts):
            return kind
    return None


def _describe_unread(file: BinaryIO) -> str:
    file.seek(0)
    head = file.read(352)
    if not head:
        return "is empty; copy the file again"
    for offset, magic, name, remedy in _OTHER_KINDS:
        if head[offset:].startswith(magic):
            return f"is a {name} file, which is not read; {remedy}"
    return "is no PNG, JPEG, TIFF or BMP; remove the file, or store it as PNG if it is an image"


def _read_png(file: BinaryIO) -> Inputs:
    chunks = _read_png_chunks(file)
    depth, colour = chunks[b"IHDR"][8:10]
    grey, palette = colour == 0, colour == 3
    if depth == 16 and not grey:
        raise _Refused(f"is a PNG of 16 bits with colour or alpha, of which 8 would be cut; {ARRAYS}")
    if b"CgBI" in chunks:
        raise _Refused("is a PNG as iOS apps have it, with other colours; store it as an ordinary PNG")
    if b"acTL" in chunks and int.from_bytes(chunks[b"acTL"][:4]) > 1:
        raise _Refused("is an animated PNG; store each frame that is a record as a file")
    significant = chunks.get(b"sBIT")
    if significant and min(significant) < (8 if palette else depth):
        raise _Refused(
            f"says that {min(significant)} of its {depth} bits are significant (sBIT), and not how they are scaled;"
            " scale the values to the full range and leave sBIT out"
        )
    if b"tRNS" in chunks and not palette:
        raise _Refused("says that one of its colours is transparent; store the image without transparency")
    image = _open(file, "PNG")
    profile = image.info.get("Raw profile type APP1", "")  # where ImageMagick keeps a JPEG's EXIF
    if "".join(profile.split("\n")[3:]).startswith(b"Exif".hex()):
        image.info.setdefault("Raw profile type exif", profile)
    if palette and int(np.asarray(image).max()) >= len(chunks[b"PLTE"]) // 3:
        raise _Refused("uses a colour that its palette lacks; store the image again")
    return _to_pixels(image)


def _read_png_chunks(file: BinaryIO) -> dict[bytes, bytes]:
    """Return the chunks except the pixels; raise ValueError for a missing or damaged chunk, pixels included."""
    file.seek(8)
    chunks: dict[bytes, bytes] = {}
    while b"IEND" not in chunks:
        length, name = struct.unpack(">I4s", file.read(8))
        content, checksum = file.read(length), file.read(4)
        if zlib.crc32(name + content) != int.from_bytes(checksum) or len(checksum) != 4:
            raise ValueError(f"checksum of the chunk {name.decode('latin-1')}")
        if name != b"IDAT":
            chunks.setdefault(name, content)
    return chunks


def _read_jpeg(file: BinaryIO) -> Inputs:
    image = _open(file, "JPEG")
    if image.mode not in ("L", "RGB"):
        raise _Refused(f"is a {image.mode} JPEG, whose colours depend on inks; store it as RGB")
    # The first entry is the picture itself. Pillow hides the gain map of a phone's HDR photo.
    further = getattr(image, "mpinfo", {}).get(0xB002, [])[1:]
    if any("Thumbnail" not in str(entry["Attribute"]["MPType"]) for entry in further):
        raise _Refused("holds several pictures (MPO); store each that is a record as a file")
    return _to_pixels(image)


def _read_bmp(file: BinaryIO) -> Inputs:
    file.seek(14)
    header = file.read(16)
    old = header[0] == 12  # OS/2's header has sides of 16 bits
    (bits,) = struct.unpack_from("<H", header, 10 if old else 14)
    if bits not in (1, 4, 8, 24, 32):
        raise _Refused(f"is a BMP of {bits} bits; store it as PNG")
    image = _open(file, "BMP")
    # Pillow takes a palette of black and white, or a grey ramp, as a statement of the bits that a pixel has.
    if (image.mode == "1" and bits != 1) or (image.mode == "L" and bits != 8):
        raise _Refused(f"is a BMP of {bits} bits with a short grey palette; store it as PNG")
    return _to_pixels(image)


_GREY_TIFF = {(photometric, 1, (bits,), ()) for photometric in (0, 1) for bits in (1, 2, 4, 8, 16)}
_ALPHA_TIFF = {(1, 1, (8, 8), (kind,)) for kind in (1, 2)} | {(2, 1, (8,) * 4, (kind,)) for kind in (1, 2)}
_COLOUR_TIFF = {(2, 1, (8, 8, 8), ())} | {(3, 1, (bits,), ()) for bits in (1, 2, 4, 8)}
TIFF_FORMS = _GREY_TIFF | _ALPHA_TIFF | _COLOUR_TIFF | {(1, 3, (32,), ())}
"""Photometric interpretation, sample format, bits of each sample, and meaning of further samples."""

_PHOTOMETRIC = {0: "grey, white as 0", 1: "grey", 2: "RGB", 3: "palette", 5: "CMYK", 6: "YCbCr", 8: "CIELAB"}
_SAMPLES = {1: "whole numbers", 2: "signed whole numbers", 3: "floats", 6: "complex numbers"}


def _read_tiff(file: BinaryIO) -> Inputs:
    tags = _read_tiff_tags(file)
    if tags.next or _has_several_planes(tags):
        raise _Refused("has several pages; store each page that is a record as a file")
    if int(tags.get(254, 0)) & 5 or tags.get(255, 1) == 2:
        raise _Refused("begins with a preview or a mask; store the picture alone")
    if 262 not in tags:
        raise _Refused(
            "does not say whether 0 is black or white (PhotometricInterpretation); store it as PNG"
        )
    samples = int(tags.get(277, 1))
    bits = tuple(tags.get(258, (1,)))
    bits = bits * samples if len(bits) == 1 else bits
    formats = sorted(set(tags.get(339, (1,))))
    form = (tags[262], formats[0] if len(formats) == 1 else None, bits, tuple(tags.get(338, ())))
    if form not in TIFF_FORMS or len(bits) != samples:
        raise _Refused(_describe_tiff(*form))
    _check_numbers(tags, form[1] == 3, bits)
    _check_strips(tags, sum(bits) if tags.get(284, 1) == 1 else bits[0])
    # Pillow itself turns white as 0 into black as 0 up to 8 bits.
    pixels = _to_pixels(_open(file, "TIFF"), white_as_zero=form[0] == 0 and bits == (16,))
    if form[1] == 3 and not (pixels.min() >= 0.0 and pixels.max() <= 1.0):
        raise _Refused(
            f"holds floats from {pixels.min():.4g} to {pixels.max():.4g}; floats are read between 0 and 1: scale"
            " them by the same numbers at every site"
        )
    return pixels


def _check_numbers(tags: TiffImagePlugin.ImageFileDirectory_v2, floats: bool, bits: tuple[int, ...]) -> None:
    """Raise for numbers that mean others than they are, or that Pillow reads otherwise."""
    big_endian, white_as_zero = tags.prefix == b"MM", tags[262] == 0
    if floats and big_endian and tags.get(259, 1) != 1:  # Pillow swaps these bytes twice
        raise _Refused("is a compressed TIFF of big-endian floats; store it without compression")
    stores_values = not floats and tags[262] != 3 and bits[0] in (8, 16)
    largest = [float(value) for tag in (281, 341) for value in tags.get(tag, ())]
    if stores_values and 0 < max(largest, default=0.0) < 2 ** (bits[0] - 1):
        raise _Refused(
            f"says that its values of {bits[0]} bits end at {max(largest):g} (MaxSampleValue); scale them to the full"
            " range, and leave the tag out"
        )
    if bits == (16,) and float(_read_imagej(tags).get("c0", 0)) != 0:
        raise _Refused("holds signed numbers as ImageJ shifts them (c0); store them as floats in [0, 1]")
    if tags[262] == 3 and any(entry % 256 not in (0, entry // 256) for entry in tags[320]):
        raise _Refused("is a TIFF with a palette of 16 bits, of which 8 would be cut; store it as RGB")
    if bits == (16,) and white_as_zero and big_endian:
        raise _Refused("is a big-endian TIFF of 16 bits with white as 0; store it as PNG")
    if tags.get(266, 1) == 2 and bits != (1,):
        raise _Refused(f"has the bits of its bytes in reverse order (FillOrder); {ARRAYS}")
    if tags.get(284, 1) == 2 and len(bits) == 2:
        raise _Refused("holds grey and alpha in separate planes; store it without alpha")


def _read_tiff_tags(file: BinaryIO) -> TiffImagePlugin.ImageFileDirectory_v2:
    """Return the tags of the first page."""
    file.seek(0)
    head = file.read(8)
    tags = TiffImagePlugin.ImageFileDirectory_v2(head + (file.read(8) if 43 in head[2:4] else b""))
    file.seek(tags.next)
    tags.load(file)
    return tags


def _has_several_planes(tags: TiffImagePlugin.ImageFileDirectory_v2) -> bool:
    """Return True if one directory stands for several planes, of which Pillow would read the first."""
    described = str(tags.get(270, ""))
    sizes = [int(size) for size in re.findall(r'\bSize[ZCT]="(\d+)"', described)]  # OME-XML
    shape = re.match(r'\{"shape": \[([\d, ]+)\]', described)  # tifffile
    held = math.prod(map(int, shape[1].split(","))) if shape else 0
    colours = int(tags.get(277, 1)) if "<OME" in described else 1  # which SizeC counts, too
    return (
        int(tags.get(32997, 1)) > 1  # ImageDepth
        or 33629 in tags  # a stack of MetaMorph
        or int(_read_imagej(tags).get("images", 1)) > 1
        or math.prod(sizes) > colours
        or held > int(tags[256]) * int(tags[257]) * int(tags.get(277, 1))
    )


def _read_imagej(tags: TiffImagePlugin.ImageFileDirectory_v2) -> dict[str, str]:
    """Return what ImageJ states in the description, by key."""
    first, *lines = str(tags.get(270, "")).splitlines() or [""]
    return dict(line.split("=", 1) for line in lines if "=" in line) if first.startswith("ImageJ=") else {}


def _check_strips(tags: TiffImagePlugin.ImageFileDirectory_v2, pixel_bits: int) -> None:
    """Raise for a strip or tile that the file lacks, in whose place Pillow would read other bytes as pixels."""
    tiled = 324 in tags
    offsets, counts = tags.get(324 if tiled else 273, ()), tags.get(325 if tiled else 279, ())
    width, height = int(tags[256]), int(tags[257])
    rows = int(tags[323]) if tiled else min(int(tags.get(278, height)), height)
    columns = -(-width // int(tags[322])) if tiled else 1
    planes = int(tags.get(277, 1)) if tags.get(284, 1) == 2 else 1
    parts = -(-height // rows)
    if len(offsets) < parts * columns * planes:
        raise _Refused("lacks a part of its pixels (a cut or unfinished TIFF); store it in full")
    for part, (offset, count) in enumerate(zip(offsets, counts, strict=False)):
        stored = rows if tiled else min(rows, height - part % parts * rows)
        row = -(-(int(tags[322]) if tiled else width) * pixel_bits // 8)
        if not offset or not count or (tags.get(259, 1) == 1 and count < stored * row):
            raise _Refused("lacks a part of its pixels (a sparse or unfinished TIFF); store it in full")


def _describe_tiff(
    photometric: int, kind: int | None, bits: tuple[int, ...], further: tuple[int, ...]
) -> str:
    colours = _PHOTOMETRIC.get(photometric, f"photometric interpretation {photometric}")
    numbers = _SAMPLES.get(kind or 0, "numbers of an undefined kind")
    more = f" with {len(further)} further samples" if further else ""
    stored = f"{numbers} of {' + '.join(map(str, bits))} bits"
    return f"is a TIFF of {stored} ({colours}{more}), which is not read exactly; {ARRAYS}"


def _open(file: BinaryIO, kind: str) -> Image.Image:
    """Return the loaded image, as Pillow stores it."""
    file.seek(0)
    image = Image.open(file, formats=[kind])
    lenient = ImageFile.LOAD_TRUNCATED_IMAGES  # a site's own code may have set it
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        image.load()
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = lenient
    return image


def _to_pixels(image: Image.Image, *, white_as_zero: bool = False) -> Inputs:
    """Return the pixels as they are shown; 16 bits are scaled to [0, 1], and inverted where 0 is white."""
    if image.mode in ("La", "RGBa"):  # multiplied by an alpha that is 1 or is refused
        image = image.convert(image.mode.upper())
    if image.mode in ("LA", "RGBA") or "transparency" in image.info:
        alpha = image.convert("RGBA").getchannel("A").getextrema()
        if alpha[0] != 255:
            raise _Refused("has transparent pixels; lay it on a background and store it without alpha")
    array: NDArray[Any] = np.asarray(ImageOps.exif_transpose(image))
    match image.mode:
        case "1":
            return array[..., np.newaxis].astype(np.uint8) * np.uint8(255)
        case "L" | "F":
            return array[..., np.newaxis].copy()
        case "LA":
            return array[..., :1].copy()
        case "RGB" | "RGBA":
            return array[..., :3].copy()
        case "P":
            palette = np.array(image.getpalette("RGB"), np.uint8).reshape(-1, 3)
            grey = bool((palette == palette[:, :1]).all())
            return cast("Inputs", palette[:, :1][array] if grey else palette[array])
        case "I" | "I;16" | "I;16B" | "I;16L":
            deep = (65535 - array if white_as_zero else array)[..., np.newaxis]
            return cast("Inputs", deep.astype(np.float32) / np.float32(65535))
    raise _Refused(f"is read by Pillow in the mode {image.mode}; {ARRAYS}")


_STARTS: dict[str, tuple[bytes, ...]] = {
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "JPEG": (b"\xff\xd8\xff",),
    "TIFF": (b"II\x2a\0", b"MM\0\x2a", b"II\x2b\0", b"MM\0\x2b"),
    "BMP": (b"BM",),
}
_READERS: dict[str, Callable[[BinaryIO], Inputs]] = {
    "PNG": _read_png,
    "JPEG": _read_jpeg,
    "TIFF": _read_tiff,
    "BMP": _read_bmp,
}
