"""The checks of reports find damaged labels where predictions are those of a perfect model."""
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lab import simulated_reports
from openmmlab_tools.evaluation.average_precision import box_metrics


@pytest.mark.parametrize('names', [['cat'], ['cat', 'dog']])
def test_damaged_boxes_are_found(names: list[str], run_tool: Callable[..., str], tmp_path: Path,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    """Makes 200 labels: 10 are damaged, and there are no other suspects."""
    objects = [dict(id=number, image_id=number % 20, category_id=number % len(names), iscrowd=0,
                    bbox=[30 * (number // 20), 10, 20, 20]) for number in range(200)]
    (tmp_path / 'truth.json').write_text(json.dumps(dict(
        images=[dict(id=number, file_name=f'{number}.png', width=300, height=100) for number in range(20)],
        categories=[dict(id=number, name=name) for number, name in enumerate(names)], annotations=objects)))
    (tmp_path / 'found.json').write_text(json.dumps([dict(one, score=0.5 + one['id'] / 500) for one in objects]))
    assert not run_tool('lab report_checks', tmp_path / 'truth.json', tmp_path / 'found.json', '--trials', 3, 5)
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split('|')[1:3] for line in lines if line.startswith(('| removed', '| shifted', '| renamed'))]
    assert [shown.strip() for _, shown in rows] == ['1.00'] * (1 + len(names))
    assert any(line.startswith('against itself: not significantly different') for line in lines)
    assert lines[-1] == '95 % intervals cover: 1.000'


def test_renamed_regions_are_found(run_tool: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
                                   ) -> None:
    for folder in ('truth', 'found'):
        (tmp_path / folder).mkdir()
        for number in range(8):
            labels = np.kron(np.arange(24).reshape(4, 6) % 5, np.ones((12, 12))).astype(np.uint8)
            Image.fromarray(labels).save(tmp_path / folder / f'{number}.png')
    assert not run_tool('lab report_checks', tmp_path / 'truth', tmp_path / 'found', '--classes', 5)
    assert '| renamed | 1.00' in capsys.readouterr().out


def test_promises_are_simulated(run_tool: Callable[..., str], capsys: pytest.CaptureFixture[str],
                                monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without equal scores. Two trials are too few for more than the shape of the table."""
    monkeypatch.setattr(simulated_reports, 'ALL', 200)
    assert not run_tool('lab report_checks', '--simulate', 2, '--images', 6, 7)
    rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in capsys.readouterr().out.splitlines()
            if line.startswith('| ')]
    assert [row[:2] for row in rows[1:]] == [['6', 'no'], ['6', 'yes'], ['7', 'no'], ['7', 'yes']]
    assert all(len(row) == len(rows[0]) and 0 <= float(row[2].split()[0]) <= 1 for row in rows[1:])
    assert {row[-1] for row in rows[1:]} == {'0'}  # no score is written for so few images


@pytest.mark.parametrize('has_ties', [False, True])
def test_the_models_of_a_source_are_equally_good(has_ties: bool) -> None:
    """Two models have AP of 0.02 at most between them, on images that both have."""
    source = simulated_reports.SOURCES['many objects']
    first, second = simulated_reports.boxes_of(source, 2000, has_ties, np.random.default_rng(0), models=2)
    assert [one['objects'] for one in first] == [one['objects'] for one in second] and first != second
    values = [box_metrics(rows, 'bbox', np.ones((1, 2000), int))['AP'][0] for rows in (first, second)]
    assert abs(values[0] - values[1]) < 0.02
    assert any(round(box[1], 1) != box[1] for one in first for box in one['bbox']) != has_ties
