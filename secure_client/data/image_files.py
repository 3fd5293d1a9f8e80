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
from enum import IntEnum
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
                raise _Refused(_name_other_kind(file))
            return _READERS[kind](file)
    except _Refused as refusal:
        raise DataError(f"{path}: {refusal}") from refusal
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(
            f"{path}: has more than {Image.MAX_IMAGE_PIXELS} pixels; shrink or cut the image"
        ) from error
    except (OSError, ValueError, SyntaxError, LookupError, TypeError, struct.error, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error
        reason = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
        raise DataError(
            f"{path}: is damaged, or a {kind} that Pillow does not decode{reason}; restore the file or store it as PNG"
        ) from error


def describe_unread(path: Path) -> str:
    """Say what a file is that has no suffix of an image, and what to do about it."""
    try:
        with path.open("rb") as file:
            kind = _identify(file)
            if kind is None:
                return _name_other_kind(file)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return f"holds a {kind} image, but its name does not end like one; rename or remove the file"


def _identify(file: BinaryIO) -> str | None:
    file.seek(0)
    head = file.read(8)
    for kind, starts in _STARTS.items():
        if head.startswith(starts):
            return kind
    return None


def _name_other_kind(file: BinaryIO) -> str:
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
    if b"CgBI" in chunks:  # red and blue are exchanged, and colours multiplied by alpha
        raise _Refused("is a PNG as iOS apps have it, with other colours; store it as an ordinary PNG")
    if b"acTL" in chunks and int.from_bytes(chunks[b"acTL"][:4]) > 1:
        raise _Refused("is an animated PNG; store each frame that is a record as a file")
    # A camera of 12 bits may store them shifted to 16 or not: sBIT does not tell, and one reading is 16 times darker.
    significant = chunks.get(b"sBIT")
    if significant and min(significant) < (8 if palette else depth):
        raise _Refused(
            f"says that {min(significant)} of its {depth} bits are significant (sBIT), and not how they are scaled;"
            " scale the values to the full range and leave sBIT out"
        )
    # A colour key: pixels that happen to have the colour would count as holes.
    if b"tRNS" in chunks and not palette:
        raise _Refused("says that one of its colours is transparent; store the image without transparency")
    image = _open(file, "PNG")
    profile = image.info.get("Raw profile type APP1", "")  # where ImageMagick keeps a JPEG's EXIF
    if "".join(profile.split("\n")[3:]).startswith(b"Exif".hex()):
        image.info.setdefault("Raw profile type exif", profile)
    # Pillow refuses no number beyond the palette.
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
    # CMYK and YCCK: Adobe's files store them inverted, others do not, and no profile is applied here.
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


class _Tag(IntEnum):
    """Tags of a TIFF, by their names in the specification (TIFF 6.0)."""

    NEW_SUBFILE_TYPE = 254
    SUBFILE_TYPE = 255
    WIDTH = 256
    LENGTH = 257
    BITS_PER_SAMPLE = 258
    COMPRESSION = 259
    PHOTOMETRIC_INTERPRETATION = 262
    FILL_ORDER = 266
    DESCRIPTION = 270
    STRIP_OFFSETS = 273
    SAMPLES_PER_PIXEL = 277
    ROWS_PER_STRIP = 278
    STRIP_BYTE_COUNTS = 279
    MAX_SAMPLE_VALUE = 281
    PLANAR_CONFIGURATION = 284
    COLOR_MAP = 320
    TILE_WIDTH = 322
    TILE_LENGTH = 323
    TILE_OFFSETS = 324
    TILE_BYTE_COUNTS = 325
    EXTRA_SAMPLES = 338
    SAMPLE_FORMAT = 339
    S_MAX_SAMPLE_VALUE = 341
    IMAGE_DEPTH = 32997
    METAMORPH_STACK = 33629


# Values of photometric interpretation, sample format, compression, planar configuration and fill order
_WHITE_AS_ZERO, _BLACK_AS_ZERO, _RGB, _PALETTE = 0, 1, 2, 3
_UNSIGNED, _FLOAT = 1, 3
_UNCOMPRESSED, _SEPARATE_PLANES, _REVERSED_BITS = 1, 2, 2
_PREVIEW_OR_MASK = 0b101
"""Bits of NEW_SUBFILE_TYPE: a reduced image, a transparency mask."""
_ALPHAS = ((1,), (2,))
"""Extra samples that are an alpha: multiplied into the colours, or not."""

_GREY_TIFF = {
    (photometric, _UNSIGNED, (bits,), ())
    for photometric in (_WHITE_AS_ZERO, _BLACK_AS_ZERO)
    for bits in (1, 2, 4, 8, 16)
}
_ALPHA_TIFF = {(_BLACK_AS_ZERO, _UNSIGNED, (8, 8), alpha) for alpha in _ALPHAS} | {
    (_RGB, _UNSIGNED, (8,) * 4, alpha) for alpha in _ALPHAS
}
_COLOUR_TIFF = {(_RGB, _UNSIGNED, (8, 8, 8), ())} | {
    (_PALETTE, _UNSIGNED, (bits,), ()) for bits in (1, 2, 4, 8)
}
TIFF_FORMS = _GREY_TIFF | _ALPHA_TIFF | _COLOUR_TIFF | {(_BLACK_AS_ZERO, _FLOAT, (32,), ())}
"""Photometric interpretation, sample format, bits of each sample, and meaning of further samples."""

_PHOTOMETRIC = {0: "grey, white as 0", 1: "grey", 2: "RGB", 3: "palette", 5: "CMYK", 6: "YCbCr", 8: "CIELAB"}
_SAMPLES = {1: "whole numbers", 2: "signed whole numbers", 3: "floats", 6: "complex numbers"}


def _read_tiff(file: BinaryIO) -> Inputs:
    # The tags are checked before Pillow decodes: Pillow reads many forms, and some of them wrongly without an error.
    tags = _read_tiff_tags(file)
    if tags.next or _has_several_planes(tags):
        raise _Refused("has several pages; store each page that is a record as a file")
    if int(tags.get(_Tag.NEW_SUBFILE_TYPE, 0)) & _PREVIEW_OR_MASK or tags.get(_Tag.SUBFILE_TYPE, 1) == 2:
        raise _Refused("begins with a preview or a mask; store the picture alone")
    if _Tag.PHOTOMETRIC_INTERPRETATION not in tags:
        raise _Refused(
            "does not say whether 0 is black or white (PhotometricInterpretation); store it as PNG"
        )
    photometric = tags[_Tag.PHOTOMETRIC_INTERPRETATION]
    samples = int(tags.get(_Tag.SAMPLES_PER_PIXEL, 1))
    bits = tuple(tags.get(_Tag.BITS_PER_SAMPLE, (1,)))
    bits = bits * samples if len(bits) == 1 else bits
    formats = sorted(set(tags.get(_Tag.SAMPLE_FORMAT, (_UNSIGNED,))))
    sample_format = formats[0] if len(formats) == 1 else None
    form = (photometric, sample_format, bits, tuple(tags.get(_Tag.EXTRA_SAMPLES, ())))
    # A list of forms that are read, not of those that are refused: TIFF has more forms than anyone lists.
    if form not in TIFF_FORMS or len(bits) != samples:
        raise _Refused(_describe_tiff(*form))
    is_float = sample_format == _FLOAT
    _check_numbers(tags, is_float, bits)
    in_planes = tags.get(_Tag.PLANAR_CONFIGURATION, 1) == _SEPARATE_PLANES
    _check_strips(tags, bits[0] if in_planes else sum(bits))
    # Pillow itself turns white as 0 into black as 0 up to 8 bits.
    pixels = _to_pixels(_open(file, "TIFF"), white_as_zero=photometric == _WHITE_AS_ZERO and bits == (16,))
    if is_float and not (pixels.min() >= 0.0 and pixels.max() <= 1.0):
        raise _Refused(
            f"holds floats from {pixels.min():.4g} to {pixels.max():.4g}; floats are read between 0 and 1: scale"
            " them by the same numbers at every site"
        )
    return pixels


def _check_numbers(tags: TiffImagePlugin.ImageFileDirectory_v2, floats: bool, bits: tuple[int, ...]) -> None:
    """Raise for numbers that mean others than they are, or that Pillow reads otherwise."""
    big_endian = tags.prefix == b"MM"
    photometric = tags[_Tag.PHOTOMETRIC_INTERPRETATION]
    # Pillow swaps these bytes twice.
    if floats and big_endian and tags.get(_Tag.COMPRESSION, 1) != _UNCOMPRESSED:
        raise _Refused("is a compressed TIFF of big-endian floats; store it without compression")
    # A scanner of 12 bits in 16 states 4095: read as 65535, white would be a dark grey.
    stores_values = not floats and photometric != _PALETTE and bits[0] in (8, 16)
    limits = (_Tag.MAX_SAMPLE_VALUE, _Tag.S_MAX_SAMPLE_VALUE)
    largest = max((float(value) for tag in limits for value in tags.get(tag, ())), default=0.0)
    if stores_values and 0 < largest < 2 ** (bits[0] - 1):
        raise _Refused(
            f"says that its values of {bits[0]} bits end at {largest:g} (MaxSampleValue); scale them to the full"
            " range, and leave the tag out"
        )
    # ImageJ stores signed 16 bits as unsigned ones plus 32768, and notes that only in its description.
    if bits == (16,) and float(_read_imagej(tags).get("c0", 0)) != 0:
        raise _Refused("holds signed numbers as ImageJ shifts them (c0); store them as floats in [0, 1]")
    # Pillow keeps the upper 8 of a palette's 16 bits: a lower half that equals the upper one, or 0, loses nothing.
    if photometric == _PALETTE and any(
        entry % 256 not in (0, entry // 256) for entry in tags[_Tag.COLOR_MAP]
    ):
        raise _Refused("is a TIFF with a palette of 16 bits, of which 8 would be cut; store it as RGB")
    if bits == (16,) and photometric == _WHITE_AS_ZERO and big_endian:
        raise _Refused("is a big-endian TIFF of 16 bits with white as 0; store it as PNG")
    if tags.get(_Tag.FILL_ORDER, 1) == _REVERSED_BITS and bits != (1,):
        raise _Refused(f"has the bits of its bytes in reverse order (FillOrder); {ARRAYS}")
    if tags.get(_Tag.PLANAR_CONFIGURATION, 1) == _SEPARATE_PLANES and len(bits) == 2:
        raise _Refused("holds grey and alpha in separate planes; store it without alpha")


def _read_tiff_tags(file: BinaryIO) -> TiffImagePlugin.ImageFileDirectory_v2:
    file.seek(0)
    head = file.read(8)
    is_big_tiff = 43 in head[2:4]  # its header has 16 bytes
    tags = TiffImagePlugin.ImageFileDirectory_v2(head + (file.read(8) if is_big_tiff else b""))
    file.seek(tags.next)
    tags.load(file)
    return tags


def _has_several_planes(tags: TiffImagePlugin.ImageFileDirectory_v2) -> bool:
    """Return True if one directory stands for several planes, of which Pillow would read the first."""
    samples = int(tags.get(_Tag.SAMPLES_PER_PIXEL, 1))
    description = str(tags.get(_Tag.DESCRIPTION, ""))
    ome_sizes = [int(size) for size in re.findall(r'\bSize[ZCT]="(\d+)"', description)]
    ome_colours = samples if "<OME" in description else 1  # which SizeC counts, too
    tifffile_shape = re.match(r'\{"shape": \[([\d, ]+)\]', description)
    tifffile_values = math.prod(map(int, tifffile_shape[1].split(","))) if tifffile_shape else 0
    return (
        int(tags.get(_Tag.IMAGE_DEPTH, 1)) > 1
        or _Tag.METAMORPH_STACK in tags
        or int(_read_imagej(tags).get("images", 1)) > 1
        or math.prod(ome_sizes) > ome_colours
        or tifffile_values > int(tags[_Tag.WIDTH]) * int(tags[_Tag.LENGTH]) * samples
    )


def _read_imagej(tags: TiffImagePlugin.ImageFileDirectory_v2) -> dict[str, str]:
    first, *lines = str(tags.get(_Tag.DESCRIPTION, "")).splitlines() or [""]
    return dict(line.split("=", 1) for line in lines if "=" in line) if first.startswith("ImageJ=") else {}


def _check_strips(tags: TiffImagePlugin.ImageFileDirectory_v2, pixel_bits: int) -> None:
    """Raise for a strip or tile that the file lacks, in whose place Pillow would read other bytes as pixels."""
    width, height = int(tags[_Tag.WIDTH]), int(tags[_Tag.LENGTH])
    tiled = _Tag.TILE_OFFSETS in tags
    if tiled:
        offsets, sizes = tags.get(_Tag.TILE_OFFSETS, ()), tags.get(_Tag.TILE_BYTE_COUNTS, ())
        part_width, part_rows = int(tags[_Tag.TILE_WIDTH]), int(tags[_Tag.TILE_LENGTH])
    else:
        offsets, sizes = tags.get(_Tag.STRIP_OFFSETS, ()), tags.get(_Tag.STRIP_BYTE_COUNTS, ())
        part_width, part_rows = width, min(int(tags.get(_Tag.ROWS_PER_STRIP, height)), height)
    # Pillow reads from the offset that it finds, 0 for a sparse file's hole, and the header would become pixels.
    columns, parts_down = -(-width // part_width), -(-height // part_rows)
    in_planes = tags.get(_Tag.PLANAR_CONFIGURATION, 1) == _SEPARATE_PLANES
    planes = int(tags.get(_Tag.SAMPLES_PER_PIXEL, 1)) if in_planes else 1
    if len(offsets) < parts_down * columns * planes:
        raise _Refused("lacks a part of its pixels (a cut or unfinished TIFF); store it in full")
    row_bytes = -(-part_width * pixel_bits // 8)
    for part, (offset, size) in enumerate(zip(offsets, sizes, strict=False)):
        # The last strip may have fewer rows. Tiles are padded to their full size.
        rows = part_rows if tiled else min(part_rows, height - part % parts_down * part_rows)
        is_short = tags.get(_Tag.COMPRESSION, 1) == _UNCOMPRESSED and size < rows * row_bytes
        if not offset or not size or is_short:
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
    # A camera stores rows as its sensor has them, and states in EXIF how to rotate them for the eye.
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
