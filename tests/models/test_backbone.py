"""Backbones read weights at their start, and tell of their parameters and maps, as timm's models do."""
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
from mmengine.model import BaseModule, PretrainedInit
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from cpvt_mm import CPVT, PyramidCPVT
from openmmlab_tools.engine import load_config
from openmmlab_tools.errors import UserError
from tests.backbones import GOLDEN, MASK_RCNN, NARROW, NARROW_PLAIN
from tests.models.conftest import Build, both

OFFICIAL = GOLDEN / 'official.pth'


def detector(**backbone: object) -> nn.Module:
    cfg = load_config(MASK_RCNN)
    cfg.model.backbone.update(backbone)
    with DefaultScope.overwrite_default_scope('mmdet'):
        return MODELS.build(cfg.model)


def test_a_detector_reads_the_backbone_of_another_once(tmp_path: Path, log: list) -> None:
    path, source = tmp_path / 'a.pth', detector()
    torch.save(dict(state_dict=source.state_dict(), meta={}), path)
    model = detector(frozen_stages=2, init_cfg=dict(type='Pretrained', checkpoint=str(path)))
    model.init_weights()
    torch.testing.assert_close(model.backbone.state_dict(), source.backbone.state_dict(), rtol=0, atol=0)
    assert not torch.equal(model.neck.lateral_convs[0].conv.weight, source.neck.lateral_convs[0].conv.weight)
    frozen, free = model.backbone.stages[1], model.backbone.stages[2]
    assert not any(p.requires_grad for p in frozen.parameters()) and not frozen.training
    assert all(p.requires_grad for p in free.parameters()) and free.training
    reports = [message for _, message in log if message.startswith('checkpoint')]
    assert len(reports) == 1 and "100.0 % of" in reports[0] and "weights below 'backbone.'" in reports[0]
    model.init_weights()
    model.backbone.init_weights()
    assert len([message for _, message in log if message.startswith('checkpoint')]) == 1


@pytest.mark.parametrize('kind', ['Pretrained', 'mmengine.Pretrained', PretrainedInit])
def test_a_checkpoint_is_read_after_all_other_initialisation(kind: object) -> None:
    model = PyramidCPVT(NARROW, init_cfg=[dict(type=kind, checkpoint=str(OFFICIAL), allow_missing='out_norms'),
                                          dict(type='Constant', layer='LayerNorm', val=3.)], out_norm=True)
    embed, model.part = model.stages[0].patch_embed, BaseModule()
    model.part.init_weights = mock.Mock(side_effect=lambda: nn.init.zeros_(embed.proj.weight))
    model.init_weights()
    weights = torch.load(OFFICIAL, weights_only=True)
    assert all(torch.equal(value, weights[f'patch_embeds.0.{name}']) for name, value in embed.state_dict().items())
    assert (model.out_norms['0'].weight == 3).all()
    assert model.part.init_weights.called and len(model.init_cfg) == 2


@pytest.mark.parametrize('init_cfg, words', [
    (dict(checkpoint='a.pth', strict=False), "'strict' is not a key of an init_cfg of type Pretrained; allowed are .*"
     'checkpoint, prefix, map_location, allow_missing'),
    ({}, 'init_cfg is .*, but must name a checkpoint'),
    (dict(checkpoint=str(OFFICIAL)), 'does not fit the PyramidCPVT')])
def test_what_cannot_be_read_ends_a_detector_in_a_sentence(init_cfg: dict, words: str) -> None:
    model = detector(init_cfg=dict(type='Pretrained', **init_cfg))
    with pytest.raises(UserError, match=words):
        model.init_weights()


ALL_KINDS = [dict(type='PEG', positions=(-1, 0, 1)), dict(type='PEG', positions=(-1, 0), target='qk'),
             dict(type='LearnablePE'), dict(type='RelativePE'), dict(type='FirePE')]
ENTRY = ['patch_embed.proj.weight', 'position_encoding.0.convs.-1.0.weight', 'position_encoding.1.convs.-1.0.bias',
         'position_encoding.2.table']
FIRST = ['blocks.0.norm1.weight', 'position_encoding.0.convs.0.0.weight', 'position_encoding.1.convs.0.0.bias',
         'position_encoding.4.blocks.0.threshold']
SECOND = ['blocks.1.attn.proj.bias', 'position_encoding.0.convs.1.0.weight', 'position_encoding.4.blocks.1.threshold']
LAST = ['position_encoding.3.rows', 'position_encoding.3.columns']
PYRAMID = partial(PyramidCPVT, NARROW, out_norm=True)
PLAIN = partial(CPVT, dict(NARROW_PLAIN, dist_token=True, num_register_tokens=1, layer_scale=1.))


# NARROW has 2, 2, 3 and 2 blocks, so layers 1, 3, 5 and 8 begin stages; NARROW_PLAIN has 4.
@pytest.mark.parametrize('build, part, layers', [
    (PYRAMID, 'stages.0.', {0: [*ENTRY, 'patch_embed.norm.bias'], 1: FIRST, 2: [*SECOND, *LAST]}),
    (PYRAMID, 'stages.1.', {3: [*ENTRY, *FIRST], 4: [*SECOND, *LAST]}),
    (PYRAMID, 'stages.2.', {5: [*ENTRY, *FIRST], 6: SECOND, 7: ['blocks.2.mlp.fc2.weight', *LAST]}),
    (PYRAMID, 'stages.3.', {8: [*ENTRY, *FIRST], 9: [*SECOND, *LAST]}),
    (PYRAMID, 'out_norms.', {10: ['0.weight', '3.bias']}),
    (PLAIN, '', {0: [*ENTRY, 'cls_token', 'dist_token', 'register_tokens'], 1: [*FIRST, 'blocks.0.ls2.gamma'],
                 2: SECOND, 4: ['blocks.3.mlp.fc1.bias', *LAST], 5: ['norm.weight', 'norm.bias']})])
def test_each_parameter_belongs_to_a_layer(build: Build, part: str, layers: dict[int, list[str]]) -> None:
    model = build(position_encoding=ALL_KINDS)
    num_layers = model.num_blocks + 2
    for layer, names in layers.items():
        for name in (f'{part}{name}' for name in names):
            assert model.get_parameter(name) is not None
            assert model.get_layer_depth(name) == (layer, num_layers)
            assert model.get_layer_depth(f'model.backbone.{name}', 'model.backbone.') == (layer, num_layers)
            assert model.get_layer_depth(f'decode_head.{name}', 'backbone.') == (num_layers - 1, num_layers)
    assert {model.get_layer_depth(name)[0] for name, _ in model.named_parameters()} == set(range(num_layers))


@both
def test_tokens_and_position_encodings_get_no_weight_decay(build: Build) -> None:
    model = build(position_encoding=[dict(type='PEG'), dict(type='LearnablePE')])
    names = model.no_weight_decay()
    assert names == {name for name, _ in model.named_parameters() if 'position_encoding' in name or name == 'cls_token'}
    assert any(name.endswith('table') for name in names) and any('convs' in name for name in names)


@pytest.mark.parametrize(('build', 'out_indices', 'modules'), [
    (PYRAMID, (-3, -1), ['stages.1', 'stages.3']), (PLAIN, (1, -1), ['blocks.1', 'blocks.3'])])
def test_feature_info_tells_what_is_returned(build: Build, out_indices: tuple[int, ...], modules: list[str]) -> None:
    model = build(out_indices=out_indices).eval()
    outputs, info = model(torch.randn(1, 3, 64, 64)), model.feature_info
    assert info.channels() == list(model.out_channels) == [output.shape[1] for output in outputs]
    assert info.reduction() == list(model.strides) == [64 // output.shape[2] for output in outputs]
    assert info.module_name() == modules and model.out_indices == (1, 3)
    assert all(item.keys() == {'num_chs', 'reduction', 'module', 'index'} for item in info)


@both
def test_intermediates_are_the_maps_of_all_stages_or_blocks_or_of_chosen_ones(build: Build) -> None:
    model, image = build(out_indices=(0, 1, 2, 3)).eval(), torch.randn(2, 3, 70, 50)
    outputs, (final, maps) = model(image), model.forward_intermediates(image)
    assert len(maps) == 4 and all(map(torch.equal, maps[:-1], outputs))
    # The last block of a plain backbone has a norm; the cells follow its class token.
    normed = model.forward_intermediates(image, norm=True)[1][-1]
    assert torch.equal(normed, outputs[-1]) and torch.equal(final[:, -normed[0, 0].numel():], normed.flatten(2).mT)
    assert torch.equal(maps[-1], normed) == isinstance(model, PyramidCPVT)
    chosen = model.forward_intermediates(image, [0, -1], intermediates_only=True)
    assert torch.equal(chosen[0], maps[0]) and torch.equal(chosen[1], maps[-1])
    last = model.forward_intermediates(image, 2, output_fmt='NLC', intermediates_only=True)
    assert all(torch.equal(tokens, found.flatten(2).mT) for tokens, found in zip(last, maps[-2:], strict=True))
    run: list[nn.Module] = []
    for part in model.get_submodule(model.parts):
        part.register_forward_hook(lambda module, args, output: run.append(module))
    model.forward_intermediates(image, [1], stop_early=True, intermediates_only=True)
    assert len(run) == 2
