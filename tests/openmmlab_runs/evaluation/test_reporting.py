"""A test of a detector and of a segmentor writes a report, which another can be compared with, and scores."""
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmengine.config import Config

from openmmlab_runs import engine
from openmmlab_runs.evaluation import page
from openmmlab_runs.evaluation.reporting import EvaluationReportHook, short_names
from tests.conftest import MASK_RCNN, UPERNET, Models, refusal, toy_overrides

NAME = '<script>alert("x")</script> & $title'


def config(scope: str, toy_shapes: Path, folder: Path, **more: object) -> Config:
    options: dict[str, Any] = dict(more)
    if scope == 'mmdet':
        # Weights of two iterations find nothing for sure.
        options.update({'test_evaluator.ann_file': f'{toy_shapes}/instances_validation.json',
                        'model.test_cfg.rcnn.score_thr': 0.})
    return engine.load_config(MASK_RCNN if scope == 'mmdet' else UPERNET, toy_overrides(toy_shapes, **options),
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
    assert verdict.startswith('not told apart') and ('batches' in verdict) == (batch_size > 1)
    if scope == 'mmdet':  # no image has more than 100 boxes
        assert report['metrics']['bbox']['AP'][0] == pytest.approx(metrics['coco/bbox_mAP'], abs=5e-4)
        assert report['metrics']['segm']['AP'][0] == pytest.approx(metrics['coco/segm_mAP'], abs=5e-4)
    else:
        assert 100 * report['metrics']['regions']['mIoU'][0] == pytest.approx(metrics['mIoU'], abs=0.005)
    text = (second / 'index.html').read_text()
    assert not re.search(r'(src|href)="(?!data:)|<script', text) and text.count('<img') >= 4
    assert 'not told apart' in text
    suspects = json.loads((second / 'suspects.json').read_text())
    assert {one['image_id'] for one in suspects['annotations']} <= {one['id'] for one in suspects['images']}


def test_a_score_that_misses_few_objects_is_refused_or_written(toy_shapes: Path, trained: Models, tmp_path: Path
                                                               ) -> None:
    """Four images are too few for a share of 0.1, but not for 1."""
    def test(scope: str, most: float, **more: Any) -> None:
        engine.test(config(scope, toy_shapes, tmp_path), trained[scope].checkpoint, at_most_missed=most, **more)

    assert 'no score is known to miss at most 10.0% of the objects' in refusal(test, 'mmdet', 0.1)
    assert '--at-most-missed is 2, but must be a number from 0 to 1' in refusal(test, 'mmdet', 2)
    assert '--at-most-missed is for detectors' in refusal(test, 'mmseg', 0.5)
    assert 'without --tta' in refusal(test, 'mmdet', 1., tta=True)
    test('mmdet', 1.)
    file = sorted(tmp_path.glob('test/*/thresholds.json'))[-1]
    content = json.loads(file.read_text())
    assert content['at_most_missed'] == 1 and all(0 <= one['score_thr'] <= 1 for one in content['classes'].values())


@pytest.mark.parametrize('folder, text, told', [
    (None, '{}', 'is a part of a report: add --report FOLDER'), ('report', None, 'does not exist'),
    ('report', '{}', "cannot be used ('classes'): give the report.json of a test with --report")])
def test_a_report_that_cannot_be_compared_with_is_named(folder: str | None, text: str | None, told: str, tmp_path: Path
                                                        ) -> None:
    other = tmp_path / 'report.json'
    if text:
        other.write_text('{"classes": [], "images": {}, "metrics": {}, "is_exact": true}' if folder is None else text)
    assert told in refusal(EvaluationReportHook, folder, other)


def test_names_are_text_in_a_page() -> None:
    pixels = np.zeros((4, 4, 3), np.uint8)
    table = page.table([NAME], [[NAME], [None], [0.5], [[0.5, 0.4, 0.6]]])
    parts = [page.paragraph(NAME), page.section(NAME, NAME), table, page.pictures([(NAME, pixels)], 4),
             page.chart(NAME, NAME, NAME, {NAME: ([0, 1], [0, 1])})]
    text = page.render(NAME, parts)
    assert '<script' not in text and text.count('script') == 2 * 13 and 'alert("x")' not in text


def test_images_have_names_that_do_not_depend_on_the_place_of_the_data() -> None:
    assert short_names(['/a/val/x/1.png', '/a/val/y/1.png']) == ['x/1.png', 'y/1.png']
    assert short_names(['s3://a/1.png', 's3://a/2.png']) == ['1.png', '2.png']
    assert short_names(['/a/1.png']) == ['1.png']
