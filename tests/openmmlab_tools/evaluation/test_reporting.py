"""A test of a detector and of a segmentor writes a report, which another can be compared with, and scores."""
import copy
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmdet.models import TwoStageDetector
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.structures import InstanceData
from PIL import Image

from openmmlab_tools import engine
from openmmlab_tools.errors import UserError
from openmmlab_tools.evaluation import page
from openmmlab_tools.evaluation.comparison import compare
from openmmlab_tools.evaluation.gathered import Gathered
from openmmlab_tools.evaluation.reporting import Report, short_names
from tests.helpers import Models, refusal, toy_overrides
from tests.openmmlab_tools.toy import DETECTOR, SEGMENTOR

NAME = '<script>alert("x")</script> & $title'


def config(scope: str, toy_shapes: Path, folder: Path, **more: object) -> Config:
    options: dict[str, Any] = dict(more)
    if scope == 'mmdet':
        # Weights of two iterations find nothing for sure.
        options.update({'test_evaluator.ann_file': f'{toy_shapes}/instances_validation.json',
                        'model.test_cfg.rcnn.score_thr': 0.})
    return engine.load_config(DETECTOR if scope == 'mmdet' else SEGMENTOR, toy_overrides(toy_shapes, **options),
                              str(folder))


@pytest.mark.parametrize('scope, kinds', [('mmdet', ['bbox', 'segm']), ('mmseg', ['regions', 'boundaries'])])
def test_a_test_writes_a_report_and_a_second_one_is_not_told_apart(
        scope: str, kinds: list[str], toy_shapes: Path, trained: Models, tmp_path: Path) -> None:
    first, second, model = tmp_path / 'first', tmp_path / 'second', trained[scope].checkpoint
    metrics = engine.test(config(scope, toy_shapes, tmp_path / 'work'), model, report=first)
    batch_size = 2 if scope == 'mmdet' else 1  # mmseg does not batch images of several sizes
    cfg = config(scope, toy_shapes, tmp_path / 'work', **{'test_dataloader.batch_size': batch_size})
    engine.test(cfg, model, report=second, compare=first / 'report.json')
    report, again = (json.loads((folder / 'report.json').read_text()) for folder in (first, second))
    assert [*report['metrics']] == kinds and len(report['images']) == 4
    assert report['is_exact'] and again['is_exact'] == (batch_size == 1)
    verdict = again['comparison']['verdict']
    assert verdict.startswith('not significantly different') and ('batches' in verdict) == (batch_size > 1)
    if scope == 'mmdet':  # no image has more than 100 boxes
        assert report['metrics']['bbox']['AP'][0] == pytest.approx(metrics['coco/bbox_mAP'], abs=5e-4)
        assert report['metrics']['segm']['AP'][0] == pytest.approx(metrics['coco/segm_mAP'], abs=5e-4)
    else:
        assert 100 * report['metrics']['regions']['mIoU'][0] == pytest.approx(metrics['mIoU'], abs=0.005)
    text = (second / 'index.html').read_text()
    assert not re.search(r'(src|href)="(?!data:)|<script', text) and text.count('<img') >= 4
    assert 'not significantly different' in text
    suspects = json.loads((second / 'suspects.json').read_text())
    assert {one['image_id'] for one in suspects['annotations']} <= {image['id'] for image in suspects['images']}


def test_mmengines_own_runner_writes_the_report_that_the_config_asks_for(toy_shapes: Path, trained: Models,
                                                                         tmp_path: Path) -> None:
    cfg = engine.prepare(config('mmseg', toy_shapes, tmp_path / 'work'))
    cfg.default_hooks.report.folder, cfg.load_from = str(tmp_path / 'report'), str(trained['mmseg'].checkpoint)
    metrics = Runner.from_cfg(cfg).test()
    report = json.loads((tmp_path / 'report/report.json').read_text())
    assert 100 * report['metrics']['regions']['mIoU'][0] == pytest.approx(metrics['mIoU'], abs=0.005)


@pytest.fixture
def perfect(toy_shapes: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Detectors predict the annotated boxes; these are options for one that is compared by boxes."""
    coco = json.loads((toy_shapes / 'instances_validation.json').read_text())
    labels = {category['id']: label for label, category in enumerate(coco['categories'])}

    def predict(self: Any, inputs: Any, samples: list[Any], rescale: bool = True) -> list[Any]:
        for sample in samples:
            labelled = [annotation for annotation in coco['annotations'] if annotation['image_id'] == sample.img_id]
            boxes = torch.tensor([annotation['bbox'] for annotation in labelled]).reshape(-1, 4).float()
            sample.pred_instances = InstanceData(
                bboxes=torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1),
                scores=torch.full((len(labelled),), 0.9),
                labels=torch.tensor([labels[annotation['category_id']] for annotation in labelled], dtype=torch.long))
        return samples

    monkeypatch.setattr(TwoStageDetector, 'predict', predict)
    return {'test_evaluator.metric': 'bbox'}


@pytest.mark.parametrize('wrap, images', [
    (lambda one: dict(one, indices=2), 2), (lambda one: dict(one, indices=[-1, 0]), 2),
    (lambda one: dict(type='RepeatDataset', times=2, dataset=dict(one, indices=[1])), 1),
    (lambda one: dict(type='ClassBalancedDataset', oversample_thr=0.9, dataset=one), 4),
    (lambda one: dict(type='ConcatDataset', datasets=[dict(one, indices=[0]), dict(one, indices=[2, 3])]), 3)])
def test_the_metric_and_the_report_count_what_was_tested(
        wrap: Callable[[dict], dict], images: int, perfect: dict, toy_shapes: Path, trained: Models, tmp_path: Path
        ) -> None:
    """Perfect predictions have AP 1, in whatever part of the images that the metric's file has."""
    cfg = config('mmdet', toy_shapes, tmp_path, **perfect)
    cfg.test_dataloader.dataset = wrap(cfg.test_dataloader.dataset)
    metrics = engine.test(cfg, trained['mmdet'].checkpoint, report=tmp_path / 'report')
    report = json.loads((tmp_path / 'report/report.json').read_text())
    assert report['metrics']['bbox']['AP'][0] == pytest.approx(1) and len(report['images']) == images
    assert metrics['coco/bbox_mAP'] == 1
    told = f'The annotation file lists {4 - images} more images. They were not tested and do not count.'
    assert (told in report['notes']) == (images < 4)


def test_a_score_that_misses_few_objects_is_refused_or_written(toy_shapes: Path, trained: Models, tmp_path: Path
                                                               ) -> None:
    """Four images are too few for a share of 0.1, but not for 1."""
    def test(scope: str, most: float, **more: Any) -> None:
        engine.test(config(scope, toy_shapes, tmp_path), trained[scope].checkpoint, at_most_missed=most, **more)

    assert 'no score threshold is sure to miss at most 10.0% of the objects' in refusal(test, 'mmdet', 0.1)
    assert 'no score threshold is sure to miss at most 0.0% of the objects' in refusal(test, 'mmdet', 0.)
    assert '--at-most-missed is 2, but must be a number from 0 to 1' in refusal(test, 'mmdet', 2)
    assert 'without --tta' in refusal(test, 'mmdet', 1., tta=True)
    test('mmdet', 1.)
    file = sorted(tmp_path.glob('test/*/thresholds.json'))[-1]
    content = json.loads(file.read_text())
    assert content['at_most_missed'] == 1 and all(0 <= one['score_thr'] <= 1 for one in content['classes'].values())
    assert content['purpose'] == 'at most missed' and content['best_f1'].keys() == content['classes'].keys()


def test_scores_are_not_chosen_for_segmentors(toy_shapes: Path, trained: Models, tmp_path: Path) -> None:
    assert '--at-most-missed is for detectors' in refusal(
        engine.test, config('mmseg', toy_shapes, tmp_path), trained['mmseg'].checkpoint, at_most_missed=0.9)


@pytest.mark.parametrize('folder, text, told', [
    ('s3://a/b', '{}', '--report s3://a/b is an address'),
    (None, '{}', 'is a part of a report: add --report FOLDER'), ('report', None, 'does not exist'),
    ('report', '{}', 'cannot be used (the report has no classes): give the report.json of a test with --report')])
def test_a_report_that_cannot_be_compared_with_is_named(folder: str | None, text: str | None, told: str, tmp_path: Path
                                                        ) -> None:
    other = tmp_path / 'report.json'
    if text:
        other.write_text('{"classes": [], "images": {}, "metrics": {}, "is_exact": true}' if folder is None else text)
    assert told in refusal(Report, folder, other)


def test_names_are_text_in_a_page() -> None:
    pixels = np.zeros((4, 4, 3), np.uint8)
    table = page.table([NAME], [[NAME], [None], [0.5], [[0.5, 0.4, 0.6]]])
    parts = [page.paragraph(NAME), page.section(NAME, NAME), table, page.pictures([(NAME, pixels)], 4),
             page.chart(NAME, NAME, NAME, {NAME: ([0, 1], [0, 1])})]
    text = page.render(NAME, parts)
    assert '<script' not in text and text.count('script') == 2 * 13 and 'alert("x")' not in text


SAMPLE = [5., 5., 25., 25., 0.9, 0]  # left, top, right, bottom, score and class
TRUTH = [dict(bbox=SAMPLE[:4], bbox_label=0, ignore_flag=0), dict(bbox=[9, 9, 40, 40], bbox_label=1, ignore_flag=0)]
BOXES = [SAMPLE, [5., 5., 25., 25., 0.5, 1]]
NAMES = ['a/1.png', 'b/1.png', '<script> & $x.png', '\N{CAT}.png', 'l' * 240 + '.png', os.fsdecode(b'\xff.png')]


def report_of(folder: Path, boxes: list[list[float]], truth: list[dict[str, Any]], names: list[str] = NAMES,
              rank: int = 0, ranks: int = 1, other: Path | None = None) -> Any:
    """Returns the report of images with the same truth and boxes, and its page. Each rank has a part of the images."""
    infos: list[dict[str, Any]] = [dict(img_path=str(folder / 'data' / name), instances=truth) for name in names]
    dataset = MagicMock(metainfo=dict(classes=('car', 'car/truck')), get_data_info=infos.__getitem__)
    dataset.__len__.return_value = len(infos)
    loop = SimpleNamespace(evaluator=SimpleNamespace(metrics=[]), dataloader=SimpleNamespace(dataset=dataset))
    report, gathered = Report(folder / 'report', other), Gathered(loop, keeps=True)
    report.begin(gathered)
    for info in infos[rank::ranks]:
        Path(info['img_path']).parent.mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (64, 48)).save(info['img_path'])
        actual = torch.tensor(boxes).reshape(-1, 6)
        sample = DetDataSample(metainfo=dict(img_path=info['img_path'], ori_shape=(48, 64)))
        sample.pred_instances = InstanceData(bboxes=actual[:, :4], scores=actual[:, 4], labels=actual[:, 5].long(),
                                             masks=torch.zeros(len(actual), 48, 64).bool())
        report.check(sample, gathered.add(sample))
    gathered.merge()
    if rank:
        return None
    report.write(gathered, False, [], 'c.py, https://a.de/x.pth?token=abc', folder, None)
    written = json.loads((folder / 'report/report.json').read_text(), parse_constant=lambda name: pytest.fail(name))
    return written, (folder / 'report/index.html').read_text()


@pytest.mark.parametrize('boxes, flags, value', [
    ([SAMPLE], [0], 1), ([], [0], 0), ([SAMPLE], [], None), ([SAMPLE], [1], None), ([], [1], None), ([], [], None),
    ([SAMPLE, [110., 110., 150., 150., 0.95, 0]], [0], 0.5), ([SAMPLE, [9., 9., 9., 9., 0.95, 0]], [0], 0.5)])
def test_odd_boxes_and_names_have_a_report(boxes: list[list[float]], flags: list[int], value: float | None,
                                           tmp_path: Path) -> None:
    """Without boxes, without objects, with crowds only, with boxes outside of the image and of no size."""
    truth = [dict(bbox=SAMPLE[:4], bbox_label=0, ignore_flag=flag, mask=[[5, 5, 25, 5, 25, 25]]) for flag in flags]
    report, page = report_of(tmp_path, boxes, truth)
    for kind, expected in (('bbox', value), ('segm', None if value is None else 0)):  # masks are empty
        estimate, low, high = report['metrics'][kind]['AP']
        assert estimate == expected and (value is None) == (low is None) and (value is None or low <= estimate <= high)
    assert {*report['images']} == {*NAMES}
    assert '<script' not in page and 'token=abc' not in page and not report['is_exact']
    suspects = json.loads((tmp_path / 'report/suspects.json').read_text())['annotations']
    assert len(suspects) == len(NAMES) * (value == 0.5)
    assert all({'id', 'image_id', 'category_id', 'bbox', 'area', 'iscrowd'} <= suspect.keys() for suspect in suspects)
    assert any('Too few images for intervals' in note for note in report_of(tmp_path, boxes, [], NAMES[:1])[0]['notes'])


@pytest.mark.parametrize('box, told', [
    *(([*SAMPLE[:4], score, 0], f'the model predicts scores from {least} to {most} for') for score, least, most in (
        (1.5, 0.9, 1.5), (-0.25, -0.25, 0.9))),
    ([math.nan, *SAMPLE[1:]], 'the model predicts boxes that are no numbers for'),
    ([*SAMPLE[:4], math.nan, 0], 'the model predicts boxes that are no numbers for')])
def test_boxes_that_cannot_be_are_a_sentence(box: list[float], told: str, tmp_path: Path) -> None:
    assert told in refusal(report_of, tmp_path, [SAMPLE, box], [])


def in_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    report_of(folder, BOXES, TRUTH, NAMES[:5], rank, 2)
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_have_the_report_of_one(tmp_path: Path) -> None:
    """Also of an odd number of images."""
    (tmp_path / 'both').mkdir()
    expected, _ = report_of(tmp_path / 'one', BOXES, TRUTH, NAMES[:5])
    mp.spawn(in_rank, (tmp_path / 'both',), nprocs=2)
    assert json.loads((tmp_path / 'both/report/report.json').read_text()) == expected
    assert 0 < expected['metrics']['bbox']['AP'][0] < 1 and len(expected['images']) == 5


def test_images_have_names_that_do_not_depend_on_the_place_of_the_data() -> None:
    assert short_names(['/a/val/x/1.png', '/a/val/y/1.png']) == ['x/1.png', 'y/1.png']
    assert short_names(['s3://a/1.png', 's3://a/2.png']) == ['1.png', '2.png']
    assert short_names(['/a/1.png']) == ['1.png']


BOX_REPORT = dict(classes=['a', 'b'], is_exact=True, metrics=dict(bbox={}, segm={}), images={
    f'{name}.png': dict(objects=[1, 0], truth=7, bbox=[[0, 0.9, 1023, 0], [1, 0.5, 0, 1]], segm=[[0, 0.9, 3, 0]],
                        found=[[0, 0.9]], wrong=1) for name in 'cdefgh'})
MAP_REPORT = dict(classes=['a', 'b'], is_exact=True, metrics=dict(regions={}, boundaries={}), images={
    f'{name}.png': dict(objects=[4, 2], truth=7, regions=[[3, 1], [5, 3]], boundaries=[[1, 0], [2, 2]], wrong=0.3)
    for name in 'cdefgh'})
VALUES = [None, True, -1, 2, 1.5, 10 ** 30, math.nan, math.inf, 'a', '', [], [1], [[]], {}, dict(a=1), [[0, 0.5, 1]]]


def places(value: Any) -> list[tuple[Any, Any]]:
    """All pairs of a container and a key in nested dicts and lists."""
    keys = [*value] if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [pair for key in keys for pair in places(value[key])]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.booleans(), st.integers(0, 10 ** 6), st.sampled_from([*VALUES, 'gone']))
def test_a_report_with_any_other_value_is_refused_or_compared(tmp_path: Path, is_boxes: bool, place: int, value: Any
                                                              ) -> None:
    own = BOX_REPORT if is_boxes else MAP_REPORT
    other = copy.deepcopy(own)
    container, key = (actual := places(other))[place % len(actual)]
    if value == 'gone':
        del container[key]
    else:
        container[key] = value
    (tmp_path / 'other.json').write_text(json.dumps(other))
    try:
        read = Report(tmp_path, tmp_path / 'other.json').other
    except UserError as error:
        assert f'{tmp_path}/other.json cannot be used (' in str(error)
        assert str(error).endswith('): give the report.json of a test with --report.')
        return
    try:
        compare(own, read)
    except UserError as error:
        assert 'compare with a test on the same data' in str(error)


@pytest.mark.parametrize('own', [BOX_REPORT, MAP_REPORT])
def test_a_report_that_is_right_can_be_compared_with(own: dict, tmp_path: Path) -> None:
    (tmp_path / 'other.json').write_text(json.dumps(own))
    read = Report(tmp_path, tmp_path / 'other.json').other
    assert compare(own, read)['images'] == len(own['images']) == len(read['images'])


@pytest.mark.parametrize('other, told', [
    (dict(BOX_REPORT, classes=['car', 'car/truck'], images={}), 'the report to compare with has no image of this test'),
    (dict(MAP_REPORT, classes=['car', 'car/truck'], images={
        name: MAP_REPORT['images']['c.png'] for name in NAMES}), 'is for a segmentor, but this test is not')])
def test_a_report_of_other_data_is_refused_before_the_end(other: dict, told: str, tmp_path: Path) -> None:
    (tmp_path / 'other.json').write_text(json.dumps(other))
    assert told in refusal(report_of, tmp_path, [SAMPLE], [], other=tmp_path / 'other.json')
    assert not (tmp_path / 'report/report.json').exists()
