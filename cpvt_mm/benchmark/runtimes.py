"""Other runtimes than torch."""
import tempfile
from pathlib import Path

from torch import Tensor, nn

from cpvt_mm.deployment import exported


class OnnxModel(nn.Module):
    """A model exported to ONNX, which onnxruntime runs on the CPU with as many threads as torch has at the time.

    Args:
        model: One of our backbones, in eval mode; see `cpvt_mm.deployment.exported`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        with tempfile.TemporaryDirectory() as folder, exported(model, Path(folder) / 'model.onnx', {}) as run:
            self._run = run

    def forward(self, images: Tensor) -> list[Tensor]:
        """`(B, 3, H, W)`, float32 -> the outputs of the model."""
        return self._run(images)
