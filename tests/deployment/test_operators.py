"""The operators, eager and in onnxruntime."""
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cpvt_mm.deployment.exporting import load_onnx, write_onnx
from cpvt_mm.deployment.operators import NO_BOX, nms, roi_align

BOXES = torch.tensor([[[0., 0, 10, 10], [1, 0, 10, 10], [20, 20, 30, 30], [0, 5, 10, 10], [40, 40, 40, 40]],
                      [[0., 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 10], [50, 50, 90, 60], [50, 50, 90, 61]]])
SCORES = torch.tensor([[0.5, 0.9, 0.7, 0.6, 0.1], [NO_BOX, 0.2, 0.1, 0.7, 0.8]])
# The overlap of boxes 1 and 3 of the first image is 45 / 95.
KEPT = {0.4: [[0, 1], [0, 2], [0, 4], [1, 4], [1, 1]], 0.5: [[0, 1], [0, 2], [0, 3], [0, 4], [1, 4], [1, 1]]}
# Inside, across the border, of no size, and larger than the map.
ROIS = torch.tensor([[0., 3, 4, 20, 30], [1, 30, 20, 44, 36], [1, 8, 8, 8, 8], [0, 0, 0, 48, 40]])


class Operators(nn.Module):
    """All operators with several arguments; the boxes are constants."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer('boxes', BOXES)
        self.register_buffer('scores', SCORES)
        self.register_buffer('rois', ROIS)

    def forward(self, x: Tensor) -> list[Tensor]:
        kept = [nms(self.boxes, self.scores, threshold, count) for threshold in KEPT for count in (1, 5)]
        crops = [roi_align(x, self.rois, [4, 3], 0.25, ratio, aligned) for ratio in (0, 2) for aligned in (True, False)]
        return [*kept, *crops, roi_align(x, self.rois[:0], [4, 3], 0.25, 0, True)]


@pytest.mark.parametrize('iou_threshold', KEPT)
def test_boxes_that_overlap_with_a_better_one_are_suppressed(iou_threshold: float) -> None:
    assert nms(BOXES, SCORES, iou_threshold, 5).tolist() == KEPT[iou_threshold]
    assert nms(BOXES, SCORES, iou_threshold, 1).tolist() == [[0, 1], [1, 4]]
    assert nms(BOXES, torch.full_like(SCORES, NO_BOX), iou_threshold, 5).shape == (0, 2)


@pytest.mark.slow
def test_onnxruntime_computes_the_same(tmp_path: Path) -> None:
    model, x = Operators(), torch.randn(2, 5, 10, 12)
    write_onnx(tmp_path / 'a.onnx', torch.export.export(model, (x,)), {})
    outputs = load_onnx(tmp_path / 'a.onnx')(x)
    for output, expected in zip(outputs, model(x), strict=True):
        assert output.shape == expected.shape
        # Crops are means of four neighbours weighted by distances: some roundings of numbers below 4.
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)


def test_torch_knows_the_shapes() -> None:
    torch.library.opcheck(nms, (BOXES, SCORES, 0.5, 5), test_utils=('test_schema', 'test_faketensor'))
    torch.library.opcheck(roi_align, (torch.randn(2, 5, 10, 12), ROIS, [4, 3], 0.25, 0, True),
                          test_utils=('test_schema', 'test_faketensor'))
