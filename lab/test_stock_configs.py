"""Swaps the backbone of all configs of mmdet and mmseg, builds the models, and trains the first one of each family.

Those of COCO must also pass the checks before training, with small data in COCO's own form.

`make stock` runs it, some families by `make stock FAMILIES="yolof or detr"`. Its last lines count what was swapped
('PyramidCPVT', 'CPVT'), refused or cannot be had, by family, and -rs names the reasons. `pytest --last-failed` goes on
with what failed.
"""
import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from torch.distributed import HashStore  # type: ignore[attr-defined]

from cpvt_mm.swap import CannotSwap, read_config, swap_backbone, write_config
from cpvt_mm.swap.probing import CannotBuild, CannotRun, Maps, probe_backbone
from lab.from_config import build_model, try_out
from openmmlab_tools.data.config_datasets import check_before_training
from openmmlab_tools.errors import UserError, explain, first_line
from openmmlab_tools.libraries import require, shipped_configs
from tests.coco_form import move_data, reads_coco, write_coco

ARCHS = {'PyramidCPVT': 'nano', 'CPVT': 'tiny'}  # all widths are handled alike, and narrow backbones run faster
CONFIGS = [(library, path.relative_to(shipped_configs(library)).as_posix()) for library in ('mmdet', 'mmseg')
           for path in sorted(shipped_configs(library).rglob('*.py')) if '_base_' not in path.parts]
PROBED: dict[str, Maps] = {}
TRIED: set[str] = set()  # families of which this process has tried a config


@pytest.fixture(scope='module', autouse=True)
def prepared() -> Iterator[None]:
    os.chdir(shipped_configs('mmdet').parent)  # configs look for the configs of their teachers there
    os.environ['HF_HUB_OFFLINE'] = '1'  # nothing is downloaded
    # Some layers of mmcv can only be built in a process group.
    torch.distributed.init_process_group('gloo', store=HashStore(), rank=0, world_size=1)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    with contextlib.suppress(ImportError):  # some configs use its backbones
        require('mmpretrain')
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(scope='module')
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require('mmdet')
    from mmdet.datasets import CocoPanopticDataset
    known = CocoPanopticDataset.METAINFO
    return write_coco(tmp_path_factory.mktemp('coco'), known['thing_classes'], known['stuff_classes'])


def probe_once(backbone: dict[str, object]) -> Maps:
    """Probes a backbone, unless the same one was probed before: hundreds of configs share one."""
    scope = DefaultScope.get_current_instance()
    key = f'{scope and scope.scope_name} {backbone}'
    if key not in PROBED:
        PROBED[key] = probe_backbone(backbone)
    return PROBED[key]


def swapped(old: Config) -> tuple[str, Config]:
    """Swaps PyramidCPVT in, or CPVT if the config cannot take a pyramid; returns the backbone and the new config."""
    try:
        return 'PyramidCPVT', swap_backbone(old, ARCHS['PyramidCPVT'], probe=probe_once).config
    except (CannotBuild, CannotRun):  # the probing may be the cause
        raise
    except CannotSwap:
        with contextlib.suppress(CannotSwap):
            return 'CPVT', swap_backbone(old, ARCHS['CPVT'], backbone='CPVT', probe=probe_once).config
        raise  # the reason is about the pyramid


def fault(function: Callable[[Config], object], cfg: Config) -> str:
    """Calls a function; returns its error as one line without local folders, or ''."""
    try:
        function(cfg)
    except Exception as error:
        text = first_line(error) if isinstance(error, UserError) else explain(error)
        return re.sub(r'\s+', ' ', re.sub(r'(?<![\w:/])/\S+/', '', text))
    return ''


def check(function: Callable[[Config], object], new: Config, old: Config) -> None:
    """Skips if the old backbone gives the same error, except for numbers; fails with others."""
    if reason := fault(function, new):
        before = fault(function, old)
        if re.sub(r'\d+', '', reason) == re.sub(r'\d+', '', before):
            pytest.skip(f'fails with its own backbone, too: {before}')
        pytest.fail(reason)


@pytest.mark.parametrize('library, config', CONFIGS)
def test_a_config_takes_the_backbone(library: str, config: str, coco: Path, tmp_path: Path, record_property: Callable
                                     ) -> None:
    path, family = shipped_configs(library) / config, f'{library} {config.split("/")[0]}'
    record_property('family', family)
    try:
        old = read_config(str(path))
        if not old.get('model'):
            pytest.skip('no model')
        backbone, new = swapped(old)
        write_config(old, new, str(path), tmp_path / 'swapped.py')
    except CannotRun as error:
        pytest.fail(first_line(error))
    except CannotSwap as error:
        pytest.skip(f'{"cannot be built" if isinstance(error, CannotBuild) else "refused"}: {first_line(error)}')
    except (UserError, ImportError) as error:
        pytest.skip(f'cannot be had: {first_line(error)}')
    check(build_model, Config.fromfile(tmp_path / 'swapped.py'), old)
    record_property('backbone', backbone)
    if reads_coco(old):
        move_data(new, coco)
        check_before_training(new, ('train', 'val'))
    if family not in TRIED:
        check(try_out, swap_backbone(old, ARCHS[backbone], backbone=backbone).config, old)
        TRIED.add(family)
