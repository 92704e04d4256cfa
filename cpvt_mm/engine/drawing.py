"""Lines and texts that suit the image, for the visualizers of mmdet and mmseg."""
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib import rcParams
from mmengine.visualization import Visualizer

# The shorter side, in pixels, of images that mmdet's lines and texts suit. Less than LEAST of their size is illegible.
SUITABLE, LEAST = 400, 0.6
# mmseg's texts shrink with the image; they are illegible where its shorter side is smaller.
LEGIBLE = 144


def size_to_image(visualizer: Visualizer, image: np.ndarray) -> None:
    """Has mmdet's visualizer draw thinner lines and smaller texts on an image, `(H, W, 3)`, that is small."""
    # matplotlib measures both in inches, pixels are as many as before.
    visualizer.dpi = rcParams['figure.dpi'] * min(max(min(image.shape[:2]) / SUITABLE, LEAST), 1)
    visualizer.fig_save.set_dpi(visualizer.dpi)


def are_legible(image: np.ndarray) -> bool:
    """Whether mmseg's texts can be read on an image, `(H, W, 3)`."""
    return min(image.shape[:2]) >= LEGIBLE


@contextmanager
def without_texts(visualizer: Visualizer) -> Iterator[None]:
    """Has a visualizer draw no texts; mmdet's has no option for that."""

    def draw_texts(*args: Any, **kwargs: Any) -> Visualizer:
        return visualizer

    visualizer.draw_texts = draw_texts
    try:
        yield
    finally:
        del visualizer.draw_texts
