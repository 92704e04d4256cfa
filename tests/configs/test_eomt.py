"""Configs of EoMT and PMT: the settings of their authors, and masks that do not depend on the batch."""
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from torch import Tensor, nn

from cpvt_mm.tokens.batch_info import told_about
from openmmlab_tools.engine import load_config
from tests.helpers import ROOT, build_model, groups_by_name
from tests.test_batch_invariance import built, predict

EOMT = sorted((ROOT / 'configs/eomt').glob('*.py'))
AUTHORS = [path for path in EOMT if '8xb2' in path.stem]  # those for which they have settings
SIZES = [(64, 160), (100, 70), (160, 96), (33, 144), (65, 64)]  # 144 is no multiple of 32, and has no padding otherwise


@pytest.mark.parametrize('path', [path for path in AUTHORS if 'frozen' not in path.stem], ids=lambda path: path.stem)
def test_parameters_learn_at_the_authors_rates_and_all_decay(path: Path) -> None:
    """In training/lightning_module.py of their code, block i of 12 learns at 0.8**(11 - i) times the rate."""
    cfg = load_config(path)
    model: Any = build_model(cfg, 'meta')
    groups = groups_by_name(model, build_optim_wrapper(model, cfg.optim_wrapper))
    assert {*groups} == {name for name, _ in model.named_parameters()}
    rates = {name: group['lr'] / 1e-4 for name, group in groups.items()}
    shares = [0.8**(11 - block) for block in range(12)]
    assert shares[::-1][::3] == pytest.approx([1., 0.512, 0.262144, 0.134217728])
    for name, rate in rates.items():
        part, _, rest = name.removeprefix('backbone.').partition('.')
        is_first = part in ('patch_embed', 'position_encoding', 'cls_token', 'register_tokens')
        share = shares[int(rest.split('.')[0])] if part == 'blocks' else shares[0] if is_first else 1.
        assert rate == pytest.approx(share), name
    assert len({*map(str, rates.values())}) >= 12
    assert {group['weight_decay'] for group in groups.values()} == {0.05}
    assert cfg.optim_wrapper.clip_grad.max_norm == 0.01


@pytest.mark.parametrize('path', AUTHORS, ids=lambda path: path.stem)
def test_what_a_frozen_encoder_leaves_learns_at_the_full_rate(path: Path) -> None:
    cfg = load_config(path)
    model: Any = build_model(cfg, 'meta')
    groups = groups_by_name(model, build_optim_wrapper(model, cfg.optim_wrapper))
    if 'frozen' in path.stem:
        assert {(group['lr'], group['weight_decay']) for group in groups.values()} == {(2e-4, 0.05)}
        assert {name.split('.')[1].split('_')[0] for name in groups} == {'decoder', 'cls'}
    assert cfg.param_scheduler[-1].end == cfg.train_cfg.max_iters
    assert cfg.auto_scale_lr.base_batch_size == 8 * cfg.train_dataloader.batch_size == 16


def small(path: Path) -> Config:
    return load_config(path, {'model.test_cfg.max_per_image': 10} if 'coco' in path.stem or 'nuclei' in path.stem
                       else {})


def in_float64(cfg: Config) -> nn.Module:
    def double(_: nn.Module, args: object, data: dict[str, Any]) -> dict[str, Any]:
        told = told_about(data['inputs'])
        return dict(data, inputs=told.attach(data['inputs'].double()) if told else data['inputs'].double())

    model: Any = built(cfg).double()
    model.data_preprocessor.register_forward_hook(double)
    return model


@pytest.mark.parametrize('path', EOMT, ids=lambda path: path.stem)
def test_an_image_of_a_mixed_batch_has_the_masks_that_it_has_alone(path: Path) -> None:
    """All is float64, except that resized logits of masks may be rounded to either side of 0 in at most one pixel."""
    model = in_float64(small(path))
    images: list[Tensor] = [torch.randint(256, (3, *size), dtype=torch.uint8) for size in SIZES]
    alone = [predict(model, [image])[0] for image in images]
    order = random.Random(0).sample(range(len(images)), len(images))
    for place, together in zip(order, predict(model, [images[place] for place in order]), strict=True):
        for name, value in alone[place].items():
            if value.is_floating_point():
                torch.testing.assert_close(together[name], value, rtol=0, atol=1e-9)
            else:
                assert (together[name] != value).sum() <= 1, name
    name = 'logits' if 'logits' in alone[0] else 'masks'
    assert all(one[name].double().std() > 1e-3 for one in alone)
