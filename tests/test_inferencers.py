"""The inferencers of mmdet and mmseg run trained models: a config names its backbone, and nothing else is imported."""
from pathlib import Path

import pytest

from tests.helpers import Models
from tests.openmmlab_tools.engine.test_durability import Run, assert_inferred


@pytest.mark.parametrize('scope, inferencer, is_published', [
    ('mmdet', 'DetInferencer', True), pytest.param('mmseg', 'MMSegInferencer', False, marks=pytest.mark.slow)])
def test_an_inferencer_finds_the_backbone(scope: str, inferencer: str, is_published: bool, toy_shapes: Path,
                                          trained: Models, tmp_path: Path, run_python: Run) -> None:
    image = toy_shapes / 'images/validation/000000.jpg'
    assert_inferred(scope, inferencer, is_published, trained[scope], image, tmp_path, run_python)
