"""The input of each reader, and the names of the layouts."""
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from openmmlab_tools.readers.form.folder import Folder

COCO, VOC, YOLO, LABELME = 'COCO annotations', 'Pascal VOC', 'YOLO', 'LabelMe JSON'
CVAT, LABEL_STUDIO, LABEL_MAPS, CSV = 'CVAT XML', 'Label Studio JSON', 'label maps', 'boxes in CSV files'


@dataclass(frozen=True)
class ReadingOptions:
    semantic: bool | None = None  # whether label maps are wanted, if there are other annotations, too; None: what is
    masks: str | None = None  # one of LABEL_MAP_KINDS; None: guessed
    colours: Path | None = None  # a file with classes and colours; None: one in the folder
    embedded: Path | None = None  # a folder for images that are only in annotation files; None: these are left out


class Reading(NamedTuple):
    files: Sequence[Path]  # of one layout
    folder: Folder
    options: ReadingOptions
    named: Path | None  # the file that the user named, if any
