"""A trained model that is shown an image: what it predicts, and where it attends."""
import copy
from pathlib import Path

import numpy as np
from mmengine.registry import DefaultScope

from cpvt_mm.engine import load_config
from cpvt_mm.engine.inferencing import build_inferencer, paint
from cpvt_mm.errors import UserError
from cpvt_mm.models import CPVT, PyramidCPVT

from .attention import collect, default_blocks, name_blocks
from .drawing import Overlay, overlay_image
from .inputs import read_image, to_input
from .sizes import set_shorter_test_side, shorter_test_side


class ShownModel:
    """A detector or segmentor with its weights, to be tried at any test size.

    Args:
        checkpoint: A file with its config beside it, as training leaves both.

    Attributes:
        is_detector: Whether its predictions have scores.
        side: The test size of the config, see `shorter_test_side`.
        blocks: Names of the blocks whose attention can be drawn; none if the backbone is of another kind.
        block: The one to look at first: the second of the last stage but one (in CPVT: of all).

    Raises:
        UserError: If there is no config beside the checkpoint, or more than one, or they do not fit.
    """

    def __init__(self, checkpoint: Path) -> None:
        configs = sorted(checkpoint.parent.glob('*.py'))
        if len(configs) != 1:
            raise UserError(f'folder {checkpoint.parent} has {len(configs)} configs (*.py), but must have one: put '
                            'the config there that the checkpoint was trained with, and no other.')
        self._cfg = load_config(configs[0])
        self._inferencer = build_inferencer(copy.deepcopy(self._cfg), checkpoint)
        backbone = getattr(self._inferencer.model, 'backbone', None)
        self._backbone = backbone if isinstance(backbone, (CPVT, PyramidCPVT)) else None
        self.is_detector = self._cfg.default_scope == 'mmdet'
        self.side = shorter_test_side(self._cfg)
        self.blocks = list(name_blocks(self._backbone)) if self._backbone else []
        self.block = default_blocks(self._backbone)[-2:][0] if self._backbone else None

    def paint(self, path: str | Path, side: int, score_thr: float) -> np.ndarray:
        """Paints boxes and masks, or the label map, on an image file.

        Args:
            path: The image.
            side: The test size, see `set_shorter_test_side`.
            score_thr: See `paint`.

        Returns:
            `(H, W, 3)` RGB, uint8.

        Raises:
            UserError: If the image cannot be read.
        """
        read_image(path)  # says what the inferencer would fail on
        self._set_side(side)
        np.random.seed(0)  # mmdet varies the colours of masks at random: here they stay, whatever the size
        with DefaultScope.overwrite_default_scope(self._cfg.default_scope):
            return paint(self._inferencer, path, score_thr=score_thr)

    def draw_attention(self, path: str | Path, side: int, block: str | None, pixel: tuple[int, int]
                       ) -> tuple[np.ndarray, str]:
        """Draws where the query at a pixel of an image file attends, over the image as the model sees it.

        Args:
            path: The image.
            side: The test size, see `set_shorter_test_side`.
            block: One of `blocks`.
            pixel: Column and row in the file, from 0.

        Returns:
            `(H', W', 3)` RGB, uint8, and a sentence on it.

        Raises:
            UserError: If the image cannot be read, or the backbone has no such block.
        """
        if self._backbone is None:
            raise UserError(f'the backbone of config {self._cfg.filename} is no CPVT and no PyramidCPVT, so its '
                            'attention cannot be drawn: choose another checkpoint.')
        height, width = read_image(path).shape[:2]
        self._set_side(side)
        # RGB, resized and not padded
        seen = self._inferencer.pipeline(str(path))['inputs'].numpy().transpose(1, 2, 0)[..., ::-1]
        x, y = pixel[0] * seen.shape[1] // width, pixel[1] * seen.shape[0] // height
        inputs = to_input(seen, self._cfg).to(next(self._backbone.parameters()).device)
        found = collect(self._backbone, inputs, [str(block)])[str(block)]
        weights = found.of_query((x, y)).mean(dim=0).cpu()
        return overlay_image(seen, Overlay('', weights, found.key_cell), (x, y)), (
            f'The model sees {seen.shape[1]} x {seen.shape[0]} pixels (width x height). In block {block}, the query at '
            f'x={x}, y={y} gives {weights.max():.1%} of its attention to the brightest place.')

    def _set_side(self, side: int) -> None:
        cfg = copy.deepcopy(self._cfg)
        set_shorter_test_side(cfg, side)
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            self._inferencer.pipeline = self._inferencer._init_pipeline(cfg)
