"""The tool that writes a config: what it prints, and what it takes."""
from pathlib import Path

import pytest

from openmmlab_runs.engine import load_config
from tests.tools.conftest import Run, change_annotations

TOOL = 'misc/new_config.py'


def test_a_folder_becomes_a_config_and_faults_of_its_annotations_are_printed(
        run_tool: Run, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / 'my.py'
    file = tmp_path / 'my_annotations/train.json'
    change_annotations(data / 'instances_training.json', lambda coco: coco['annotations'][0].update(bbox=[500, 500, 9, 9]))
    assert run_tool(TOOL, data, out, '--task', 'boxes', '--arch', 'nano', '--scale', 96, 64, '--iters', 40, '--batch',
                    2) == ''
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert any(f'error, box outside of its image, or without area: {file} has bbox' in line for line in lines)
    assert first == f'{data} has COCO annotations.' and last == f'Wrote {out}. Next: cpvt_mm train {out}'
    cfg = load_config(out)
    assert (cfg.scale, cfg.max_iters, cfg.batch_size) == ((96, 64), 40, 2)
