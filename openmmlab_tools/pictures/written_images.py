"""Hooks that write a picture for each image of a test: the image with its predictions, or its label map."""
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from mmengine.visualization import Visualizer

from openmmlab_tools.files import unique_name, write_image
from openmmlab_tools.texts import label

from .bands import read_view
from .painting import paint_name
from .prediction import of_sample


class PaintPredictionsHook(Hook):
    """Paints every test image: truth on the left, prediction on the right.

    Files are `<name of image>.png`, or `<name of video>_<name of frame>.png`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.names: set[str] = set()

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: dict | None = None,
                        outputs: Sequence[BaseDataElement] | None = None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for sample in outputs or ():
            frames = getattr(sample, 'video_data_samples', None)
            for frame in frames or [sample]:
                path = Path(frame.img_path)
                # An image of the same name may be in another folder.
                name = unique_name(f'{path.parent.name}_{path.stem}' if frames else path.stem, self.names)
                self._paint(runner.visualizer, frame, self.folder / f'{name}.png')

    def _paint(self, visualizer: Visualizer, sample: BaseDataElement, file: Path) -> None:
        image, metainfo = read_view(sample.img_path), visualizer.dataset_meta or {}
        classes = metainfo.get('classes') or ()
        if 'pred_label' in sample:
            labels = [[classes[index] if classes else str(int(index)) for index in sample.get(f'{kind}_label', ())]
                      for kind in ('gt', 'pred')]
            painted = [paint_name(image, ', '.join(names)) for names in labels]
        elif 'pred_panoptic_seg' in sample:
            painted = []
        else:
            predictions = [of_sample(sample, image.shape[:2], metainfo, kind, image=image) for kind in ('gt', 'pred')]
            painted = [prediction.plot() for prediction in predictions if prediction]
        if painted:
            write_image(file, np.concatenate(painted, axis=1))
        else:  # the library draws it, with matplotlib
            visualizer.dataset_meta = dict(metainfo, classes=[*map(label, classes)])
            visualizer.add_datasample(file.stem, image, sample, out_file=str(file))
            visualizer.dataset_meta = metainfo


class KeepLabelMapsHook(Hook):
    """Writes the label maps that a segmentor predicts: `<name of image>.png`, with the number of a class at each pixel,
    from 0.

    The second image of a name in another folder is `<name>_2.png`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder, self.names = Path(folder), set[str]()

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None,
                        outputs: Sequence[BaseDataElement] | None = None) -> None:
        for sample in outputs or ():
            label_map = sample.pred_sem_seg.data[0].cpu().numpy()
            name = unique_name(Path(sample.img_path).stem, self.names)
            self.folder.mkdir(parents=True, exist_ok=True)
            write_image(self.folder / f'{name}.png', label_map.astype(np.min_scalar_type(int(label_map.max()))),
                        runner.visualizer.dataset_meta.get('palette'))
