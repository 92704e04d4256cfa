"""The hook paints what each library predicts: truth on the left, prediction on the right."""
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample, TrackDataSample
from mmengine.structures import InstanceData, PixelData
from mmpretrain.structures import DataSample
from mmseg.structures import SegDataSample
from PIL import Image

from openmmlab_tools.pictures.written_images import PaintPredictionsHook

SIZE = 160, 200


def detected(pred: str = 'pred_instances', **more: Any) -> DetDataSample:
    """Has annotated a box, and found one beside it, with a mask."""
    box = dict(bboxes=torch.tensor([[20., 40, 70, 90]]), labels=torch.tensor([1]))
    actual = InstanceData(bboxes=box['bboxes'] + 50, labels=box['labels'], scores=torch.tensor([0.9]),
                          masks=torch.ones(1, *SIZE, dtype=torch.bool).triu())
    return DetDataSample(metainfo=more, **{'gt_instances': InstanceData(**box), pred: actual})


@pytest.mark.parametrize('make', [
    detected,
    lambda **more: SegDataSample(metainfo=more, **{f'{kind}_sem_seg': PixelData(data=torch.full((1, *SIZE), value))
                                                   for kind, value in (('gt', 0), ('pred', 1))}),
    lambda **more: DataSample(metainfo=more).set_gt_label(0).set_pred_label(1),
    lambda **more: TrackDataSample(video_data_samples=[detected('pred_track_instances', **more)])
], ids=['boxes', 'label maps', 'labels', 'frames'])
def test_two_sides_that_differ(make: Any, tmp_path: Path) -> None:
    Image.new('RGB', SIZE[::-1]).save(tmp_path / 'a.png')
    visualizer = SimpleNamespace(dataset_meta=dict(classes=('cat', 'dog'), palette=[(255, 0, 0), (0, 255, 0)]))
    hook, runner = PaintPredictionsHook(tmp_path / 'out'), SimpleNamespace(visualizer=visualizer)
    sample = make(img_path=str(tmp_path / 'a.png'))
    for _ in range(2):
        hook.after_test_iter(runner, 0, outputs=[sample])
    name = f'{tmp_path.name}_a' if hasattr(sample, 'video_data_samples') else 'a'
    assert {path.name for path in (tmp_path / 'out').iterdir()} == {f'{name}.png', f'{name}_2.png'}
    painted = np.asarray(Image.open(tmp_path / f'out/{name}.png'))
    left, right = painted[:, :SIZE[1]], painted[:, SIZE[1]:]
    assert left.shape == right.shape == (*SIZE, 3) and left.any() and right.any() and not np.array_equal(left, right)
