"""A trained model for the demo: its predictions and attention for an image."""
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mmcv import rgb2bgr
from mmcv.transforms import Resize
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from cpvt_mm.models import CPVT, PyramidCPVT
from lab.attention import Overlay, collect, default_blocks, name_blocks, overlay_image
from lab.commands.resolution_sweep import get_test_size
from openmmlab_tools.checkpoints.loading import to_input
from openmmlab_tools.choices import MAX_PIXELS
from openmmlab_tools.engine import load_config
from openmmlab_tools.errors import UserError
from openmmlab_tools.pictures.images import read_image
from openmmlab_tools.predict.predicting import build_inferencer, infer


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Stops models that compute in the `with` block for longer than `seconds`, in all threads, by a UserError.

    Modules look at the clock before they compute. An operator that runs comes to its end first.
    """
    end = time.monotonic() + seconds

    def check(module: nn.Module, args: Any) -> None:
        if time.monotonic() >= end:
            raise UserError(f'the model takes over {seconds:g} seconds and is stopped: choose a smaller test size.')

    hook = register_module_forward_pre_hook(check)
    try:
        yield
    finally:
        hook.remove()


class ShownModel:
    """A detector or segmentor with its weights, for any test size; stopped after `seconds` of each prediction or
    drawing.

    Attributes:
        backbone: The backbone, if it is a `CPVT` or `PyramidCPVT`; else None.
        is_detector: Whether its predictions have scores.
        side: The shorter side of the scale in the test pipeline, in pixels; 512 if it has a `scale_factor`.
        blocks: Names of the blocks whose attention can be drawn; empty if the backbone is not of this package.
        block: The block to show first: the second block of the last stage but one, or of CPVT; None without blocks.
    """

    def __init__(self, checkpoint: Path, seconds: float = 60) -> None:
        configs = sorted(checkpoint.parent.glob('*.py'))
        if len(configs) != 1:
            raise UserError(f'folder {checkpoint.parent} has {len(configs)} configs (*.py), but must have one: put '
                            'only the config there that the checkpoint was trained with.')
        self._seconds = seconds
        self._cfg = load_config(configs[0])
        self._size = get_test_size(self._cfg)
        self._inferencer = build_inferencer(self._cfg, checkpoint)
        backbone = getattr(self._inferencer.model, 'backbone', None)
        self.backbone = backbone if isinstance(backbone, (CPVT, PyramidCPVT)) else None
        self.is_detector = self._cfg.default_scope == 'mmdet'
        self.side = min(self._size)
        self.blocks = list(name_blocks(self.backbone)) if self.backbone else []
        self.block = default_blocks(self.backbone)[-2:][0] if self.backbone else None

    def paint(self, path: str | Path, side: int, score_thr: float) -> np.ndarray:
        """Paints boxes and masks, or the label map, on an image file; returns `(H, W, 3)` RGB, uint8.

        The scale of the config is multiplied so that its shorter side has the length `side`.
        """
        self._set_side(side)
        with time_limit(self._seconds):
            prediction, = infer(self._inferencer, path, max_pixels=MAX_PIXELS)
        return prediction.plot(score_thr)

    def draw_attention(self, path: str | Path, side: int, block: str | None, pixel: tuple[int, int]
                       ) -> tuple[np.ndarray, str]:
        """Draws the attention of the query at a pixel (column and row in the file), over the image as resized for the
        model.

        Returns:
            `(H', W', 3)` RGB, uint8, and a sentence that describes it.
        """
        if self.backbone is None:
            raise UserError(f'the backbone of config {self._cfg.filename} is neither a CPVT nor a PyramidCPVT, so its '
                            'attention cannot be drawn: choose another checkpoint.')
        image = read_image(path, max_pixels=MAX_PIXELS)
        height, width = image.shape[:2]
        self._set_side(side)
        # RGB, resized and not padded
        seen = self._inferencer.pipeline(rgb2bgr(image))['inputs'].numpy().transpose(1, 2, 0)[..., ::-1]
        x, y = pixel[0] * seen.shape[1] // width, pixel[1] * seen.shape[0] // height
        inputs = to_input(seen, self._cfg).to(next(self.backbone.parameters()).device)
        with time_limit(self._seconds):
            attended = collect(self.backbone, inputs, [str(block)])[str(block)]
        weights = attended.of_query((x, y)).mean(dim=0).cpu()
        return overlay_image(seen, Overlay('', weights, attended.key_cell), (x, y)), (
            f'The model sees {seen.shape[1]} x {seen.shape[0]} pixels (width x height). In block {block}, the query at '
            f'x={x}, y={y} gives {weights.max():.1%} of its attention to the brightest cell.')

    def _set_side(self, side: int) -> None:
        for transform in self._inferencer.pipeline.transforms:
            if isinstance(transform, Resize):
                transform.scale = tuple(round(length * side / self.side) for length in self._size)
