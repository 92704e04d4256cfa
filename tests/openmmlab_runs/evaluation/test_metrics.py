"""FastCocoMetric computes what mmdet's CocoMetric computes, to the last digit, whatever ids the files have."""
import copy
import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmdet.evaluation import CocoMetric

from openmmlab_runs.evaluation.metrics import FastCocoMetric
from tests.conftest import refusal
from tests.openmmlab_runs.evaluation.conftest import compute, predict

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


def only(is_installed: bool) -> Any:
    """Hides faster-coco-eval unless it is to be used."""
    return patch('openmmlab_runs.evaluation.metrics.find_spec', lambda name: is_installed and find_spec(name))


INSTALLED = pytest.mark.parametrize('is_installed', [True, False], ids=['faster-coco-eval', 'pycocotools'])


@INSTALLED
def test_boxes_and_masks_have_headings(is_installed: bool, annotations: Path, capsys: pytest.CaptureFixture) -> None:
    with only(is_installed):
        compute(FastCocoMetric, annotations, predict(annotations), metric=['bbox', 'segm'])
    heads = re.findall('^(boxes:|masks:| Average)', capsys.readouterr().out, re.MULTILINE)
    assert heads == ['boxes:', *12 * [' Average'], 'masks:', *12 * [' Average']]


@INSTALLED
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 99), st.sampled_from((.3, 1.)), st.tuples(*3 * [st.sampled_from([*WAYS])]), st.sampled_from((
    dict(metric='bbox'), dict(metric=['bbox', 'segm'], classwise=True), dict(metric='segm', proposal_nums=(3, 5, 10)),
    dict(metric='bbox', iou_thrs=[.3, .5, .75]), dict(metric='bbox', metric_items=['mAP_75', 'AR_m@1000']),
    dict(metric='bbox', proposal_nums=(100, 3, 1)),
    dict(metric='proposal'), dict(metric='bbox', sort_categories=True))))
def test_metrics_do_not_depend_on_ids(is_installed: bool, annotations: Path, tmp_path: Path, seed: int, share: float,
                                      ways: tuple[str, str, str], kwargs: dict) -> None:
    coco, results = json.loads(annotations.read_text()), predict(annotations, seed, share)
    if seed % 2:
        for one in coco['annotations'][::7]:
            one['ignore'] = 1
        results[3] = (results[3][0], dict(predict(annotations, share=0)[3][1]))  # no prediction
    (tmp_path / 'plain.json').write_text(json.dumps(coco))
    if ways[1] == 'negative':  # the order of categories by their ids is another one
        kwargs = {key: value for key, value in kwargs.items() if key != 'sort_categories'}
    arrays = {key: np.array(value) if key == 'iou_thrs' else value for key, value in kwargs.items()}
    expected = compute(CocoMetric, tmp_path / 'plain.json', results, **arrays)
    odd, results = rewrite(coco, results, *ways)
    (tmp_path / 'odd.json').write_text(json.dumps(odd))
    with only(is_installed):
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
    assert refusal(compute, FastCocoMetric, annotations, results, metric='segm') == (
        'the metric is segm, but the model predicts no masks: set metric to bbox.')
    results[2][1]['img_id'] = 'x'
    assert refusal(compute, FastCocoMetric, annotations, results) == (
        f"the metric has predictions for the image with id 'x', but its ann_file {annotations} has no such image: set "
        'ann_file to the annotations of the dataset.')
