"""The metric computes what mmdet's CocoMetric and pycocotools compute, to the last digit, whatever ids files have."""
import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmdet.evaluation import CocoMetric as MMDetCocoMetric
from pycocotools import mask as rle

from openmmlab_tools.evaluation.metrics import CocoMetric
from openmmlab_tools.registry import METRICS
from tests.helpers import refusal
from tests.openmmlab_tools.evaluation.conftest import SIDE, compute, evaluated, predict

# Ids as programs write them: from 0, negative, huge, whole floats, text of numbers and of words.
WAYS: dict[str, Callable[[int], Any]] = {
    'from 0': lambda index: index - 1, 'negative': lambda index: 7 * index - 999,
    'huge': lambda index: (1 << 60) + index, 'floats': float,
    'text from 0': lambda index: str(index - 1), 'words': lambda index: f'frame {index:03}',
    'from 1': lambda index: index}


def rewrite(coco: dict, samples: list, image: str, category: str, annotation: str) -> tuple[dict, list]:
    """Writes the ids of a file, and of the images of samples, in other ways."""
    coco, samples = copy.deepcopy((coco, samples))
    for one in coco['images']:
        one['id'] = WAYS[image](one['id'])
    for one in coco['categories']:
        one['id'] = WAYS[category](one['id'])
    for one in coco['annotations']:
        one.update(id=WAYS[annotation](one['id']), image_id=WAYS[image](one['image_id']),
                   category_id=WAYS[category](one['category_id']))
    for sample in samples:
        sample['img_id'] = WAYS[image](sample['img_id'])
    return coco, samples


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 99), st.sampled_from((.3, 1.)), st.tuples(*3 * [st.sampled_from([*WAYS])]), st.booleans(),
       st.sampled_from((
    dict(metric='bbox'), dict(metric=['bbox', 'segm'], classwise=True), dict(metric='segm', proposal_nums=(3, 5, 10)),
    dict(metric='bbox', iou_thrs=[.3, .5, .75]), dict(metric='bbox', metric_items=['mAP_75', 'AR_m@1000']),
    dict(metric='bbox', proposal_nums=(100, 3, 1)), dict(metric='segm', proposal_nums=(1, 2, 100), iou_thrs=.5),
    dict(metric='proposal'), dict(metric='bbox', sort_categories=True, use_mp_eval=True))))
def test_metrics_are_those_of_mmdet_for_any_ids(
        annotations: Path, tmp_path: Path, seed: int, share: float, ways: tuple[str, str, str], has_areas: bool,
        kwargs: dict) -> None:
    coco, samples = json.loads(annotations.read_text()), predict(annotations, seed, share)
    if seed % 2:
        for annotation in coco['annotations'][::7]:
            annotation['ignore'] = 1
        samples[3] = predict(annotations, share=0)[3]  # no prediction
    coco['images'].sort(key=lambda image: image['id'] * 7 % 11)  # as in COCO's files, ids are not sorted
    coco['categories'].append(dict(id=9, name='not a class'))
    coco['annotations'][5]['category_id'] = 9
    (tmp_path / 'plain.json').write_text(json.dumps(coco))
    arrays = {key: np.atleast_1d(value) if key == 'iou_thrs' else value for key, value in kwargs.items()}
    expected = compute(MMDetCocoMetric, tmp_path / 'plain.json', samples, **arrays)
    if 100 not in kwargs.get('proposal_nums', [100]):  # mmdet has none
        assert expected.pop(f'coco/{kwargs["metric"]}_mAP') == -1
    odd, samples = rewrite(coco, samples, *ways)
    for annotation in odd['annotations'] if not has_areas else ():
        if 'bbox' in kwargs['metric'] or annotation['iscrowd']:  # the fixture rasterizes polygons
            annotation['area'] = None
    (tmp_path / 'odd.json').write_text(json.dumps(odd))
    actual = compute(CocoMetric, tmp_path / 'odd.json', samples, **kwargs)
    if 100 not in kwargs.get('proposal_nums', [100]):
        assert 0 < actual.pop(f'coco/{kwargs["metric"]}_mAP') <= 1
    assert list(actual) == list(expected) != []
    np.testing.assert_array_equal(list(actual.values()), list(expected.values()))


@pytest.mark.parametrize('way', WAYS)
def test_files_of_predictions_have_the_ids_of_the_annotations(way: str, annotations: Path, tmp_path: Path) -> None:
    coco, samples = rewrite(json.loads(annotations.read_text()), predict(annotations), way, way, way)
    (tmp_path / 'odd.json').write_text(json.dumps(coco))
    prefix = str(tmp_path / 'out/found')
    assert compute(CocoMetric, tmp_path / 'odd.json', samples, metric=['bbox', 'segm'], format_only=True,
                   outfile_prefix=prefix) == {}
    expected = [(one['img_id'], coco['categories'][label]['id'], score) for one in samples for label, score in zip(
        one['pred_instances']['labels'].tolist(), one['pred_instances']['scores'].tolist(), strict=True)]
    for kind in ('bbox', 'segm'):
        written = json.loads((tmp_path / f'out/found.{kind}.json').read_text())
        assert [(one['image_id'], one['category_id'], one['score']) for one in written] == expected
    assert {type(one['image_id']) for one in written} == {type(WAYS[way](1))}
    assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == ['found.bbox.json', 'found.segm.json']


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('metric', ['bbox', ['bbox', 'segm']])
def test_annotations_of_samples_are_counted_without_a_file(way: str, metric: Any, annotations: Path, tmp_path: Path
                                                           ) -> None:
    samples = predict(annotations)
    for sample in samples:
        actual = sample['pred_instances']
        sample['instances'] = [dict(bbox=box, bbox_label=label, mask=mask, ignore_flag=index % 5 == 1)
                               for index, (box, label, mask) in enumerate(zip(
                                actual['bboxes'][::2].tolist(), actual['labels'][::2].tolist(), actual['masks'][::2],
                                strict=True))]
    expected = compute(MMDetCocoMetric, None, samples, metric=metric)
    _, odd = rewrite(json.loads(annotations.read_text()), samples, way, way, way)
    assert compute(CocoMetric, None, odd, metric=metric, outfile_prefix=f'{tmp_path}/found') == expected != {}
    written = json.loads((tmp_path / 'found.gt.json').read_text())
    assert [image['id'] for image in written['images']] == [WAYS[way](index) for index in range(1, 11)]


def test_masks_of_a_head_are_encoded(annotations: Path) -> None:
    """Detectors predict them as `(N, H, W)` bool, also none."""
    samples = predict(annotations)
    expected = compute(CocoMetric, annotations, samples, metric='segm')
    for sample in samples:
        actual = sample['pred_instances']
        actual['masks'] = actual['scores'].new_tensor(rle.decode(actual['masks']).transpose(2, 0, 1) if len(
            actual['masks']) else np.zeros((0, 300, 300))).bool()
    assert compute(CocoMetric, annotations, samples, metric='segm') == expected


def test_mAP_is_of_the_largest_number_unless_100_is_one(annotations: Path, tmp_path: Path) -> None:
    """A perfect prediction of 150 objects in an image has 1, where mmdet has 0.663."""
    boxes = [[float(10 * x), float(10 * y), 8., 8.] for x in range(15) for y in range(10)]
    coco = dict(json.loads(annotations.read_text()), annotations=[
        dict(id=index, image_id=1, category_id=5, bbox=box, area=64., iscrowd=0) for index, box in enumerate(boxes, 1)])
    (tmp_path / 'many.json').write_text(json.dumps(coco))
    sample = predict(annotations, share=0)[0]
    sample['pred_instances'] = dict(
        bboxes=sample['pred_instances']['bboxes'].new_tensor([[x, y, x + w, y + h] for x, y, w, h in boxes]),
        scores=sample['pred_instances']['scores'].new_ones(150),
        labels=sample['pred_instances']['labels'].new_zeros(150))
    values = [compute(kind, tmp_path / 'many.json', [sample], **more)['coco/bbox_mAP'] for kind, more in (
        (MMDetCocoMetric, {}), (CocoMetric, {}), (CocoMetric, dict(proposal_nums=(1, 10, 200))))]
    assert values == [0.663, 0.663, 1.]


@pytest.mark.parametrize('kwargs, fault', [
    (dict(metric='segm'), 'the metric is segm, but the model predicts no masks: set metric to bbox.'),
    (dict(metric='box'), "metric of CocoMetric has 'box': choose from bbox, segm, proposal."),
    (dict(metric_items=['AP']), "metric_items of CocoMetric has 'AP': choose from mAP, mAP_50, mAP_75, mAP_s, mAP_m, "
     'mAP_l, AR@100, AR@300, AR@1000, AR_s@1000, AR_m@1000, AR_l@1000.'),
    (dict(format_only=True), 'CocoMetric has format_only, but no outfile_prefix: set the path that files begin with.')])
def test_arguments_that_cannot_be_are_a_sentence(kwargs: dict, fault: str, annotations: Path) -> None:
    samples = predict(annotations)
    for sample in samples:
        del sample['pred_instances']['masks']
    assert refusal(compute, CocoMetric, annotations, samples, **kwargs) == fault


def test_predictions_that_do_not_fit_are_a_sentence(annotations: Path) -> None:
    assert METRICS.get('openmmlab_tools.FastCocoMetric') is CocoMetric  # the name in configs of earlier releases
    empty = compute(CocoMetric, annotations, predict(annotations, share=0))
    assert {*empty.values()} == {0.} and compute(MMDetCocoMetric, annotations, predict(annotations, share=0)) == {}
    samples = predict(annotations)
    samples[2]['pred_instances']['labels'][0] = 3
    assert refusal(compute, CocoMetric, annotations, samples) == (
        'the model predicts class 3, but the annotations have 3 classes of the dataset: set num_classes of the '
        "model's head to 3.")
    samples[1]['pred_instances']['scores'][0] = np.nan
    assert refusal(compute, CocoMetric, annotations, samples) == (
        'the model predicts scores that are no numbers (NaN) for the image with id 2: its training has diverged; use '
        'an earlier checkpoint.')
    samples[1] = predict(annotations, share=0)[1]
    samples[2]['img_id'] = 'x'
    assert refusal(compute, CocoMetric, annotations, samples) == (
        f"the metric has predictions for the image with id 'x', but its ann_file {annotations} has no such image: set "
        'ann_file to the annotations of the dataset.')


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(1, 10), min_size=1), st.integers(0, 9), st.sampled_from([*WAYS]), st.sampled_from((
    dict(metric=['bbox', 'segm'], classwise=True), dict(metric='proposal'))))
def test_only_images_that_were_tested_count_and_each_of_them_once(
        annotations: Path, tmp_path: Path, tested: set[int], again: int, way: str, kwargs: dict) -> None:
    """A dataset may have `indices`, leave images out by `filter_cfg`, have a file of its own, or repeat images."""
    coco, samples = json.loads(annotations.read_text()), predict(annotations, again)
    samples = [sample for sample in samples if sample['img_id'] in tested]
    (tmp_path / 'part.json').write_text(json.dumps(dict(
        coco, images=[image for image in coco['images'] if image['id'] in tested],
        annotations=[annotation for annotation in coco['annotations'] if annotation['image_id'] in tested])))
    expected = compute(MMDetCocoMetric, tmp_path / 'part.json', samples, **kwargs)
    coco, samples = rewrite(coco, samples, way, way, way)
    (tmp_path / 'odd.json').write_text(json.dumps(coco))
    metric = evaluated(CocoMetric, tmp_path / 'odd.json', [*samples, *samples[again:], *samples[:again]], **kwargs)
    np.testing.assert_array_equal([metric.values[name] for name in expected], [*expected.values()])
    assert metric.untested == 10 - len(tested)


@pytest.mark.parametrize('with_masks', [True, False])
@pytest.mark.parametrize('change', [
    lambda area: 1., lambda area: .02, lambda area: area / SIDE ** 2, lambda area: area / 16, lambda area: 9 * area,
    lambda area: SIDE ** 2])
def test_an_area_that_cannot_be_right_is_not_used(change: Callable[[float], float], with_masks: bool,
                                                  annotations: Path, tmp_path: Path, log: list) -> None:
    coco, samples = json.loads(annotations.read_text()), predict(annotations)
    for annotation in coco['annotations']:
        if not with_masks:
            del annotation['segmentation']
    (tmp_path / 'right.json').write_text(json.dumps(coco))
    for annotation in coco['annotations']:
        annotation['area'] = change(annotation['area'])
    (tmp_path / 'wrong.json').write_text(json.dumps(coco))
    metric = ['bbox', 'segm'] if with_masks else 'bbox'
    expected, actual = (compute(CocoMetric, tmp_path / f'{name}.json', samples, metric=metric)
                        for name in ('right', 'wrong'))
    assert len({expected[f'coco/bbox_mAP_{size}'] for size in 'sml'}) == 3 and actual == expected
    assert [level for level, text in log if 'has an impossible area in ' in text] == ['WARNING']


@pytest.mark.parametrize('limits', [[300], (2, 5), (1, 10, 200), (100, 1, 10), (1, 2, 3, 4, 100), (7, 7)])
def test_names_have_the_numbers_of_boxes(limits: Sequence[int], annotations: Path, log: list) -> None:
    """Lists of any length; pycocotools computes each of them among three."""
    ordered, samples = sorted({*limits}), predict(annotations)
    names = [*(f'AR@{limit}' for limit in ordered), *(f'AR_{size}@{ordered[-1]}' for size in 'sml')]
    actual = compute(CocoMetric, annotations, samples, metric=['bbox', 'proposal'], proposal_nums=limits,
                     metric_items=names)
    assert list(actual) == [*(f'coco/bbox_{name}' for name in names), *(f'coco/{name}' for name in names)]
    assert all(name in next(text for _, text in log if text.startswith('bbox: ')) for name in names)
    for limit in ordered:
        three = dict(metric='bbox', proposal_nums=(limit, 1001, 1002), metric_items=['AR@100'])
        assert compute(MMDetCocoMetric, annotations, samples, **three) == {
            'coco/bbox_AR@100': actual[f'coco/bbox_AR@{limit}']}
    most = dict(metric='proposal', proposal_nums=(ordered[-1] - 1, ordered[-1] - 1, ordered[-1]))
    reference = [*compute(MMDetCocoMetric, annotations, samples, **most).values()]
    assert reference[-3:] == [actual[f'coco/{name}'] for name in names[-3:]]
    usual = compute(CocoMetric, annotations, samples, proposal_nums=limits)
    assert 0 < usual['coco/bbox_mAP'] <= 1 and usual['coco/bbox_mAP_50'] > 0


@pytest.mark.parametrize('kwargs, told', [
    (dict(metric_items=['AR@1000'], proposal_nums=(1, 10, 200)), "has 'AR@1000': choose from mAP, mAP_50, mAP_75, "
     'mAP_s, mAP_m, mAP_l, AR@1, AR@10, AR@200, AR_s@200, AR_m@200, AR_l@200.'),
    *((dict(proposal_nums=given), f'proposal_nums of CocoMetric is {given!r}, but must be a list of numbers')
      for given in ((), 100, (0, 1), (1.5, 2), 'abc', None))])
def test_numbers_of_boxes_that_cannot_be_are_a_sentence(kwargs: dict, told: str) -> None:
    assert told in refusal(CocoMetric, **kwargs)


def test_images_of_another_split_are_a_sentence(annotations: Path) -> None:
    """Ids begin anew in each file, so that the same id may mean another image."""
    samples = [dict(one, img_path=f'data/{one["img_id"]}.png') for one in predict(annotations)]
    assert compute(CocoMetric, annotations, samples) == compute(CocoMetric, annotations, predict(annotations))
    others = [dict(sample, img_path=f'data/other/{sample["img_id"]}.png') for sample in samples]
    assert 'two images in the test have the id 1: data/1.png and data/other/1.png. Test' in refusal(
        compute, CocoMetric, annotations, samples + others)
    samples[3]['img_path'] = 'data/x.png'
    assert f'the image with id 4 is data/x.png in the test, but 4.png in {annotations}, the ann_file of the' in refusal(
        compute, CocoMetric, annotations, samples)
