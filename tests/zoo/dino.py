"""DINOv2 and DINOv3 of timm and transformers with random weights, and the backbones here that must equal them."""
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# Kind of model -> patch size.
PATCH_SIZES = {'dinov2': 14, 'dinov2-reg4': 14, 'dinov2-swiglu': 14, 'dinov3': 16, 'dinov3-swiglu': 16}
LIBRARIES = ('timm', 'transformers')
NARROW = dict(embed_dims=24, depth=2, num_heads=2)
Run = Callable[[Tensor], Tensor]


def arguments(kind: str, library: str) -> dict[str, Any]:
    """The options of CPVT, without sizes. The libraries resample the table of DINOv2 without registers differently."""
    registers = dict(num_register_tokens=4) if kind != 'dinov2' and kind != 'dinov2-swiglu' else {}
    mlp = dict(mlp_mode='swiglu') if kind.endswith('swiglu') else {}
    if kind.startswith('dinov3'):
        rotary = dict(type='RotaryPE', form='dinov3')
        return dict(position_encoding=rotary, norm_eps=1e-5, layer_scale=1e-5, **registers, **mlp)
    table = dict(type='LearnablePE', antialias=bool(registers) or library == 'timm')
    return dict(patch_size=14, position_encoding=table, layer_scale=1e-5, **registers, **mlp)


def timm_model(kind: str, dims: int, depth: int, heads: int, img_size: int) -> tuple[nn.Module, Run]:
    import timm
    name = {'dinov2': 'vit_small_patch14_dinov2', 'dinov2-reg4': 'vit_small_patch14_reg4_dinov2',
            'dinov2-swiglu': 'vit_giant_patch14_dinov2', 'dinov3': 'vit_small_patch16_dinov3_qkvb',
            'dinov3-swiglu': 'vit_small_plus_patch16_dinov3_qkvb'}[kind]
    model = timm.create_model(name, embed_dim=dims, depth=depth, num_heads=heads, img_size=img_size, num_classes=0,
                              dynamic_img_size=True)
    return model, model.forward_features


def transformers_model(kind: str, dims: int, depth: int, heads: int, img_size: int) -> tuple[nn.Module, Run]:
    import transformers
    sizes = dict(hidden_size=dims, num_hidden_layers=depth, num_attention_heads=heads, image_size=img_size,
                 patch_size=PATCH_SIZES[kind])
    if kind.startswith('dinov3'):
        gated = kind.endswith('swiglu')
        config = transformers.DINOv3ViTConfig(num_register_tokens=4, intermediate_size=4 * dims, use_gated_mlp=gated,
                                              hidden_act='silu' if gated else 'gelu', **sizes)
        model = transformers.DINOv3ViTModel(config)
    elif kind == 'dinov2-reg4':
        model = transformers.Dinov2WithRegistersModel(transformers.Dinov2WithRegistersConfig(**sizes))
    else:
        model = transformers.Dinov2Model(transformers.Dinov2Config(use_swiglu_ffn=kind == 'dinov2-swiglu', **sizes))
    return model, lambda x: model(x).last_hidden_state


def reference(library: str, kind: str, dims: int, depth: int, heads: int, img_size: int) -> tuple[nn.Module, Run]:
    """A model, and a function that returns all of its tokens after the last norm. Every part has an effect on them."""
    build = timm_model if library == 'timm' else transformers_model
    model, run = build(kind, dims, depth, heads, img_size)
    return randomized(model, dims), torch.no_grad()(run)


def randomized(model: nn.Module, dims: int) -> nn.Module:
    """Sets random values, with which every part of a ViT of `dims` channels has an effect; returns it in eval mode."""
    for name, parameter in model.named_parameters():
        if re.search('gamma|lambda|norm.*weight', name):
            parameter.data.uniform_(0.3, 1)
        elif re.search('token|pos', name):
            parameter.data.normal_()
        elif parameter.dim() == 1:
            parameter.data.normal_(std=0.1)
        elif re.search('qkv|q_proj|k_proj', name):  # attention is far from uniform
            parameter.data.normal_(std=2 / dims**0.5)
    return model.eval()
