"""Backbones of other libraries with random weights, and the options of those here that must equal them."""
import importlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.zoo.members import PVT
from openmmlab_tools.libraries import require

# mmdet's and mmseg's heads all have the width of the first; MiT has one ratio of MLPs.
SIZES: dict[str, Any] = dict(embed_dims=[8, 16, 40, 64], depths=[1, 2, 1, 1], num_heads=[1, 2, 5, 8],
                             mlp_ratios=[4, 4, 4, 4], sr_ratios=[8, 4, 2, 1])
PLAIN_SIZES: dict[str, Any] = dict(embed_dims=48, depth=4, num_heads=3)
PVTV2: dict[str, Any] = dict(position_encoding=None, patch_mode='overlap', mlp_mode='conv', stage_norm=True)
LINEAR: dict[str, Any] = dict(sr_mode='pool', mlp_mode='relu-conv')
OF_MM: dict[str, Any] = dict(embed_norm_eps=1e-6)
Run = Callable[[Tensor], Sequence[Tensor]]
Peer = tuple[nn.Module, Run]


def build(cls: type[nn.Module], arch: str | dict[str, Any], **options: Any) -> Any:
    """Builds a backbone; options that are fields of its arch are put there."""
    parts = {name: options.pop(name) for name in cls.arch_fields if name in options}
    return cls({**(arch if isinstance(arch, dict) else dict(name=arch)), **parts}, **options)


def of_openmmlab(name: str, run: Callable[..., Sequence[Tensor]] | None = None, **arguments: Any) -> Peer:
    library, name = name.split('.')
    require(library)
    model = getattr(importlib.import_module(f'{library}.models.backbones'), name)(**arguments)
    return model, partial(run, model) if run else model


def of_timm(name: str, **arguments: Any) -> Peer:
    import timm
    model = timm.create_model(name, **arguments)
    return model, model if arguments.get('features_only') else partial(
        model.forward_intermediates, intermediates_only=True)


def of_smp() -> Peer:
    import segmentation_models_pytorch as smp
    model = smp.Unet('tu-pvt_v2_b0', encoder_weights=None)
    return model, model.encoder.model


def of_transformers(name: str, config: str, run: Callable[..., Sequence[Tensor]], **more: Any) -> Peer:
    import transformers
    sizes = dict(hidden_sizes=SIZES['embed_dims'], num_attention_heads=SIZES['num_heads'],
                 **{key: SIZES[key] for key in ('depths', 'mlp_ratios', 'sr_ratios')})
    model = getattr(transformers, name)(getattr(transformers, config)(**{**sizes, **more}))
    return model, partial(run, model)


def vit_of_mmpretrain(name: str) -> Peer:
    return of_openmmlab(name, out_type='raw', img_size=64, patch_size=16, arch=dict(
        embed_dims=48, num_layers=4, num_heads=3, feedforward_channels=192))


def with_names(rename: Callable[[dict[str, Tensor]], dict[str, Tensor]], make: Callable[[], Peer]) -> Peer:
    """A model whose state dict has other names, such as those in the files of the authors."""
    model, run = make()

    def change(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, metadata: object) -> None:
        of_model = {name: state_dict.pop(name) for name in [*state_dict] if name.startswith(prefix)}
        renamed = rename({name.removeprefix(prefix): tensor for name, tensor in of_model.items()})
        state_dict.update({prefix + name: tensor for name, tensor in renamed.items()})

    model.register_state_dict_post_hook(change)
    return model, run


def substituted(name: str, rules: dict[str, str]) -> str:
    """Applies the first rule that matches at the start; a number in it counts from 1 in the new name."""
    for pattern, new in rules.items():
        if match := re.match(pattern, name):
            number = str(int(match[1]) + 1) if match.groups() else ''
            return new.format(number) + name[match.end():]
    return name


def authors_of_pvtv2(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names of PVT v2 and SegFormer, from timm's."""
    rules = {r'patch_embed\.': 'patch_embed1.', r'stages\.(\d)\.downsample\.': 'patch_embed{}.',
             r'stages\.(\d)\.blocks\.': 'block{}.', r'stages\.(\d)\.norm\.': 'norm{}.'}
    return {substituted(name, rules).replace('dwconv', 'dwconv.dwconv'): tensor for name, tensor in weights.items()}


def authors_of_pvt(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names of PVT, from those in transformers."""
    start, layers = r'encoder\.patch_embeddings\.(\d)\.', {
        'layer_norm_': 'norm', 'attention.self.query': 'attn.q', 'attention.self.key': 'attn.k',
        'attention.self.value': 'attn.v', 'attention.self.sequence_reduction': 'attn.sr',
        'attention.self.layer_norm': 'attn.norm', 'attention.output.dense': 'attn.proj', 'mlp.dense': 'mlp.fc'}
    rules = {start + r'projection\.': 'patch_embed{}.proj.', start + r'layer_norm\.': 'patch_embed{}.norm.',
             start + 'position_embeddings': 'pos_embed{}', start + 'cls_token': 'cls_token',
             r'encoder\.block\.(\d)\.': 'block{}.', r'encoder\.layer_norm\.': 'norm.'}
    renamed = {}
    for name, tensor in weights.items():
        name = substituted(name, rules)
        for old, new in layers.items():
            name = name.replace(old, new)
        renamed[name] = tensor
    for name in [name for name in renamed if '.attn.k.' in name]:
        both = [renamed.pop(name), renamed.pop(name.replace('.attn.k.', '.attn.v.'))]
        renamed[name.replace('.attn.k.', '.attn.kv.')] = torch.cat(both)
    return renamed


timm_pvtv2 = partial(of_timm, 'pvt_v2_b0', num_classes=0, **SIZES)
transformers_pvtv2 = partial(of_transformers, 'PvtV2Backbone', 'PvtV2Config', lambda model, x: model(x).feature_maps,
                             out_features=[f'stage{i}' for i in range(1, 5)])
OF_MMDET = dict(embed_dims=8, num_layers=SIZES['depths'], num_heads=SIZES['num_heads'], sr_ratios=SIZES['sr_ratios'],
                drop_path_rate=0.)
OF_PCPVT = dict(SIZES, patch_sizes=[4, 2, 2, 2], strides=[4, 2, 2, 2])
OF_MMPRETRAIN = dict(arch=OF_PCPVT, out_indices=(0, 1, 2, 3), qkv_bias=True)
VIT = dict(arch=PLAIN_SIZES, img_size=64, position_encoding=dict(type='LearnablePE'), out_type='raw')
LAST = dict(out_indices=(3,), out_norm=True)

# Its last map alone, after the norm, with a class token; it accepts images of 224 x 224 only.
transformers_pvt = partial(
    of_transformers, 'PvtModel', 'PvtConfig',
    lambda model, x: [model(x).last_hidden_state[:, 1:].mT.unflatten(2, (7, 7))], sr_ratios=None,
    sequence_reduction_ratios=SIZES['sr_ratios'])

# Name -> format of its weights, what builds it, and what it is here.
PEERS: dict[str, tuple[str, Callable[[], Peer], dict[str, Any]]] = {
    'mmseg PCPVT': ('mmseg', partial(of_openmmlab, 'mmseg.PCPVT', **OF_PCPVT, qkv_bias=True), dict(norm_eps=1e-5)),
    'mmpretrain PCPVT': ('mmpretrain', partial(of_openmmlab, 'mmpretrain.PCPVT', **OF_MMPRETRAIN), dict(norm_eps=1e-5)),
    'mmpretrain PCPVT, norm': ('mmpretrain', partial(
        of_openmmlab, 'mmpretrain.PCPVT', lambda model, x: model(x)[3:], **OF_MMPRETRAIN,
        norm_after_stage=[False, False, False, True]), dict(LAST, norm_eps=1e-5)),
    'timm PVT v2': ('timm-pvtv2', timm_pvtv2, PVTV2),
    'timm PVT v2, linear': ('timm-pvtv2', partial(timm_pvtv2, linear=True), {**PVTV2, **LINEAR}),
    'timm PVT v2, maps': ('timm-pvtv2', partial(of_timm, 'pvt_v2_b0', features_only=True),
                          dict(PVTV2, arch='pvtv2-b0')),
    'smp PVT v2': ('timm-pvtv2', of_smp, dict(PVTV2, arch='pvtv2-b0')),
    'PVT v2 of the authors': ('pvtv2 or mit', partial(with_names, authors_of_pvtv2, timm_pvtv2), PVTV2),
    'PVT v2 of the authors, linear': ('pvtv2 or mit', partial(
        with_names, authors_of_pvtv2, partial(timm_pvtv2, linear=True)), {**PVTV2, **LINEAR}),
    'transformers PVT v2': ('transformers-pvtv2', transformers_pvtv2, {**PVTV2, **OF_MM}),
    'transformers PVT v2, linear': ('transformers-pvtv2', partial(transformers_pvtv2, linear_attention=True),
                                    {**PVTV2, **LINEAR, **OF_MM}),
    'transformers SegFormer': ('transformers-segformer', partial(
        of_transformers, 'SegformerModel', 'SegformerConfig',
        lambda model, x: model(x, output_hidden_states=True).hidden_states), dict(PVTV2, norm_eps=1e-5)),
    'transformers PVT': ('transformers-pvt', transformers_pvt, {**PVT, **OF_MM, **LAST, 'cls_token': True}),
    'PVT of the authors': ('pvt', partial(with_names, authors_of_pvt, transformers_pvt),
                           {**PVT, **OF_MM, **LAST, 'cls_token': True}),
    'mmdet PVT': ('mmdet-pvt', partial(of_openmmlab, 'mmdet.PyramidVisionTransformer', **OF_MMDET,
                                       mlp_ratios=[4] * 4), {**PVT, **OF_MM}),
    'mmdet PVT v2': ('mmdet-pvtv2 or mmseg-mit', partial(
        of_openmmlab, 'mmdet.PyramidVisionTransformerV2', **OF_MMDET, mlp_ratios=[4] * 4), {**PVTV2, **OF_MM}),
    'mmseg MiT': ('mmdet-pvtv2 or mmseg-mit', partial(
        of_openmmlab, 'mmseg.MixVisionTransformer', **OF_MMDET, mlp_ratio=4), {**PVTV2, **OF_MM}),
    'mmpretrain ViT': ('mmpretrain', partial(vit_of_mmpretrain, 'mmpretrain.VisionTransformer'), VIT),
    'mmpretrain ViT, distilled': ('mmpretrain', partial(vit_of_mmpretrain, 'mmpretrain.DistilledVisionTransformer'),
                                  dict(VIT, dist_token=True))}


def peer(name: str) -> tuple[nn.Module, Run, Any]:
    """A model of another library with random values, with which every part has an effect; what runs it; and ours."""
    _, make, options = PEERS[name]
    model, run = make()
    for parameter in model.parameters():
        fan_in = parameter[0].numel() if parameter.dim() > 1 else 100
        parameter.data.normal_(std=max(fan_in, 4)**-0.5)
    model.eval()  # mmpretrain's returns nothing
    return model, run, build(CPVT if 'ViT' in name else PyramidCPVT, **{'arch': SIZES, **options}).eval()
