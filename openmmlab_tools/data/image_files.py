"""Reads the image files of datasets, and makes findings of what is wrong with them."""
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from mmengine.fileio import get
from PIL import Image

from openmmlab_tools.errors import FileFault, UserError, first_line
from openmmlab_tools.pictures.images import LOSES_BITS, check_alone, check_regular, explained, has_16_bits, pages

from .findings import Finding, Kind


def read(path: str, backend_args: dict[str, Any] | None = None) -> bytes:
    """Reads a file; raises a FileFault if it is empty or not a regular file, such as a pipe, and a storage's errors."""
    if '://' not in path and not backend_args:
        check_regular(path)
    if content := get(path, backend_args=backend_args):
        return content
    raise FileFault(path, 'is empty (0 bytes)')


def decode(content: bytes, path: str) -> tuple[Image.Image, bool]:
    """Decodes an image, and returns it with whether it has 16 bits per channel, which mmcv's loader reads as 8.

    Raises a FileFault with the path if the image is damaged, or if the file has several images.
    """
    with explained(path):
        image = Image.open(BytesIO(content))
        loses_bits, count = has_16_bits(image), len(pages(image))
        image.load()
        check_alone(count, path)
    return image, loses_bits


@contextmanager
def noted(findings: list[Finding], kind: Kind, path: str) -> Iterator[None]:
    """Makes a finding of any error in the `with` block, which reads a file."""
    try:
        yield
    except FileNotFoundError:
        findings.append(Finding(kind, path, 'does not exist'))
    except FileFault as fault:
        findings.append(Finding(kind, path, fault.detail))
    except UserError as error:  # of a storage, which names the path
        findings.append(Finding(kind, path, first_line(error).removeprefix(f'{path} ').rstrip('.')))
    except Exception as error:  # each storage raises its own errors
        findings.append(Finding(kind, path, f'cannot be read: {first_line(error)}'))


def faults_of(path: str, kind: Kind) -> list[Finding]:
    """Decodes an image or a label map (`kind`) on this machine, and returns what is wrong with it; 16 bits only matter
    in an image.
    """
    findings: list[Finding] = []
    with noted(findings, kind, path):
        _, loses_bits = decode(read(path), path)
        if loses_bits and kind is Kind.IMAGE:
            findings.append(Finding(Kind.BITS, path, LOSES_BITS))
    return findings
