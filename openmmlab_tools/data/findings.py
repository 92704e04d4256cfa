"""The kinds of faults that a dataset can have: their words, how bad they are, and what to do about them."""
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

# How bad a fault is. With a fatal fault a run stops before it starts; errors are warnings then, and notes only notes.
FATAL, ERROR, NOTE = 'fatal', 'error', 'note'
# Advice for each kind of fault; `{name}` is the dotted name of the dataset's config.
CORRECT_FILE = 'correct the file'
WRITE_ANEW = 'let the command new-config write a corrected file'
PUT_THERE = 'put the files there, or correct {name}.data_root, .ann_file or .data_prefix'
RIGHT_FILE = 'put the right file there'
CORRECT_CLASSES = 'correct it, or {name}.metainfo.classes'
WITHOUT_MASKS = ('take a config for boxes, such as one of the command new-config, or set with_mask=False in the '
                 "pipelines, model.roi_head.mask_head=None, and metric='bbox' in the evaluators")


class Kind(Enum):
    """A kind of fault: what `check` calls it, how bad it is, and what to do about it."""
    DATASET = 'dataset that cannot be read', FATAL
    NOT_BUILT = 'dataset that cannot be built', ERROR
    SAMPLE = 'sample that the pipeline or model fails on', ERROR
    REPAIR = 'value that mmdet cannot read', FATAL, WRITE_ANEW
    BATCH = 'batch of images of several sizes', FATAL, 'set it to 1'
    EVALUATOR = 'metric with another annotation file', FATAL, 'correct the path'
    TOO_FEW_CLASSES = 'head with fewer classes than the dataset', FATAL, CORRECT_CLASSES
    NUM_CLASSES = 'head with more classes than the dataset', FATAL, CORRECT_CLASSES
    CLASS_WEIGHTS = 'weights for another number of classes', FATAL, CORRECT_CLASSES
    QUERIES = 'number of boxes that a model with queries cannot choose', FATAL, 'set it to that'
    WINDOWS = 'head that cannot predict in windows', FATAL, "set it to 'whole'"
    CORNERS = 'boxes that are written as corners', FATAL
    NOTHING_LEFT = 'no annotation to learn from', FATAL
    CLASSES = 'classes that do not match the categories', FATAL, CORRECT_CLASSES
    CLASS_ORDER = 'categories in another order than the classes', FATAL, CORRECT_CLASSES
    CLASS_UNUSED = 'class without a category', NOTE
    UNLISTED_CATEGORY = 'annotation of an unlisted category', FATAL
    DUPLICATE = 'id that occurs twice', ERROR
    DUPLICATE_ANNOTATION = 'annotation whose id occurs twice', ERROR
    SAID_TWICE = 'object that is annotated twice', NOTE
    LEFT_OUT = 'category that is not a class', NOTE
    SAME_FILE = 'image that is listed twice', ERROR
    SHARED = 'image for training and for validation or test', ERROR
    CROWDS = 'crowds, which are not learnt', ERROR
    UNLISTED_IMAGE = 'annotation of an unlisted image', ERROR
    BOX = 'box outside of its image, or without area', ERROR
    AREA = 'area that cannot be right, for AP by size', ERROR
    NO_MASKS = 'boxes without masks in a config for masks', FATAL, WITHOUT_MASKS
    MASK = 'mask that is invalid, or of another size than its image', ERROR
    POLYGON = 'polygon or mask that mmdet ignores, or outside of its image', ERROR
    IMAGE = 'image that is missing or cannot be read', FATAL, PUT_THERE
    BITS = 'image whose 16 bits are read as 8', ERROR
    CHANNELS = 'image with other channels than the config', ERROR
    TYPE = 'image of another type than the first', ERROR
    NO_VALUE = 'image with pixels without a value', ERROR
    FILLED = 'image with pixels without a value, which are filled', NOTE
    IMAGE_SIZE = 'image of another size than annotated', FATAL, RIGHT_FILE
    TURNED = 'image that EXIF data turns, perhaps without its annotations', NOTE
    COPY = 'image with the content of another one', ERROR
    LABEL_MAP = 'label map that is missing or cannot be read', FATAL, PUT_THERE
    LABEL_MAP_SIZE = 'label map of another size than its image', FATAL, RIGHT_FILE
    LABEL = 'label that is not a class', ERROR
    LABEL_MAP_ALONE = 'label map without image', ERROR
    NOT_NAMED = 'image that the dataset does not read', NOTE
    NOT_ANNOTATED = 'image without annotation', NOTE
    NOT_CHECKED = 'annotations that are not checked', NOTE

    def __init__(self, text: str, weight: str, remedy: str = CORRECT_FILE) -> None:
        self.text, self.weight, self.remedy = text, weight, remedy


@dataclass(frozen=True)
class Finding:
    """One fault; `detail` is the rest of a sentence that begins with the file's name, with the values."""
    kind: Kind
    file: str
    detail: str

    @property
    def is_error(self) -> bool:
        """True for an error, False for a note."""
        return self.kind.weight != NOTE

    @property
    def sentence(self) -> str:
        """The file and what is wrong with it, without a full stop."""
        return f'{self.file} {self.detail}'


def sentence_of(findings: Sequence[Finding]) -> str:
    """Returns the sentence of the first finding, and how many more of its kind there are."""
    more = f' (and {len(findings) - 1} more of this kind)' if len(findings) > 1 else ''
    return f'{findings[0].sentence}{more}'
