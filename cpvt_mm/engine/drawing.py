"""Scales lines and texts to the image size, for the visualizers of mmdet and mmseg."""
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib import rcParams
from mmengine.visualization import Visualizer

# mmdet's lines and texts suit images with a shorter side of SUITABLE pixels. Smaller images get smaller lines and
# texts, at least LEAST times their normal size, because smaller texts are illegible.
SUITABLE, LEAST = 400, 0.6
# mmseg's texts shrink with the image; they are illegible if its shorter side has fewer pixels than this.
LEGIBLE = 144


def size_to_image(visualizer: Visualizer, image: np.ndarray) -> None:
    """Makes mmdet's visualizer draw thinner lines and smaller texts if the image, `(H, W, 3)`, is small."""
    # matplotlib measures lines and texts in inches, so the dpi scales them; the number of pixels stays the same.
    visualizer.dpi = rcParams['figure.dpi'] * min(max(min(image.shape[:2]) / SUITABLE, LEAST), 1)
    visualizer.fig_save.set_dpi(visualizer.dpi)


def are_legible(image: np.ndarray) -> bool:
    """Returns whether mmseg's texts are legible on an image, `(H, W, 3)`."""
    return min(image.shape[:2]) >= LEGIBLE


@contextmanager
def without_texts(visualizer: Visualizer) -> Iterator[None]:
    """Disables the texts of a visualizer; mmdet's visualizer has no option for that."""

    def draw_texts(*args: Any, **kwargs: Any) -> Visualizer:
        return visualizer

    visualizer.draw_texts = draw_texts
    try:
        yield
    finally:
        del visualizer.draw_texts
