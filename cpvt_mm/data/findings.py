"""Faults that a dataset can have."""
from dataclasses import dataclass
from enum import Enum

from cpvt_mm.errors import UserError


class Kind(Enum):
    """Kinds of findings; the values are the texts in reports."""
    DATASET = 'dataset that cannot be read'
    NOT_BUILT = 'dataset that cannot be built'
    SAMPLE = 'sample that the pipeline or model fails on'
    EVALUATOR = 'metric with another annotation file'
    TOO_FEW_CLASSES = 'head with fewer classes than the dataset'
    NUM_CLASSES = 'head with more classes than the dataset'
    CORNERS = 'boxes that are written as corners'
    NOTHING_LEFT = 'no annotation to learn from'
    CLASSES = 'classes that do not match the categories'
    CLASS_ORDER = 'categories in another order than the classes'
    CLASS_UNUSED = 'class without a category'
    UNLISTED_CATEGORY = 'annotation of an unlisted category'
    DUPLICATE = 'id that occurs twice'
    DUPLICATE_ANNOTATION = 'annotation whose id occurs twice'
    LEFT_OUT = 'category that is not a class'
    UNLISTED_IMAGE = 'annotation of an unlisted image'
    BOX = 'box outside of its image, or without area'
    NO_MASKS = 'boxes without masks in a config for masks'
    MASK = 'mask that is invalid, or of another size than its image'
    POLYGON = 'polygon or mask that mmdet ignores, or outside of its image'
    IMAGE = 'image that is missing or cannot be read'
    IMAGE_SIZE = 'image of another size than annotated'
    LABEL_MAP = 'label map that is missing or cannot be read'
    LABEL_MAP_SIZE = 'label map of another size than its image'
    LABEL = 'label that is not a class'
    LABEL_MAP_ALONE = 'label map without image'
    NOT_ANNOTATED = 'image without annotation'
    NOT_CHECKED = 'annotations that are not checked'


# Findings that are not errors.
NOTES = (Kind.CLASS_UNUSED, Kind.LEFT_OUT, Kind.NOT_ANNOTATED, Kind.NOT_CHECKED)


@dataclass(frozen=True)
class Finding:
    """One fault.

    Attributes:
        kind: The kind of fault.
        file: The file with the fault.
        detail: The rest of a sentence that begins with the file's name, with the values.
    """
    kind: Kind
    file: str
    detail: str

    @property
    def is_error(self) -> bool:
        """Whether the finding is an error; the others are notes."""
        return self.kind not in NOTES


class UnusableFile(UserError):
    """An error in a file that a dataset cannot do without.

    Args:
        file: The file or folder.
        detail: The rest of a sentence that begins with the file's name: the fault, and what to do.
    """

    def __init__(self, file: str, detail: str) -> None:
        super().__init__(f'{file} {detail}')
        self.file = file
        self.detail = detail
