"""Tests with several views of each image, and predictions that a test keeps."""
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image
from pycocotools.coco import COCO

from openmmlab_tools import engine
from openmmlab_tools.engine import load_config
from openmmlab_tools.engine.steps import make_views
from openmmlab_tools.engine.views import SCALES, views_of
from openmmlab_tools.pictures.prediction import SCORE_THR
from openmmlab_tools.predict.predicting import build_inferencer, predict
from tests.helpers import Models, refusal, toy_overrides
from tests.openmmlab_tools.toy import DETECTOR, SEGMENTOR

LOAD, PACK = dict(type='LoadImageFromFile'), dict(type='PackDetInputs', meta_keys=('img_id', 'flip'))


def toy(scope: str, data: Path, folder: Path, **options: object) -> Config:
    if scope == 'mmdet':
        options = {'test_evaluator.ann_file': f'{data}/instances_validation.json',
                   'model.test_cfg.rcnn.score_thr': 0., 'log_level': 'INFO', **options}
    return load_config(DETECTOR if scope == 'mmdet' else SEGMENTOR, toy_overrides(data, **options), str(folder))


@pytest.mark.parametrize('resize, sizes', [
    (dict(type='Resize', scale=(200, 100), keep_ratio=True), [(200, 100), (150, 75), (250, 125)]),
    (dict(type='mmdet.Resize', scale_factor=2., keep_ratio=True), [2., 1.5, 2.5]),
    (None, [*SCALES])])
def test_views_are_those_of_the_pipeline_at_other_sizes_and_flipped(resize: dict[str, Any] | None, sizes: list) -> None:
    labels = dict(type='LoadAnnotations', with_bbox=True)
    first, views = views_of([LOAD, *([resize] if resize else []), labels, PACK])
    resized, flipped, *rest = views['transforms']
    assert first == LOAD and [one.get('scale') or one['scale_factor'] for one in resized] == sizes
    assert [one['prob'] for one in flipped] == [0, 1]  # the first view is that of a test without views
    assert rest == [[labels], [dict(PACK, meta_keys=('img_id', 'flip', 'flip_direction'))]]


@pytest.mark.parametrize('pipeline, fault', [
    ([], 'an empty pipeline'), ([LOAD, dict(type='PackTrackInputs')], 'PackTrackInputs'),
    ([LOAD, dict(type='FixShapeResize', width=8, height=8), PACK], 'FixShapeResize')])
def test_other_pipelines_are_refused(pipeline: list, fault: str) -> None:
    assert refusal(views_of, pipeline) == (
        f'--tta cannot make views with {fault} in the test pipeline: write tta_model and tta_pipeline into the config, '
        'as configs of mmdet and mmseg do.')


def test_views_of_the_config_come_first_and_masks_alone_are_refused(toy_shapes: Path, tmp_path: Path) -> None:
    own = dict(tta_pipeline=[dict(type='Mine')], tta_model=dict(type='MyTTAModel'))
    cfg = toy('mmdet', toy_shapes, tmp_path, **own)
    make_views(cfg)
    assert cfg.tta_model.type == 'MyTTAModel'
    assert cfg.test_dataloader.dataset.pipeline == own['tta_pipeline'] and 'segm' in cfg.test_evaluator.metric
    assert 'test_evaluator.metric is segm: set it to' in refusal(
        make_views, toy('mmdet', toy_shapes, tmp_path, **{'test_evaluator.metric': 'segm'}))


def test_boxes_of_all_views_are_merged_and_kept(trained: Models, toy_shapes: Path, tmp_path: Path,
                                                log: list[tuple[str, str]]) -> None:
    annotations, kept = COCO(toy_shapes / 'instances_validation.json'), {}
    for name, is_merged in (('plain', False), ('merged', True)):
        metrics = engine.test(toy('mmdet', toy_shapes, tmp_path / name), trained['mmdet'].checkpoint, tta=is_merged,
                       out=tmp_path / f'out_{name}')
        assert 'coco/bbox_mAP' in metrics and ('coco/segm_mAP' in metrics) != is_merged
        kept[name] = json.loads((tmp_path / f'out_{name}/predictions.bbox.json').read_text())
        assert annotations.loadRes(kept[name]).anns
        assert (tmp_path / f'out_{name}/predictions.segm.json').exists() != is_merged
        [written] = (tmp_path / name).glob('test/*.py')
        assert [Config.fromfile(written).get(key, {}) != {} for key in ('tta_model', 'tta_pipeline')] == [is_merged] * 2
        # The scores of merged boxes are others than those of predictions.
        assert len([*(tmp_path / name).glob('test/*/thresholds.json')]) == (not is_merged)
    assert kept['plain'] != kept['merged']
    # Predictions take the best scores of a test of their checkpoint, if it is beside the file.
    [file] = tmp_path.glob('plain/test/*/thresholds.json')
    content = json.loads(file.read_text())
    content['classes'].update(kite=dict(score_thr=0.7, f1=0.5), boat=None, gone=dict(score_thr=0.1, f1=0.5))
    checkpoint = tmp_path / 'plain/model.pth'
    checkpoint.write_bytes(trained['mmdet'].checkpoint.read_bytes())
    cfg = load_config(trained['mmdet'].config)
    for weights, expected in ((content['weights'], 0.7), ('another', None)):
        file.write_text(json.dumps(dict(content, weights=weights)))
        measured = build_inferencer(copy.deepcopy(cfg), checkpoint, 'cpu').score_thr
        assert measured == SCORE_THR if expected is None else measured['kite'] == expected and not (
            {'boat', 'gone'} & measured.keys())
    with pytest.raises(ValueError, match='out_plain is a file, or has files: choose a new folder'):
        engine.test(toy('mmdet', toy_shapes, tmp_path / 'no'), trained['mmdet'].checkpoint, out=tmp_path / 'out_plain')


@pytest.mark.parametrize('is_merged', [False, pytest.param(True, marks=pytest.mark.slow)])
def test_label_maps_are_kept(is_merged: bool, trained: Models, toy_shapes: Path, tmp_path: Path) -> None:
    metrics = engine.test(toy('mmseg', toy_shapes, tmp_path), trained['mmseg'].checkpoint, tta=is_merged,
                          out=tmp_path / 'out')
    images = sorted((toy_shapes / 'images/validation').iterdir())
    kept = {path.stem: np.asarray(Image.open(path)) for path in (tmp_path / 'out').iterdir()}
    assert [*sorted(kept)] == [path.stem for path in images] and 0 <= metrics['mIoU'] <= 100
    alone = {path.stem: found.label_map for path, found in zip(images, predict(
        images, *trained['mmseg'], 'cpu'), strict=True)}
    assert all(kept[name].shape == alone[name].shape for name in alone)
    if not is_merged:
        assert all(np.array_equal(kept[name], alone[name]) for name in alone)
