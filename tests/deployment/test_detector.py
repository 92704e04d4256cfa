from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor

from cpvt_mm.deployment import compare, exported, load_part
from cpvt_mm.deployment.comparing import batches
from cpvt_mm.deployment.detector import Detector, to_detector
from cpvt_mm.engine import load_config
from cpvt_mm.errors import UserError
from cpvt_mm.loading import build
from tests.conftest import ROOT
from tests.deployment.detectors import FASTER, MASK, MODELS, RETINA, config, detector, save

# Each turns a branch of the code around.
OPTIONS = {
    'RetinaNet': (RETINA, {}),
    'fewer candidates': (RETINA, {'test_cfg.nms_pre': 5}),
    'few boxes': (RETINA, {'test_cfg.max_per_img': 3, 'test_cfg.score_thr': 0.2}),
    'large boxes': (RETINA, {'test_cfg.min_bbox_size': 20}),
    'softmax': (RETINA, {'bbox_head.loss_cls': dict(type='CrossEntropyLoss'), 'test_cfg.score_thr': 0.002}),
    'beyond the image': (RETINA, {'bbox_head.bbox_coder': dict(type='DeltaXYWHBBoxCoder', clip_border=False)}),
    'Faster R-CNN': (FASTER, {}),
    'few proposals': (FASTER, {'test_cfg.rpn.max_per_img': 4}),
    'fewer proposals than may be': (FASTER, {'test_cfg.rpn.nms.iou_threshold': 0.1}),
    'one box for all classes': (FASTER, {'roi_head.bbox_head.reg_class_agnostic': True}),
    'not aligned': (FASTER, {'roi_head.bbox_roi_extractor.roi_layer': dict(
        type='RoIAlign', output_size=7, sampling_ratio=2, aligned=False)}),
    'Mask R-CNN': (MASK, {}),
    'one mask for all classes': (MASK, {'roi_head.mask_head.class_agnostic': True}),
}


def run_eagerly(model: Detector, image: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [*model(image).values()]


@pytest.mark.parametrize('name', OPTIONS)
def test_boxes_are_those_of_mmdet(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an export; the arithmetic is the same but for the order of sums."""
    monkeypatch.setattr('cpvt_mm.deployment.comparing.SHAPES', ((1, 1, 1), (2, 33, 47), (1, 128, 96)))
    model, options = OPTIONS[name]
    wrapped = detector(model, **options)
    tiny, *differences = compare(wrapped, lambda image: run_eagerly(wrapped, image))
    assert all(difference.largest < 1e-4 and difference.count > 1 for difference in differences)
    assert tiny.largest < 1e-4


def test_a_batch_is_as_many_images() -> None:
    wrapped, image = detector(MASK), torch.randn(2, 3, 97, 61)
    with torch.no_grad():
        both, *alone = wrapped(image), *(wrapped(x[None]) for x in image)
    assert {key: value.shape[1:] for key, value in both.items()} == {
        'dets': (5,), 'labels': (), 'images': (), 'masks': (28, 28)}
    assert both['images'].tolist() == [i for i, found in enumerate(alone) for _ in found['labels']]
    for key in ('dets', 'labels', 'masks'):
        torch.testing.assert_close(both[key], torch.cat([found[key] for found in alone]), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize('model', MODELS.values(), ids=MODELS)
def test_there_may_be_nothing(model: dict[str, Any]) -> None:
    wrapped = detector(model)
    wrapped.test_cfg.score_thr = 1.
    with torch.no_grad():
        assert all(len(value) == 0 for value in wrapped(torch.randn(2, 3, 40, 40)).values())


@pytest.mark.slow
@pytest.mark.parametrize('name, threshold', [('RetinaNet', {'test_cfg.score_thr': 0.09}),
                                             ('Mask R-CNN', {'test_cfg.rcnn.score_thr': 0.4})])
def test_files_are_right_at_all_sizes(name: str, threshold: dict[str, float], tmp_path: Path) -> None:
    """The threshold is such that nothing is found in the smallest image."""
    wrapped, path = detector(MODELS[name], **threshold), tmp_path / 'a.onnx'
    torch.compiler.reset()
    with exported(wrapped, path, {}) as run:
        differences = list(compare(wrapped, run))
    assert all(difference.is_small for difference in differences)
    assert [difference.count > 0 for difference in differences] == [False] + [True] * 9
    graph = onnx.load(path).graph
    assert [output.name for output in graph.output] == ['dets', 'labels', 'images', 'masks'][:len(graph.output)]
    assert len(graph.output) == (3 if name == 'RetinaNet' else 4)
    assert {node.domain for node in graph.node} == {''}
    operators = {node.op_type for node in graph.node}
    assert 'NonMaxSuppression' in operators and ('RoiAlign' in operators) == (name == 'Mask R-CNN')


def test_detectors_are_written_to_onnx_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'a detector cannot be exported to \.pt2, .*the suffix \.onnx\.'), \
            exported(detector(RETINA), tmp_path / 'a.pt2', {}):
        pass
    assert not any(tmp_path.iterdir())


def test_weights_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    first = detector(RETINA)
    second = load_part(config(RETINA), 'detector', save(first, tmp_path / 'a.pth'))
    assert not second.training
    image = next(batches(3))
    assert all(torch.equal(a, b) for a, b in zip(run_eagerly(first, image), run_eagerly(second, image), strict=True))
    with pytest.raises(UserError, match='random weights finds no boxes to compare: pass a --checkpoint'):
        load_part(config(RETINA), 'detector')


@pytest.mark.parametrize('base, name', [
    ('fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py', 'FCOSHead'),
    ('cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py', 'CascadeRoIHead'),
    ('double_heads/dh-faster-rcnn_r50_fpn_1x_coco.py', 'DoubleHeadRoIHead'),
    ('panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py', 'PanopticFPN'), ('detr/detr_r50_8xb2-150e_coco.py', 'DETRHead'),
    ('mask2former/mask2former_r50_8xb2-lsj-50e_coco.py', 'Mask2Former'),
])
def test_another_head_is_named(base: str, name: str, tmp_path: Path) -> None:
    (tmp_path / 'config.py').write_text(f"_base_ = 'mmdet::{base}'\n")
    cfg = load_config(tmp_path / 'config.py')
    with torch.device('meta'):  # takes no memory
        model = build(cfg, cfg.model)
    with pytest.raises(UserError) as error:
        to_detector(model)
    assert str(error.value) == (f'a {name} cannot be exported, only RetinaNet, Faster R-CNN and Mask R-CNN with their '
                                'standard heads: export the backbone alone, with --part backbone.')


def test_another_nms_is_named() -> None:
    with pytest.raises(UserError, match=r"nms={'type': 'soft_nms', 'iou_threshold': 0.5} in its test_cfg"):
        detector(FASTER, **{'test_cfg.rcnn.nms.type': 'soft_nms'})


@pytest.mark.parametrize('name', ['toy/mask-rcnn_pyramid-cpvt-nano_fpn_toy-shapes',
                                  'cpvt/mask-rcnn_cpvt-ti_sfp_1x_coco',
                                  'pyramid_cpvt/retinanet_pyramid-cpvt-t_fpn_1x_coco'])
def test_configs_of_the_project_can_be_exported(name: str) -> None:
    cfg = load_config(ROOT / f'configs/{name}.py')
    with torch.device('meta'):
        assert isinstance(to_detector(build(cfg, cfg.model)), Detector)
