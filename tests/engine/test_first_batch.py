from pathlib import Path

from mmengine.registry import DefaultScope

from cpvt_mm.engine import load_config
from cpvt_mm.engine.first_batch import try_split
from tests.conftest import UPERNET, toy_overrides


def test_a_sample_is_tried_in_the_scope_of_the_config(toy_shapes: Path) -> None:
    cfg = load_config(UPERNET, toy_overrides(toy_shapes))
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        assert list(try_split(cfg, 'train')) == []
