"""Writes what is predicted for images into a folder: painted images, and boxes or label maps."""
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from openmmlab_tools.choices import IMAGE_SUFFIXES
from openmmlab_tools.errors import UserError, say, sentence
from openmmlab_tools.files import unique_name, write_image, write_text
from openmmlab_tools.pictures.images import LOSES_BITS, has_16_bits
from openmmlab_tools.pictures.prediction import Prediction, to_coco

from .regions import Regions, open_regions
from .sources import BrokenVideo, Named, images_of, pages_of, root_of

LABEL_MAPS, PREDICTIONS = 'label_maps', 'predictions.json'


def open_images(image: str, folder: Path, urls: bool) -> Iterable[Named]:
    """Returns the images that an argument names; a UserError if what is written into a folder could replace them."""
    source = Path(image)
    is_there = source.exists()
    images = images_of(int(image) if image.isdecimal() and not is_there else image, urls)
    if folder.resolve() == (source if is_there else root_of(image)).resolve():
        raise UserError(f'--out-dir {folder} is the folder of the images: choose another.')
    return images


@dataclass
class Results:
    """Predicts images and writes what is found into a folder."""
    folder: Path
    predictions: Path  # the folder of label maps, or else the file of boxes
    is_plain: bool  # whether images are read as 8 bits; a warning names the first that loses bits
    run: Callable[[Named], Iterator[Prediction]]
    plot: Callable[[Prediction, Regions | None], np.ndarray]
    in_tiles: bool = False  # whether large images are predicted in tiles, so that Pillow need not open them
    names: set[str] = field(default_factory=set)
    painted: set[str] = field(default_factory=set)  # names of files, without their suffix
    failed: dict[str, str] = field(default_factory=dict)
    boxes: dict[str, Prediction] = field(default_factory=dict)
    written: set[Path] = field(default_factory=set)
    has_warned: bool = False

    def without_faults(self, images: Iterable[Named]) -> Iterator[Named]:
        """Yields images, and collects the faults of videos, so that the next images are still predicted."""
        left = iter(images)
        while True:
            try:
                yield next(left)
            except StopIteration:
                return
            except BrokenVideo as error:
                self.failed[unique_name(error.name, self.names)] = sentence(error)

    def add(self, named: Named) -> None:
        """Predicts and writes each page of an image, and keeps the faults."""
        try:
            regions = open_regions(named.image) if self.in_tiles and self.is_plain else None
            for page in [Named(named.name, regions)] if regions else pages_of(named, self.is_plain):
                name = unique_name(page.name, self.names)
                try:
                    self._add(name, page)
                except UserError as error:
                    self.failed[name] = sentence(error)
                except OSError as error:
                    shown = page.name if isinstance(page.image, np.ndarray) else page.image
                    self.failed[name] = (f'what belongs to image {shown} cannot be written ({error.strerror}): give '
                                         'the image another name, or choose another --out-dir.')
        except UserError as error:  # the file cannot be opened, or a page of it
            self.failed[unique_name(named.name, self.names)] = sentence(error)

    def _add(self, name: str, page: Named) -> None:
        if {LABEL_MAPS, '..'} & {*Path(name).parts[:-1]}:  # it could replace a label map, or leave the folder
            raise UserError(f'image {name} would be written outside {self.folder}, or over a label map: pass the '
                            'folder of the image.')
        regions = page.image if isinstance(page.image, Regions) else None
        image = regions.path if regions else page.image
        if isinstance(image, Path) and self.folder.resolve() in image.resolve().parents:
            raise UserError(f'image {image} is in --out-dir: choose a folder that contains none of the images.')
        prediction, = self.run(page)
        painted = name[:-len(suffix)] if (suffix := Path(name).suffix).lower() in IMAGE_SUFFIXES else name
        if painted in self.painted:
            painted = unique_name(name, self.painted)
            say(f'warning: image {name} is drawn as {painted}.png, because another image has the same name.')
        self.painted.add(painted)
        if prediction.label_map is None:
            self.boxes[name] = replace(prediction, image=None)  # also if it cannot be painted
        else:
            self._write(self.predictions / f'{painted}.png', prediction.label_map, prediction.palette)
        self._write(self.folder / f'{painted}.png', self.plot(prediction, regions))
        if self.is_plain and not self.has_warned and isinstance(image, Path) and not regions:
            with suppress(UnidentifiedImageError, Image.DecompressionBombError), Image.open(image) as opened:
                if has_16_bits(opened):
                    say(f'warning: {image} {LOSES_BITS}; this warning is printed once.')
                    self.has_warned = True

    def _write(self, path: Path, pixels: np.ndarray, palette: Any = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_image(path, pixels, palette)
        self.written.add(path)

    def finish(self) -> None:
        """Writes the boxes, and warns about files in the folder that this run has not written."""
        if self.predictions.name == PREDICTIONS:
            write_text(self.predictions, json.dumps(to_coco(self.boxes)))
            self.written.add(self.predictions)
        others = sorted({*self.folder.rglob('*.png'), *self.folder.glob(PREDICTIONS)} - self.written)
        if others:
            say(f'warning: {self.folder} also contains {len(others)} files from other runs, such as {others[0]}. Use a '
                'new --out-dir for each run.')
