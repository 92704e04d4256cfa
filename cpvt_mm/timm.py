"""Registers the backbones in timm: `import cpvt_mm.timm`, then `timm.create_model('pyramid_cpvt_small')`.

The `tu-` encoders of segmentation_models_pytorch and `TimmBackbone` of transformers also find the backbones.
"""
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from timm.models import FeatureInfo, PretrainedCfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from cpvt_mm.tokens.validation import check_choice

from .models import PyramidCPVT, create_backbone, list_backbones
from .models.backbone import Backbone, last_of
from .models.layers import Block, PyramidStage
from .zoo.members import MEMBERS

HUB = 'hf://'


def describe(name: str) -> PretrainedCfg:
    """Returns timm's description of a model: how to prepare images, the licence, and where timm finds weights, if there
    are any.
    """
    member = MEMBERS[name]
    mean, std = (tuple(round(value / 255, 6) for value in values) for values in member.normalization)
    on_hub = [file.removeprefix(HUB) for file in member.files if file.startswith(HUB)]
    stem = 'stages.0.' if member.backbone == 'PyramidCPVT' else ''
    return PretrainedCfg(
        hf_hub_id=on_hub[0] if on_hub else None, architecture=name.replace('-', '_'), mean=mean, std=std,
        num_classes=0, first_conv=f'backbone.{stem}patch_embed.proj', classifier='head',
        license=member.licence if member.files else None, **member.images)


class TimmModel(nn.Module):
    """A backbone with the methods that timm calls; `pretrained_cfg` is the result of `describe` as a dict."""

    def __init__(self, backbone: Backbone, pretrained_cfg: dict[str, Any]) -> None:
        super().__init__()
        self.backbone = backbone
        self.pretrained_cfg = self.default_cfg = pretrained_cfg

    def no_weight_decay(self) -> set[str]:
        """Returns the names of the parameters for which timm disables weight decay."""
        return {f'backbone.{name}' for name in self.backbone.no_weight_decay()}

    def group_matcher(self, coarse: bool = False) -> Callable[[str], int]:
        """Returns a function that maps the name of a parameter to the number of its layer (see the backbone's
        `get_layer_depth`).

        Each block is a layer. With `coarse`, each stage of a pyramid is a layer. `coarse` defaults to False.
        """
        ends = [sum(self.backbone.depths[:stage]) for stage in range(len(self.backbone.depths) + 1)]

        def layer(name: str) -> int:
            number, _ = self.backbone.get_layer_depth(name, 'backbone.')
            return sum(number > end for end in ends) if coarse else number

        return layer

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Sets whether the backward pass recomputes all blocks, like the backbone's `with_cp`. Defaults to True."""
        self.backbone.with_cp = enable
        for module in self.backbone.modules():
            if isinstance(module, PyramidStage):
                module.recompute = enable
            elif isinstance(module, Block):
                module.recompute_mlp = False


class Features(TimmModel):
    """A backbone that returns a list of maps, like timm's models with `features_only=True`; `feature_info` describes
    them.
    """

    def __init__(self, backbone: Backbone, info: FeatureInfo, pretrained_cfg: dict[str, Any]) -> None:
        super().__init__(backbone, pretrained_cfg)
        self.feature_info = info

    def forward(self, x: Tensor) -> list[Tensor]:
        """Returns one map `(B, C, ceil(H / stride), ceil(W / stride))` for each stride; `x` is `(B, in_chans, H, W)`.
        """
        return list(self.backbone(x))


class Classifier(TimmModel):
    """A backbone with a linear classifier on the pooled tokens of the last map. With 0 classes, it returns the pooled
    tokens.

    Args:
        backbone: The backbone; its last map is classified.
        maps: timm's `feature_info`: a dict for the map of each stage or block.
        pretrained_cfg: The result of `describe` as a dict.
        num_classes: The number of classes; 0 for no classifier.
        global_pool: 'token' for the class token, 'avg' for the mean of the cells, or '' to classify each token.
            Defaults to None: 'token' if the backbone has a class token, else 'avg'.

    Raises:
        ValueError: If `global_pool` is another text, or 'token' without a class token.
    """

    def __init__(self, backbone: Backbone, maps: list[dict[str, Any]], pretrained_cfg: dict[str, Any],
                 num_classes: int, global_pool: str | None = None) -> None:
        super().__init__(backbone, pretrained_cfg)
        self.num_features = self.head_hidden_size = backbone.out_channels[-1]
        self.num_prefix_tokens = getattr(backbone, 'num_extra_tokens', 0)
        self.has_cls_token = getattr(backbone, 'cls_token', None) is not None
        self.feature_info = maps
        self.forward_intermediates = backbone.forward_intermediates
        self.reset_classifier(num_classes, ('token' if self.has_cls_token else 'avg') if global_pool is None
                              else global_pool)

    def get_classifier(self) -> nn.Module:
        """Returns the last layer."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replaces the classifier by a random classifier, with the device, dtype and mode of the backbone.

        `global_pool` accepts the values of the class. Defaults to None, which keeps the present value.
        """
        if global_pool is not None:
            check_choice('global_pool', global_pool, ('', 'avg', *(['token'] if self.has_cls_token else [])))
            self.global_pool = global_pool
        self.num_classes = num_classes
        self.head = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        self.head.to(next(self.backbone.parameters())).train(self.backbone.training)

    def forward_features(self, x: Tensor) -> Tensor:
        """Returns the tokens after the last norm, `(B, E + H * W, C)`, where E is the number of extra tokens."""
        return cast(tuple[Tensor, object], self.backbone.forward_intermediates(x, indices=1))[0]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pools tokens `(B, E + H * W, C)` and returns logits `(B, num_classes)`, or with `pre_logits` the pooled
        tokens `(B, C)`.

        If `global_pool` is '', nothing is pooled: it returns logits `(B, E + H * W, num_classes)`, or the tokens.
        """
        if self.global_pool == 'token':
            x = x[:, 0]
        elif self.global_pool == 'avg':
            x = x[:, self.num_prefix_tokens:].mean(dim=1)
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits of images `(B, in_chans, H, W)`; with 0 classes, their pooled tokens (see `forward_head`).
        """
        return self.forward_head(self.forward_features(x))


def build(name: str, pretrained: bool = False, features_only: bool = False, in_chans: int = 3, num_classes: int = 0,
          global_pool: str | None = None, out_indices: int | Sequence[int] | None = None, output_stride: int = 32,
          **kwargs: Any) -> Features | Classifier:
    """Builds a model with the arguments of `timm.create_model`. Passes `kwargs` to `create_backbone`, which checks
    them.

    If the backbone is `pretrained`, the classifier is still random. With `features_only`, `out_indices` chooses the
    maps: a number selects the last stages or blocks, and a list selects stages or blocks by index, also by negative
    indices. Defaults to None: all four stages, or the last block.

    Raises:
        IndexError: If the model has no stage or block with such an index.
        ValueError: If `output_stride` is not 32.
    """
    if output_stride != 32:
        raise ValueError(f'output_stride is {output_stride}, but {name} has no dilation: leave it out.')
    config = describe(name).to_dict()
    with torch.device('meta'):
        last = create_backbone(name).out_indices[-1]
        whole = create_backbone(name, out_indices=tuple(range(last + 1)))
    maps = [dict(info, module=f'backbone.{info["module"]}') for info in whole.feature_info]
    if not features_only:
        if isinstance(whole, PyramidCPVT):  # exactly one norm at the end: PVT v2's last stage already has one
            kwargs |= dict(out_indices=(last,), out_norm=whole.stages[-1].norm is None)
        backbone = create_backbone(name, pretrained, in_channels=in_chans, **kwargs)
        return Classifier(backbone, maps, config, num_classes, global_pool)
    if out_indices is None:
        out_indices = len(whole.out_indices) if isinstance(whole, PyramidCPVT) else 1
    if isinstance(out_indices, int):
        out_indices = last_of(last + 1, out_indices)
    backbone = create_backbone(name, pretrained, in_channels=in_chans, out_indices=tuple(out_indices), **kwargs)
    return Features(backbone, FeatureInfo(maps, backbone.out_indices), config)


def _register(name: str) -> None:
    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        # timm passes pretrained_cfg, pretrained_cfg_overlay and cache_dir to each model; they are None by default.
        return build(name, pretrained, **{key: value for key, value in kwargs.items() if value is not None})

    create.__name__ = create.__qualname__ = name.replace('-', '_')
    create.__doc__ = f'Builds {name}; see `build`.'
    register_model(create)


default_cfgs = generate_default_cfgs({name.replace('-', '_'): describe(name) for name in list_backbones()})
for _name in list_backbones():
    _register(_name)
