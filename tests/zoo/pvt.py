"""PVT, PVT v2 and MiT of other libraries with random weights, and the options of PyramidCPVT that must equal them."""
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from cpvt_mm.zoo import pvt
from cpvt_mm.zoo.family import PyramidArch
from cpvt_mm.zoo.pvt import PVT

PVTV2 = dict(pvt.PVTV2, patch_mode='overlap', mlp_mode='conv', stage_norm=True)
LINEAR = {**PVTV2, **pvt.LINEAR}
OF_MM = dict(embed_norm_eps=1e-6)
Maps = Sequence[Tensor]
Peer = tuple[nn.Module, Callable[[Tensor], Maps]]


def timm_pvtv2(arch: PyramidArch, linear: bool = False) -> Peer:
    from timm.models.pvt_v2 import PyramidVisionTransformerV2
    model = PyramidVisionTransformerV2(**_named(arch, depths='depths', embed_dims='embed_dims', num_heads='num_heads',
                                                mlp_ratios='mlp_ratios', sr_ratios='sr_ratios'), linear=linear)
    return model, lambda x: model.forward_intermediates(x, intermediates_only=True)


def timm_linear(arch: PyramidArch) -> Peer:
    return timm_pvtv2(arch, linear=True)


def transformers_pvtv2(arch: PyramidArch, linear: bool = False) -> Peer:
    from transformers import PvtV2Backbone, PvtV2Config
    model = PvtV2Backbone(PvtV2Config(
        **_named(arch, depths='depths', hidden_sizes='embed_dims', num_attention_heads='num_heads',
                 mlp_ratios='mlp_ratios', sr_ratios='sr_ratios'), linear_attention=linear,
        out_features=[f'stage{i}' for i in range(1, 5)]))
    return model, lambda x: model(x).feature_maps


def transformers_linear(arch: PyramidArch) -> Peer:
    return transformers_pvtv2(arch, linear=True)


def transformers_segformer(arch: PyramidArch) -> Peer:
    from transformers import SegformerConfig, SegformerModel
    model = SegformerModel(SegformerConfig(**_named(
        arch, depths='depths', hidden_sizes='embed_dims', num_attention_heads='num_heads', mlp_ratios='mlp_ratios',
        sr_ratios='sr_ratios')))
    return model, lambda x: model(x, output_hidden_states=True).hidden_states


def transformers_pvt(arch: PyramidArch) -> Peer:
    """Its last map alone, after the norm, with a class token; it takes images of 224 x 224 only."""
    from transformers import PvtConfig, PvtModel
    model = PvtModel(PvtConfig(**_named(
        arch, depths='depths', hidden_sizes='embed_dims', num_attention_heads='num_heads', mlp_ratios='mlp_ratios',
        sequence_reduction_ratios='sr_ratios')))
    return model, lambda x: [model(x).last_hidden_state[:, 1:].mT.unflatten(2, (7, 7))]


def mmdet_pvt(arch: PyramidArch) -> Peer:
    from mmdet.models.backbones import PyramidVisionTransformer
    model = PyramidVisionTransformer(**_of_mm(arch), mlp_ratios=list(arch.mlp_ratios))
    return model, model


def mmdet_pvtv2(arch: PyramidArch) -> Peer:
    from mmdet.models.backbones import PyramidVisionTransformerV2
    model = PyramidVisionTransformerV2(**_of_mm(arch), mlp_ratios=list(arch.mlp_ratios))
    return model, model


def mmseg_mit(arch: PyramidArch) -> Peer:
    from mmseg.models.backbones import MixVisionTransformer
    model = MixVisionTransformer(**_of_mm(arch), mlp_ratio=arch.mlp_ratios[0])
    return model, model


# Name -> what builds it, and the options here.
PEERS: dict[str, tuple[Callable[[PyramidArch], Peer], dict[str, Any]]] = {
    'timm PVT v2': (timm_pvtv2, PVTV2),
    'timm PVT v2, linear': (timm_linear, LINEAR),
    'transformers PVT v2': (transformers_pvtv2, {**PVTV2, **OF_MM}),
    'transformers PVT v2, linear': (transformers_linear, {**LINEAR, **OF_MM}),
    'transformers SegFormer': (transformers_segformer, {**PVTV2, 'norm_eps': 1e-5}),
    'transformers PVT': (transformers_pvt, {**PVT, **OF_MM, 'cls_token': True, 'out_indices': (3,), 'out_norm': True}),
    'mmdet PVT': (mmdet_pvt, {**PVT, **OF_MM}),
    'mmdet PVT v2': (mmdet_pvtv2, {**PVTV2, **OF_MM}),
    'mmseg MiT': (mmseg_mit, {**PVTV2, **OF_MM}),
}


def _named(arch: PyramidArch, **names: str) -> dict[str, list[int]]:
    """Returns the sizes of an arch as lists, under the names of another library."""
    return {theirs: list(getattr(arch, ours)) for theirs, ours in names.items()}


def _of_mm(arch: PyramidArch) -> dict[str, Any]:
    """Returns the sizes of an arch for mmdet and mmseg, where the heads have the same width in all stages."""
    return dict(embed_dims=arch.embed_dims[0], drop_path_rate=0.,
                **_named(arch, num_layers='depths', num_heads='num_heads', sr_ratios='sr_ratios'))


def randomized(model: nn.Module) -> nn.Module:
    """Sets random values, with which every part has an effect on the outputs; returns the model in eval mode."""
    for parameter in model.parameters():
        fan_in = parameter[0].numel() if parameter.dim() > 1 else 100
        parameter.data.normal_(std=max(fan_in, 4)**-0.5)
    return model.eval()
