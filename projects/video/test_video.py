"""Clips are whole in training and windows of a video in tests; the toy videos train; any ids are counted."""
from pathlib import Path

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample, TrackDataSample
from mmengine.logging import MessageHub
from pycocotools import mask as rle
from torch import nn

from cpvt_mm.registry import MODELS
from cpvt_mm.tokens.batch_info import BatchInfo, told_about
from lab.study import read_study
from openmmlab_tools import engine
from openmmlab_tools.engine import load_config, train
from projects.video import YouTubeVISMetric
from projects.video.toy_video import write_toy_video
from tests.helpers import refusal, toy_overrides

STUDY = Path(__file__).with_name('configs') / 'space_time_toy.py'
SIZES = [(96, 128), (70, 100)]


def preprocess(**options: object) -> nn.Module:
    return MODELS.build(dict(type='cpvt_mm.TrackDataPreprocessor', pad_size_divisor=32, **options))


def batch(sizes: list[tuple[int, int]], length: int) -> dict[str, list]:
    """Clips of random pixels."""
    samples = [TrackDataSample(video_data_samples=[
        DetDataSample(metainfo=dict(img_shape=size, ori_shape=size)) for _ in range(length)]) for size in sizes]
    for sample in samples:
        sample.set_metainfo(dict(key_frames_inds=[0], ref_frames_inds=list(range(1, length))))
    return dict(inputs=[torch.randint(256, (length, 3, *size), dtype=torch.uint8) for size in sizes],
                data_samples=samples)


def test_clips_are_whole_in_training_and_windows_of_a_video_in_testing() -> None:
    inputs = preprocess(window=1)(batch(SIZES, 3), training=True)['inputs']
    assert inputs.shape == (2, 3, 3, 96, 128)
    assert told_about(inputs.flatten(0, 1)) == BatchInfo((SIZES[0],) * 3 + (SIZES[1],) * 3, (96, 128), 3, 3)
    for window, length in ((None, 5), (2, 2), (9, 5)):
        assert told_about(preprocess(window=window)(batch(SIZES[:1], 5))['inputs'][0]).window == length
    assert 'window is 0' in refusal(preprocess, window=0, error=ValueError)
    assert 'window is 2, but must divide the 3 frames of each of the 2 videos' in refusal(
        preprocess(window=2), batch(SIZES, 3), error=ValueError)


def test_instances_are_counted_with_any_ids() -> None:
    mask = rle.encode(np.asfortranarray(np.pad(np.ones((30, 30), np.uint8), 30)))
    mask['counts'] = mask['counts'].decode()
    for ids in ((1, 2), (0, 1), (5, 5)):
        metric, results = YouTubeVISMetric(), []
        metric.dataset_meta = dict(classes=('cat',))
        for video, id in enumerate(ids, start=1):
            true = [dict(category_id=1, segmentations=[mask], bboxes=[[30, 30, 30, 30]], video_id=video,
                         areas=[900], id=id, iscrowd=0)]
            annotations = [dict(video_id=video, score=.9, category_id=1, segmentations=[mask])]
            metric._vis_meta_info['videos'].append(dict(
                width=90, height=90, video_length=1, frame_id=0, img_id=video, video_id=video, id=video, file_name=''))
            results.append((annotations, true))
        assert metric.compute_metrics(results)['segm_mAP'] == 1.


@pytest.mark.slow
def test_each_variant_of_the_study_trains_a_step_and_predicts(tmp_path: Path) -> None:
    list(write_toy_video(tmp_path / 'data', 4, 8))
    study = read_study(STUDY)
    for (name, variant), test in zip(study.variants.items(), study.tests.values(), strict=True):
        options = toy_overrides(tmp_path / 'data', **{
            'train_cfg.max_iters': 1, 'train_cfg.val_interval': 10, 'default_hooks.checkpoint.interval': 1,
            'test_dataloader.dataset.indices': 2, **variant.options, **test})
        cfg = load_config(variant.config, options, str(tmp_path / name))
        train(cfg)
        assert MessageHub.get_current_instance().get_scalar('train/loss').current() > 0
        assert 'youtube_vis/segm_mAP' in engine.test(cfg, tmp_path / name / 'iter_1.pth', tmp_path / name / 'painted')
        assert {path.name for path in (tmp_path / name / 'painted').iterdir()} == {
            f'{video:06d}_{frame:05d}.png' for video in range(2) for frame in range(8)}
