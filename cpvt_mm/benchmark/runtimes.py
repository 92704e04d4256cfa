"""Models that other runtimes than torch run."""
import tempfile
from pathlib import Path

from torch import Tensor, nn

from cpvt_mm.deployment import exported


class OnnxModel(nn.Module):
    """A model exported to ONNX; onnxruntime runs it on the CPU, with as many threads as torch has at construction.

    Args:
        model: A backbone of this package, in eval mode; see `cpvt_mm.deployment.exported`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        with tempfile.TemporaryDirectory() as folder, exported(model, Path(folder) / 'model.onnx', {}) as run:
            self._run = run

    def forward(self, images: Tensor) -> list[Tensor]:
        """Returns the outputs of the model for images `(B, 3, H, W)`, float32."""
        return self._run(images)
