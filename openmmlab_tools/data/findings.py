"""Faults that a dataset can have, and those of its image files; parts of messages about them."""
from dataclasses import dataclass
from enum import Enum
from io import BytesIO
from typing import Any

from mmengine.fileio import get
from PIL import Image

from openmmlab_tools.errors import UserError, first_line
from openmmlab_tools.pictures.images import LOSES_BITS, check_alone, check_regular, explained, has_16_bits, pages

NO_IMAGE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)  # what Pillow raises for damaged files


class Kind(Enum):
    DATASET = 'dataset that cannot be read'
    NOT_BUILT = 'dataset that cannot be built'
    SAMPLE = 'sample that the pipeline or model fails on'
    REPAIR = 'value that mmdet cannot read'
    BATCH = 'batch of images of several sizes'
    EVALUATOR = 'metric with another annotation file'
    TOO_FEW_CLASSES = 'head with fewer classes than the dataset'
    NUM_CLASSES = 'head with more classes than the dataset'
    CLASS_WEIGHTS = 'weights for another number of classes'
    QUERIES = 'number of boxes that a model with queries cannot choose'
    WINDOWS = 'head that cannot predict in windows'
    CORNERS = 'boxes that are written as corners'
    NOTHING_LEFT = 'no annotation to learn from'
    CLASSES = 'classes that do not match the categories'
    CLASS_ORDER = 'categories in another order than the classes'
    CLASS_UNUSED = 'class without a category'
    UNLISTED_CATEGORY = 'annotation of an unlisted category'
    DUPLICATE = 'id that occurs twice'
    DUPLICATE_ANNOTATION = 'annotation whose id occurs twice'
    SAID_TWICE = 'object that is annotated twice'
    LEFT_OUT = 'category that is not a class'
    SAME_FILE = 'image that is listed twice'
    SHARED = 'image for training and for validation or test'
    CROWDS = 'crowds, which are not learnt'
    UNLISTED_IMAGE = 'annotation of an unlisted image'
    BOX = 'box outside of its image, or without area'
    AREA = 'area that cannot be right, for AP by size'
    NO_MASKS = 'boxes without masks in a config for masks'
    MASK = 'mask that is invalid, or of another size than its image'
    POLYGON = 'polygon or mask that mmdet ignores, or outside of its image'
    IMAGE = 'image that is missing or cannot be read'
    BITS = 'image whose 16 bits are read as 8'
    CHANNELS = 'image with other channels than the config'
    TYPE = 'image of another type than the first'
    NO_VALUE = 'image with pixels without a value'
    FILLED = 'image with pixels without a value, which are filled'
    IMAGE_SIZE = 'image of another size than annotated'
    TURNED = 'image that EXIF data turns, perhaps without its annotations'
    COPY = 'image with the content of another one'
    LABEL_MAP = 'label map that is missing or cannot be read'
    LABEL_MAP_SIZE = 'label map of another size than its image'
    LABEL = 'label that is not a class'
    LABEL_MAP_ALONE = 'label map without image'
    NOT_NAMED = 'image that the dataset does not read'
    NOT_ANNOTATED = 'image without annotation'
    NOT_CHECKED = 'annotations that are not checked'


# Findings that are not errors.
NOTES = (Kind.CLASS_UNUSED, Kind.LEFT_OUT, Kind.TURNED, Kind.NOT_NAMED, Kind.NOT_ANNOTATED, Kind.NOT_CHECKED,
         Kind.FILLED, Kind.SAID_TWICE)


@dataclass(frozen=True)
class Finding:
    """One fault; `detail` is the rest of a sentence that begins with the file's name, with the values."""
    kind: Kind
    file: str
    detail: str

    @property
    def is_error(self) -> bool:
        """Whether the finding is an error; the others are notes."""
        return self.kind not in NOTES


class UnusableFile(UserError):
    """An error in a file or folder that a dataset cannot do without; `detail` has the fault, and what to do."""

    def __init__(self, file: str, detail: str) -> None:
        super().__init__(f'{file} {detail}')
        self.file = file
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, self.detail)


def decode(path: str, kind: Kind, backend_args: dict[str, Any] | None = None) -> Image.Image | Finding:
    """Decodes an image; returns a finding of `kind` if that fails, or of `Kind.BITS` for an image of 16 bits per
    channel.
    """
    content = read(path, kind, backend_args)
    return content if isinstance(content, Finding) else decode_content(content, path, kind)


def read(path: str, kind: Kind, backend_args: dict[str, Any] | None = None) -> bytes | Finding:
    """Reads a file; returns a finding of `kind` if it is missing, empty, or no file, such as a pipe."""
    try:
        if '://' not in path and not backend_args:
            check_regular(path)
        return get(path, backend_args=backend_args) or Finding(kind, path, 'is empty (0 bytes)')
    except FileNotFoundError:
        return Finding(kind, path, 'does not exist')
    except UserError as error:
        return Finding(kind, path, first_line(error).removeprefix(f'{path} ').rstrip('.'))
    except Exception as error:  # each storage raises its own errors
        return Finding(kind, path, f'cannot be read: {first_line(error)}')


def decode_content(content: bytes, path: str, kind: Kind) -> Image.Image | Finding:
    try:
        with explained(path):
            image = Image.open(BytesIO(content))
            loses_bits = kind is Kind.IMAGE and has_16_bits(image)
            count = len(pages(image))
            image.load()
            check_alone(count, path)
    except UserError as error:
        return Finding(kind, path, str(error).removeprefix(f'image {path} ').rstrip('.'))
    return Finding(Kind.BITS, path, LOSES_BITS) if loses_bits else image
