"""Backbones of other libraries with random weights, and the options of those here that must equal them."""
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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


timm_pvtv2 = partial(of_timm, 'pvt_v2_b0', num_classes=0, **SIZES)
transformers_pvtv2 = partial(of_transformers, 'PvtV2Backbone', 'PvtV2Config', lambda model, x: model(x).feature_maps,
                             out_features=[f'stage{i}' for i in range(1, 5)])
OF_MMDET = dict(embed_dims=8, num_layers=SIZES['depths'], num_heads=SIZES['num_heads'], sr_ratios=SIZES['sr_ratios'],
                drop_path_rate=0.)
OF_PCPVT = dict(SIZES, patch_sizes=[4, 2, 2, 2], strides=[4, 2, 2, 2])
OF_MMPRETRAIN = dict(arch=OF_PCPVT, out_indices=(0, 1, 2, 3), qkv_bias=True)
VIT = dict(arch=PLAIN_SIZES, img_size=64, position_encoding=dict(type='LearnablePE'), out_type='raw')
LAST = dict(out_indices=(3,), out_norm=True)

# Name -> what builds it, and what it is here.
PEERS: dict[str, tuple[Callable[[], Peer], dict[str, Any]]] = {
    'mmseg PCPVT': (partial(of_openmmlab, 'mmseg.PCPVT', **OF_PCPVT, qkv_bias=True), dict(norm_eps=1e-5)),
    'mmpretrain PCPVT': (partial(of_openmmlab, 'mmpretrain.PCPVT', **OF_MMPRETRAIN), dict(norm_eps=1e-5)),
    'mmpretrain PCPVT, norm': (partial(
        of_openmmlab, 'mmpretrain.PCPVT', lambda model, x: model(x)[3:], **OF_MMPRETRAIN,
        norm_after_stage=[False, False, False, True]), dict(LAST, norm_eps=1e-5)),
    'timm PVT v2': (timm_pvtv2, PVTV2),
    'timm PVT v2, linear': (partial(timm_pvtv2, linear=True), {**PVTV2, **LINEAR}),
    'timm PVT v2, maps': (partial(of_timm, 'pvt_v2_b0', features_only=True), dict(PVTV2, arch='pvtv2-b0')),
    'smp PVT v2': (of_smp, dict(PVTV2, arch='pvtv2-b0')),
    'transformers PVT v2': (transformers_pvtv2, {**PVTV2, **OF_MM}),
    'transformers PVT v2, linear': (partial(transformers_pvtv2, linear_attention=True), {**PVTV2, **LINEAR, **OF_MM}),
    'transformers SegFormer': (partial(
        of_transformers, 'SegformerModel', 'SegformerConfig',
        lambda model, x: model(x, output_hidden_states=True).hidden_states), dict(PVTV2, norm_eps=1e-5)),
    # Its last map alone, after the norm, with a class token; it takes images of 224 x 224 only.
    'transformers PVT': (partial(
        of_transformers, 'PvtModel', 'PvtConfig',
        lambda model, x: [model(x).last_hidden_state[:, 1:].mT.unflatten(2, (7, 7))], sr_ratios=None,
        sequence_reduction_ratios=SIZES['sr_ratios']), {**PVT, **OF_MM, **LAST, 'cls_token': True}),
    'mmdet PVT': (partial(of_openmmlab, 'mmdet.PyramidVisionTransformer', **OF_MMDET, mlp_ratios=[4] * 4),
                  {**PVT, **OF_MM}),
    'mmdet PVT v2': (partial(of_openmmlab, 'mmdet.PyramidVisionTransformerV2', **OF_MMDET, mlp_ratios=[4] * 4),
                     {**PVTV2, **OF_MM}),
    'mmseg MiT': (partial(of_openmmlab, 'mmseg.MixVisionTransformer', **OF_MMDET, mlp_ratio=4), {**PVTV2, **OF_MM}),
    'mmpretrain ViT': (partial(vit_of_mmpretrain, 'mmpretrain.VisionTransformer'), VIT),
    'mmpretrain ViT, distilled': (partial(vit_of_mmpretrain, 'mmpretrain.DistilledVisionTransformer'),
                                  dict(VIT, dist_token=True))}


def peer(name: str) -> tuple[nn.Module, Run, Any]:
    """A model of another library with random values, with which every part has an effect; what runs it; and ours."""
    make, options = PEERS[name]
    model, run = make()
    for parameter in model.parameters():
        fan_in = parameter[0].numel() if parameter.dim() > 1 else 100
        parameter.data.normal_(std=max(fan_in, 4)**-0.5)
    model.eval()  # mmpretrain's returns nothing
    return model, run, build(CPVT if 'ViT' in name else PyramidCPVT, **{'arch': SIZES, **options}).eval()
