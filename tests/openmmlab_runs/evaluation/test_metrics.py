"""FastCocoMetric computes what mmdet's CocoMetric computes, to the last digit, whatever ids the files have."""
import copy
import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmdet.evaluation import CocoMetric
from pycocotools import mask as rle

from openmmlab_runs.errors import UserError
from openmmlab_runs.evaluation.metrics import FastCocoMetric
from tests.conftest import refusal

CLASSES = ('cat', 'dog', 'emu')
SIDE = 300


@pytest.fixture(scope='module')
def annotations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Boxes and masks of all area ranges, crowds, an image without an object, and a class without one."""
    generator = np.random.default_rng(0)
    boxes = np.rint(generator.uniform([0, 0, 4, 4], [150, 150, 140, 140], (60, 4))).tolist()
    objects = [dict(id=index + 1, image_id=1 + index % 9, category_id=5 + index % 2, bbox=[x, y, w, h], area=w * h,
                    iscrowd=int(index % 17 == 0), segmentation=[[x, y, x + w, y, x + w, y + h, x, y + h]])
               for index, (x, y, w, h) in enumerate(boxes)]
    for one in objects:
        if one['iscrowd']:
            one['segmentation'] = rle.frPyObjects(one['segmentation'], SIDE, SIDE)[0]
            one['segmentation']['counts'] = one['segmentation']['counts'].decode()
    path = tmp_path_factory.mktemp('coco') / 'annotations.json'
    path.write_text(json.dumps(dict(
        images=[dict(id=index, width=SIDE, height=SIDE, file_name=f'{index}.png') for index in range(1, 11)],
        categories=[dict(id=5 + index, name=name) for index, name in enumerate(CLASSES)], annotations=objects)))
    return path


def predict(annotations: Path, seed: int = 0, share: float = .9) -> list[tuple[dict, dict]]:
    """The objects, each twice and shifted a little, with random scores and some wrong classes."""
    generator = np.random.default_rng(seed)
    coco = json.loads(annotations.read_text())
    results = []
    for image in coco['images']:
        own = [one for one in coco['annotations'] if one['image_id'] == image['id']] * 2
        own = [one for one in own if generator.random() < share]
        moved = np.array([one['bbox'] for one in own]).reshape(-1, 4) + generator.normal(0, 2, (len(own), 4))
        boxes = np.concatenate([moved[:, :2], moved[:, :2] + moved[:, 2:].clip(1)], axis=1).clip(0, SIDE)
        masks = [rle.frPyObjects([[a, b, c, b, c, d, a, d]], SIDE, SIDE)[0] for a, b, c, d in boxes]
        labels = [one['category_id'] - 5 if generator.random() < .9 else 2 for one in own]
        results.append((dict(width=SIDE, height=SIDE, img_id=image['id']), dict(
            img_id=image['id'], bboxes=boxes.astype(np.float32), masks=masks, labels=np.array(labels, int),
            scores=generator.random(len(own)).astype(np.float32))))
    return results


def compute(kind: type[CocoMetric], annotations: Path | None, results: list, **kwargs: Any) -> dict[str, float]:
    metric = kind(ann_file=annotations and str(annotations), **kwargs)
    metric.dataset_meta = dict(classes=CLASSES)
    return metric.compute_metrics(copy.deepcopy(results))


# Ids as programs write them: from 0, negative, huge, whole floats, text of numbers and of words.
WAYS: dict[str, Callable[[int], Any]] = {
    'from 0': lambda index: index - 1, 'negative': lambda index: -7 * index, 'huge': lambda index: (1 << 60) + index,
    'floats': float, 'text from 0': lambda index: str(index - 1), 'words': lambda index: f'frame {index:03}',
    'from 1': lambda index: index}


def rewrite(coco: dict, results: list, image: str, category: str, annotation: str) -> tuple[dict, list]:
    """Writes the ids of a file, and of the images of results, in other ways."""
    coco, results = copy.deepcopy((coco, results))
    for one in coco['images']:
        one['id'] = WAYS[image](one['id'])
    for one in coco['categories']:
        one['id'] = WAYS[category](one['id'])
    for one in coco['annotations']:
        one.update(id=WAYS[annotation](one['id']), image_id=WAYS[image](one['image_id']),
                   category_id=WAYS[category](one['category_id']))
    for found in results:
        for part in found:
            part['img_id'] = WAYS[image](part['img_id'])
    return coco, results


@pytest.mark.parametrize('is_installed', [True, False])
def test_boxes_and_masks_have_headings(is_installed: bool, annotations: Path, monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr('openmmlab_runs.evaluation.metrics.find_spec',
                        lambda name: is_installed and find_spec(name))
    compute(FastCocoMetric, annotations, predict(annotations), metric=['bbox', 'segm'])
    heads = re.findall('^(boxes:|masks:| Average)', capsys.readouterr().out, re.MULTILINE)
    assert heads == ['boxes:', *12 * [' Average'], 'masks:', *12 * [' Average']]


@pytest.mark.parametrize('is_installed', [True, False], ids=['faster-coco-eval', 'pycocotools'])
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 99), st.sampled_from((.3, 1.)), st.tuples(*3 * [st.sampled_from([*WAYS])]), st.sampled_from((
    dict(metric='bbox'), dict(metric=['bbox', 'segm'], classwise=True), dict(metric='segm', proposal_nums=(3, 5, 10)),
    dict(metric='bbox', iou_thrs=[.3, .5, .75]), dict(metric='bbox', metric_items=['mAP_75', 'AR_m@1000']),
    dict(metric='bbox', proposal_nums=(100, 3, 1)),
    dict(metric='proposal'), dict(metric='bbox', sort_categories=True))))
def test_metrics_do_not_depend_on_ids(
        is_installed: bool, annotations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, share: float,
        ways: tuple[str, str, str], kwargs: dict) -> None:
    coco, results = json.loads(annotations.read_text()), predict(annotations, seed, share)
    if seed % 2:
        for one in coco['annotations'][::7]:
            one['ignore'] = 1
        results[3] = (results[3][0], dict(predict(annotations, share=0)[3][1]))  # no prediction
    plain = tmp_path / 'plain.json'
    plain.write_text(json.dumps(coco))
    if ways[1] == 'negative':  # the order of categories by their ids is another one
        kwargs = {key: value for key, value in kwargs.items() if key != 'sort_categories'}
    arrays = {key: np.array(value) if key == 'iou_thrs' else value for key, value in kwargs.items()}
    expected = compute(CocoMetric, plain, results, **arrays)
    odd, results = rewrite(coco, results, *ways)
    (tmp_path / 'odd.json').write_text(json.dumps(odd))
    with monkeypatch.context() as patched:
        if not is_installed:
            patched.setattr('openmmlab_runs.evaluation.metrics.find_spec', lambda name: None)
        found = compute(FastCocoMetric, tmp_path / 'odd.json', results, **kwargs)
    assert list(found) == list(expected) != []
    np.testing.assert_array_equal(list(found.values()), list(expected.values()))


@pytest.mark.parametrize('way', WAYS)
def test_files_of_predictions_have_the_ids_of_the_annotations(way: str, annotations: Path, tmp_path: Path) -> None:
    coco, results = rewrite(json.loads(annotations.read_text()), predict(annotations), way, way, way)
    (tmp_path / 'odd.json').write_text(json.dumps(coco))
    prefix = str(tmp_path / 'out/found')
    assert compute(FastCocoMetric, tmp_path / 'odd.json', results, metric=['bbox', 'segm'], format_only=True,
                   outfile_prefix=prefix) == {}
    expected = [(found['img_id'], coco['categories'][label]['id'], float(score)) for _, found in results
                for label, score in zip(found['labels'], found['scores'], strict=True)]
    for kind in ('bbox', 'segm'):
        written = json.loads((tmp_path / f'out/found.{kind}.json').read_text())
        assert [(one['image_id'], one['category_id'], one['score']) for one in written] == expected
    assert {type(one['image_id']) for one in written} == {type(WAYS[way](1))}
    assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == ['found.bbox.json', 'found.segm.json']
    # Without a file of annotations, those of the samples are counted.
    results = predict(annotations)
    for true, found in results:
        true['anns'] = [dict(bbox=box.tolist(), bbox_label=int(label)) for box, label in zip(
            found['bboxes'][::2], found['labels'][::2], strict=True)]
    expected = compute(CocoMetric, None, results)
    _, odd = rewrite(json.loads(annotations.read_text()), results, way, way, way)
    assert compute(FastCocoMetric, None, odd, outfile_prefix=prefix) == expected != {}
    written = json.loads(Path(f'{prefix}.gt.json').read_text())
    assert [one['id'] for one in written['images']] == [WAYS[way](index) for index in range(1, 11)]


def test_predictions_that_do_not_fit_are_a_sentence(annotations: Path) -> None:
    results = predict(annotations, share=0)
    assert compute(FastCocoMetric, annotations, results) == compute(CocoMetric, annotations, results) == {}
    results = predict(annotations)
    for _, one in results:
        del one['masks']
    assert refusal(compute, FastCocoMetric, annotations, results, error=UserError, metric='segm') == (
        'the metric is segm, but the model predicts no masks: set metric to bbox.')
    results[2][1]['img_id'] = 'x'
    assert refusal(compute, FastCocoMetric, annotations, results, error=UserError) == (
        f"the metric has predictions for the image with id 'x', but its ann_file {annotations} has no such image: set "
        'ann_file to the annotations of the dataset.')
