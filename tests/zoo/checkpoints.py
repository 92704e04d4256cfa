"""Checkpoints with random weights in each format that can be loaded, as other libraries and authors write them."""
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import timm
import torch
from torch import Tensor, nn

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.zoo.members import RELEASED
from tests.backbones import GOLDEN, NARROW, NARROW_PLAIN
from tests.zoo import dino
from tests.zoo.peers import PEERS, SIZES, build, peer

Weights = dict[str, Tensor]
TABLE, PEG = dict(type='LearnablePE'), dict(type='PEG')
ROPE_VIT = [f'rope-vit-small-{kind}' for kind in ('axial', 'mixed', 'axial-ape', 'mixed-ape')]
PLAIN: dict[str, Any] = dict(arch=NARROW_PLAIN, img_size=64, position_encoding=TABLE)


class Checkpoint(NamedTuple):
    """The weights of a backbone, and what it is here."""
    format: str
    weights: Callable[[], Weights]
    cls: type[nn.Module]
    options: dict[str, Any]

    def backbone(self, **changes: Any) -> Any:
        """The backbone here, with random weights, in eval mode; changes are options that differ."""
        return build(self.cls, **{**self.options, **changes}).eval()


def golden(name: str) -> Weights:
    return torch.load(GOLDEN / f'{name}.pth', weights_only=True)


def shaken(model: nn.Module) -> nn.Module:
    """In eval mode, no parameter at its initial value."""
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def of_timm(name: str) -> nn.Module:
    """The narrow model of timm for a backbone with a name, in eval mode."""
    model = RELEASED[name].files[-1].rpartition('/')[2].partition('.')[0]
    patch = RELEASED[name].parts.get('patch_size', 16)
    return dino.randomized(timm.create_model(model, img_size=4 * patch, num_classes=0, dynamic_img_size=True,
                                             embed_dim=192, depth=3, num_heads=3), 192)


def options_of(name: str) -> dict[str, Any]:
    """Returns the options that make a CPVT equal to timm's narrow model."""
    options = {**RELEASED[name].options, **RELEASED[name].parts}
    if name.endswith('-ape'):  # timm resamples the table in another way than the authors
        options['position_encoding'] = [dict(TABLE, antialias=True), options['position_encoding'][1]]
    arch = dict(embed_dims=192, depth=3, num_heads=3)
    return {**options, 'arch': arch, 'img_size': 4 * options.get('patch_size', 16)}


def of_peer(name: str) -> Weights:
    return peer(name)[0].state_dict()


def of_dino(library: str, kind: str) -> Weights:
    return dino.reference(library, kind, *dino.NARROW.values(), 4 * dino.PATCH_SIZES[kind])[0].state_dict()


def options_of_dino(library: str, kind: str) -> dict[str, Any]:
    arch = dict(dino.NARROW, mlp_ratio=6) if kind == 'dinov3-swiglu' else dino.NARROW
    return dict(arch=arch, img_size=4 * dino.PATCH_SIZES[kind], **dino.arguments(kind, library))


def authors_of_dinov2(weights: Weights) -> Weights:
    """Weights of timm's DINOv2 with the names of its authors, whose gated MLPs have other names."""
    return {name.replace('mlp.fc1', 'mlp.w12').replace('mlp.fc2', 'mlp.w3'): tensor
            for name, tensor in weights.items()}


def authors_of_dinov3(weights: Weights, mask: float = 7.) -> Weights:
    """Weights of timm's DINOv3 with the names of its authors, and a bias of keys that is masked."""
    names = {'gamma_([12])': r'ls\1.gamma', 'reg_token': 'storage_tokens', 'mlp.fc1_g': 'mlp.w1', 'mlp.fc1_x': 'mlp.w2'}
    is_gated = any('fc1_g' in name for name in weights)
    renamed = {}
    for name, tensor in weights.items():
        for pattern, new in {**names, **({'mlp.fc2': 'mlp.w3'} if is_gated else {})}.items():
            name = re.sub(pattern, new, name)
        renamed[name] = tensor
    for name in [name for name in renamed if name.endswith('.q_bias')]:
        q, v = renamed.pop(name), renamed.pop(name.replace('.q_', '.v_'))
        qkv = name.replace('q_bias', 'qkv.bias')
        renamed[qkv] = torch.cat([q, torch.full_like(q, mask), v])
        renamed[f'{qkv}_mask'] = torch.cat([torch.ones_like(q), torch.zeros_like(q), torch.ones_like(v)])
    return {**renamed, 'mask_token': torch.ones(1, 24), 'rope_embed.periods': torch.ones(3)}


CHECKPOINTS: dict[str, Checkpoint] = {
    'cpvt_mm pyramid': Checkpoint('cpvt_mm', lambda: shaken(PyramidCPVT(NARROW)).state_dict(), PyramidCPVT,
                                  dict(arch=NARROW)),
    'cpvt_mm plain': Checkpoint('cpvt_mm', lambda: shaken(build(CPVT, **PLAIN)).state_dict(), CPVT, PLAIN),
    'Twins of the authors': Checkpoint('twins or timm', partial(golden, 'official'), PyramidCPVT, dict(arch=NARROW)),
    'timm Twins': Checkpoint('twins or timm', partial(golden, 'timm'), PyramidCPVT, dict(arch=NARROW)),
    'mmseg Twins': Checkpoint('mmseg', partial(golden, 'mmseg'), PyramidCPVT, dict(arch=NARROW, norm_eps=1e-5)),
    'timm DeiT': Checkpoint('timm', partial(golden, 'deit_timm'), CPVT, PLAIN),
    **{name: Checkpoint(fmt, partial(of_peer, name), CPVT if 'ViT' in name else PyramidCPVT, {'arch': SIZES, **options})
       for name, (fmt, _, options) in PEERS.items()},
    **{f'{library} {kind}': Checkpoint(
        'timm' if (library, kind[:6]) == ('timm', 'dinov2') else f'{library}-{kind[:6]}',
        partial(of_dino, library, kind), CPVT, options_of_dino(library, kind))
       for library in dino.LIBRARIES for kind in dino.PATCH_SIZES},
    'DINOv2 of the authors, gated': Checkpoint(
        'timm', lambda: authors_of_dinov2(of_dino('timm', 'dinov2-swiglu')), CPVT,
        options_of_dino('timm', 'dinov2-swiglu')),
    **{f'{kind} of the authors': Checkpoint(
        'timm-dinov3', partial(lambda kind: authors_of_dinov3(of_dino('timm', kind)), kind), CPVT,
        options_of_dino('timm', kind)) for kind in ('dinov3', 'dinov3-swiglu')},
    **{f'timm {name}': Checkpoint(
        'timm-rope-' + name.split('-')[3], partial(lambda name: of_timm(name).state_dict(), name), CPVT,
        options_of(name)) for name in ROPE_VIT},
}
