"""`cpvt_mm.TrackDataPreprocessor` tells a backbone in mmdet's video models which frames are one clip."""
import numpy as np
import pytest
import torch
from mmdet.registry import MODELS as MMDET_MODELS
from mmdet.structures import DetDataSample, TrackDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.hub import get_config
from mmengine.registry import DefaultScope
from mmengine.structures import InstanceData
from torch import nn

from cpvt_mm.models.batches import Told, told_about
from cpvt_mm.registry import MODELS
from cpvt_mm.swap import swap_backbone
from tests.conftest import build_model
from tests.refusals import refusal

SIZES = [(96, 128), (70, 100)]


def frame(size: tuple[int, int], index: int, length: int, key: bool = True) -> DetDataSample:
    """One object, which has the same identity in each frame."""
    height, width = size
    mask = np.zeros((1, height, width), np.uint8)
    mask[:, 20:60, 10 + index:50 + index] = 1
    sample = DetDataSample(metainfo=dict(
        img_shape=size, ori_shape=size, img_id=index, frame_id=index, video_id=0, video_length=length,
        ori_video_length=length, scale_factor=(1., 1.), key_frame_flags=key))
    sample.gt_instances = InstanceData(
        bboxes=torch.tensor([[10. + index, 20., 50. + index, 60.]]), labels=torch.tensor([1]),
        masks=BitmapMasks(mask, height, width), instances_ids=torch.tensor([1]))
    return sample


def batch(sizes: list[tuple[int, int]], length: int) -> dict[str, list]:
    """Clips of random pixels."""
    samples = []
    for size in sizes:
        clip = TrackDataSample(video_data_samples=[frame(size, i, length) for i in range(length)])
        clip.set_metainfo(dict(key_frames_inds=[0], ref_frames_inds=list(range(1, length))))
        samples.append(clip)
    return dict(inputs=[torch.randint(256, (length, 3, *size), dtype=torch.uint8) for size in sizes],
                data_samples=samples)


def preprocess(**kwargs: object) -> nn.Module:
    return MODELS.build(dict(type='cpvt_mm.TrackDataPreprocessor', pad_size_divisor=32, **kwargs))


def test_training() -> None:
    inputs = preprocess(window=1)(batch(SIZES, 3), training=True)['inputs']
    assert inputs.shape == (2, 3, 3, 96, 128)
    frames = inputs.flatten(0, 1)
    assert told_about(frames) == Told((SIZES[0],) * 3 + (SIZES[1],) * 3, 3)


@pytest.mark.parametrize(('window', 'length'), [(None, 5), (2, 2), (9, 5)])
def test_windows_of_a_video(window: int | None, length: int) -> None:
    frames = preprocess(window=window)(batch(SIZES[:1], 5))['inputs'][0]
    assert told_about(frames).frames == length


def test_the_pixels_are_mmdets() -> None:
    data, cfg = batch(SIZES, 2), dict(mean=[1., 2., 3.], std=[4., 5., 6.], bgr_to_rgb=True)
    with DefaultScope.overwrite_default_scope('mmdet'):
        plain = MMDET_MODELS.build(dict(type='TrackDataPreprocessor', pad_size_divisor=32, **cfg))
    assert torch.equal(preprocess(**cfg)(data)['inputs'], plain(data)['inputs'])


def test_images_of_a_detector_inside() -> None:
    data = batch(SIZES, 1)
    data = dict(inputs=[clip[0] for clip in data['inputs']], data_samples=[clip[0] for clip in data['data_samples']])
    images = preprocess(use_det_processor=True)(data, training=True)['inputs']
    assert images.shape == (2, 3, 96, 128) and told_about(images) == Told(tuple(SIZES))


def test_a_window_of_no_frame_is_named() -> None:
    assert 'window is 0' in refusal(preprocess, window=0, error=ValueError)


def swapped(name: str) -> nn.Module:
    """A stock model of mmdet with the backbone and the data preprocessor for clips."""
    cfg = swap_backbone(get_config(f'mmdet::{name}'), arch='nano')
    detector = cfg.model.get('detector', cfg.model)
    detector.backbone.update(position_encoding=dict(type='PEG', ndim=3), padding='exact')
    cfg.model.data_preprocessor.type = 'cpvt_mm.TrackDataPreprocessor'
    if 'detector' in cfg.model:
        detector.test_cfg.rcnn.max_per_img = 5  # the masks of 100 objects take seconds
    return build_model(cfg)


@pytest.mark.parametrize(('name', 'training', 'test'), [
    ('mask2former_vis/mask2former_r50_8xb2-8e_youtubevis2019.py', [2], [3]),
    # It looks at the two frames apart, and at those of a video one by one.
    ('masktrack_rcnn/masktrack-rcnn_mask-rcnn_r50_fpn_8xb1-12e_youtubevis2019.py', [1, 1], [1, 1, 1]),
])
def test_stock_models_train_and_predict(name: str, training: list[int], test: list[int]) -> None:
    model = swapped(name).train()
    lengths: list[int] = []
    backbone = getattr(model, 'detector', model).backbone
    backbone.register_forward_pre_hook(lambda _, args: lengths.append(told_about(args[0]).frames))
    losses = model(**model.data_preprocessor(batch(SIZES, 2), training=True), mode='loss')
    loss, _ = model.parse_losses(losses)
    loss.backward()
    assert loss.isfinite() and lengths == training
    gradients = {name: p.grad for name, p in model.named_parameters() if 'position_encoding' in name}
    assert all(gradient.isfinite().all() for gradient in gradients.values()) and len(gradients) == 8

    lengths.clear()
    with torch.no_grad():
        result, = model.eval().test_step(batch(SIZES[:1], 3))
    assert lengths == test and len(result) == 3
