"""Formats of checkpoints: names tell the format, and every tensor of the backbone gets its name here."""
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cpvt_mm.zoo import deit, dino, pvt, rope_vit, twins
from cpvt_mm.zoo.families import FORMATS, detect_format
from cpvt_mm.zoo.renaming import Format
from tests.helpers import refusal
from tests.zoo.checkpoints import CHECKPOINTS, Weights, authors_of_dinov3, of_dino


def assert_same(weights: Weights, others: Weights) -> None:
    assert set(weights) == set(others)
    assert all(torch.equal(tensor, others[name]) for name, tensor in weights.items())


@pytest.mark.parametrize('name', CHECKPOINTS)
def test_names_tell_the_format_and_all_weights_get_names_here(name: str) -> None:
    checkpoint = CHECKPOINTS[name]
    weights = checkpoint.weights()
    own_prefix = 'encoder.model.' if name.startswith('smp') else ''
    for prefix in ('', 'backbone.', 'detector.backbone.'):
        names = ['neck.weight', *(prefix + key for key in weights), 'head.weight']
        detected = detect_format(names, 'a.pth')
        assert (str(detected.format), detected.prefix) == (checkpoint.format, prefix + own_prefix)
        assert not detected.others
    below = {key.removeprefix(own_prefix): tensor for key, tensor in weights.items()}
    translated, needed = detected.format.translate(below), checkpoint.backbone().state_dict()
    assert needed.keys() <= translated.keys()
    assert all(translated[key].shape == tensor.shape for key, tensor in needed.items())
    # `load_pretrained` asks for single names, to tell what is left over.
    left = {name_here for key in below for name_here in detected.format.translate_name(key)
            if needed.keys().isdisjoint(detected.format.translate_name(key))}
    assert {key for key in left if not key.endswith('_mask')} == translated.keys() - needed.keys()


def test_all_formats_are_tried() -> None:
    assert {(checkpoint.cls.__name__, checkpoint.format) for checkpoint in CHECKPOINTS.values()} == {
        (fmt.backbone, str(fmt)) for fmt in FORMATS}


def test_a_token_gets_the_row_of_its_table_which_may_be_missing() -> None:
    weights = CHECKPOINTS['timm DeiT'].weights()
    row, cells = weights['pos_embed'].split([1, 16], dim=1)
    translated = deit.TIMM.translate(weights)
    assert torch.equal(translated['cls_token'], weights['cls_token'] + row)
    assert torch.equal(translated[deit.TABLE], cells[0].view(4, 4, 48))
    without_row = deit.TIMM.translate({**weights, 'pos_embed': cells})
    assert torch.equal(without_row['cls_token'], weights['cls_token'])
    assert torch.equal(without_row[deit.TABLE], translated[deit.TABLE])
    weights = CHECKPOINTS['transformers PVT'].weights()
    token = pvt.TRANSFORMERS_PVT.translate(weights)[pvt.CLS_TOKEN]
    weights['encoder.patch_embeddings.3.position_embeddings'][:, 0] += 1.
    torch.testing.assert_close(pvt.TRANSFORMERS_PVT.translate(weights)[pvt.CLS_TOKEN], token + 1.)


@pytest.mark.parametrize(('name', 'fmt', 'changes', 'words'), [
    ('timm DeiT', deit.TIMM, dict(pos_embed=torch.zeros(1, 13, 48)),
     '(1, 13, 48), but must be (1, rows, channels) with 1 rows'),
    ('timm DeiT', deit.TIMM, dict(pos_embed=torch.zeros(17, 48)), 'has shape (17, 48)'),
    ('timm DeiT', deit.TIMM, {'norm_pre.weight': torch.ones(1)},
     'of a model with norm_pre.weight, which CPVT does not have'),
    ('timm DeiT', deit.TIMM, {'rope.freqs': torch.ones(1)}, 'of a model with rope.freqs, which CPVT does not have'),
    ('mmseg Twins', twins.MMSEG, {'norm_list.0.weight': torch.ones(1)},
     'with norm_list.0.weight, which PyramidCPVT does not have'),
    ('transformers PVT', pvt.TRANSFORMERS_PVT,
     {'encoder.patch_embeddings.3.position_embeddings': torch.zeros(1, 48, 64)}, '(1, 48, 64)'),
    ('timm rope-vit-small-mixed', rope_vit.MIXED, {'rope.freqs': torch.ones(2, 2, 4, 16)},
     'heads have 32 channels, but must have 64')])
def test_models_that_differ_are_refused(name: str, fmt: Format, changes: dict[str, Tensor], words: str) -> None:
    assert words in refusal(fmt.translate, {**CHECKPOINTS[name].weights(), **changes})


@pytest.mark.parametrize('mask', [7., torch.nan])
def test_biases_that_are_masked_or_left_out_are_zeros(mask: float) -> None:
    weights = of_dino('timm', 'dinov3')
    expected = dino.TIMM_DINOV3.translate(weights)
    assert all((expected[f'blocks.{index}.attn.kv.bias'][:24] == 0).all() for index in (0, 1))
    translated = dino.TIMM_DINOV3.translate(authors_of_dinov3(weights, mask))
    assert {translated.pop(name).shape for name in ('mask_token', 'rope_embed.periods')} == {(1, 24), (3,)}
    assert_same(translated, expected)
    without = dino.TIMM_DINOV3.translate({key: tensor for key, tensor in weights.items() if not key.endswith('_bias')})
    assert_same(without, {key: tensor * 0 if key.endswith(('.q.bias', '.kv.bias')) else tensor
                          for key, tensor in expected.items()})


@pytest.mark.parametrize(('change', 'count'), [
    (lambda frequencies: {'freqs': frequencies.flatten(2), 'freqs_t_x': torch.arange(16.)}, 1),
    (lambda frequencies: {'rope.freqs': frequencies}, 0)])
def test_frequencies_under_the_name_of_the_authors_are_the_same(
        change: Callable[[Tensor], Weights], count: int) -> None:
    weights = CHECKPOINTS['timm rope-vit-small-mixed'].weights()
    expected = rope_vit.MIXED.translate(weights)
    frequencies = weights.pop('rope.freqs')
    translated = rope_vit.MIXED.translate({**weights, **change(frequencies)})
    assert len([translated.pop(name) for name in ('freqs_t_x',) if name in translated]) == count
    assert_same(translated, expected)


def test_the_first_of_the_shortest_prefixes_is_taken() -> None:
    names_of_twins = list(CHECKPOINTS['timm Twins'].weights())
    names = [prefix + name for prefix in ('teacher.backbone.', 'student.backbone.', 'backbone.')
             for name in names_of_twins]
    assert detect_format(names, 'a.pth') == (
        twins.TWINS, 'backbone.', ('teacher.backbone.', 'student.backbone.'))
    assert detect_format([name for name in names if not name.startswith('b')], 'a.pth').prefix == 'teacher.backbone.'
    assert detect_format(names, 'a.pth', 'student.backbone') == (twins.TWINS, 'student.backbone.', ())  # is given
    assert "no backbone of a known format below 'neck.'" in refusal(detect_format, names, 'a.pth', 'neck')
    names = [*(f'a.{name}' for name in deit.TIMM.signature), *(f'backbone.{name}' for name in twins.TWINS.signature)]
    assert detect_format(names, 'a.pth').prefix == 'a.'
    assert detect_format(names, 'a.pth', preferred='PyramidCPVT').prefix == 'backbone.'


def test_other_names_are_refused_with_the_formats_and_the_first_keys() -> None:
    assert refusal(detect_format, [f'layer{i}.weight' for i in range(4)], 'a.pth') == (
        'checkpoint a.pth has no backbone of a known format: it has layer0.weight, layer1.weight, layer2.weight, ...; '
        'use a checkpoint of a known format (for PyramidCPVT cpvt_mm, twins or timm, mmseg, mmpretrain, pvt, '
        'pvtv2 or mit, timm-pvtv2, transformers-pvt, transformers-pvtv2, transformers-segformer, mmdet-pvt, '
        'mmdet-pvtv2 or mmseg-mit; for CPVT cpvt_mm, timm, mmpretrain, timm-dinov3, transformers-dinov2, '
        'transformers-dinov3, timm-rope-axial, timm-rope-mixed).')
