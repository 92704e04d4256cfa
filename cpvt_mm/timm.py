"""Registers the backbones in timm: `import cpvt_mm.timm`, then `timm.create_model('pyramid_cpvt_small')`.

The `tu-` encoders of segmentation_models_pytorch and `TimmBackbone` of transformers find them, too.
"""
from collections.abc import Sequence
from typing import Any

import torch
from timm.models import FeatureInfo, register_model
from torch import Tensor, nn

from .models import PyramidCPVT, create_backbone, list_backbones
from .models.backbone import Backbone
from .models.interfaces import last_of


class Features(nn.Module):
    """A backbone that returns a list of maps, as timm's models with `features_only=True`; `info` has its maps."""

    def __init__(self, backbone: Backbone, info: FeatureInfo) -> None:
        super().__init__()
        self.backbone = backbone
        self.feature_info = info

    def forward(self, x: Tensor) -> list[Tensor]:
        """Returns maps `(B, C, H / stride, W / stride)` of images `(B, in_chans, H, W)`, sizes rounded up."""
        return list(self.backbone(x))


class Classifier(nn.Module):
    """A backbone with a linear classifier of its last map's class token, or of the mean of its tokens if it has none.

    `maps` are those of all stages or blocks, see `maps_of`. With 0 classes, it returns the pooled features.
    """

    def __init__(self, backbone: Backbone, maps: list[dict[str, Any]], num_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.num_features = self.head_hidden_size = backbone.out_channels[-1]
        self.feature_info = maps
        self.forward_intermediates = backbone.forward_intermediates
        self.reset_classifier(num_classes)

    def get_classifier(self) -> nn.Module:
        """Returns the last layer."""
        return self.head

    def reset_classifier(self, num_classes: int) -> None:
        """Puts a random classifier in place of the present one, of the device, dtype and mode of the backbone."""
        self.num_classes = num_classes
        self.head = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        self.head.to(next(self.backbone.parameters())).train(self.backbone.training)

    def forward_features(self, x: Tensor) -> Tensor:
        """Returns the tokens after the last norm, `(B, E + H * W, C)` with E extra tokens."""
        tokens, _ = self.backbone.forward_intermediates(x, indices=1)
        return tokens

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Returns logits `(B, num_classes)` of tokens, or pooled features `(B, C)` if they are `pre_logits`."""
        has_token = getattr(self.backbone, 'cls_token', None) is not None
        pooled = x[:, 0] if has_token else x[:, getattr(self.backbone, 'num_extra_tokens', 0):].mean(dim=1)
        return pooled if pre_logits else self.head(pooled)

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits `(B, num_classes)`, or pooled features `(B, C)` if there are no classes."""
        return self.forward_head(self.forward_features(x))

    def no_weight_decay(self) -> set[str]:
        """Returns the names of parameters that get no weight decay."""
        return {f'backbone.{name}' for name in self.backbone.no_weight_decay()}


def build(name: str, pretrained: bool = False, features_only: bool = False, in_chans: int = 3, num_classes: int = 0,
          out_indices: int | Sequence[int] | None = None, output_stride: int = 32, pretrained_cfg: Any = None,
          pretrained_cfg_overlay: Any = None, cache_dir: Any = None, **kwargs: Any) -> Features | Classifier:
    """Builds a model with the arguments of `timm.create_model`.

    Args:
        name: One of `list_backbones()`.
        pretrained: See `create_backbone`. The classifier stays random. Defaults to False.
        features_only: Whether to return maps instead of logits. Defaults to False.
        in_chans: Channels of the images. Defaults to 3.
        num_classes: Number of classes. Defaults to 0: pooled features.
        out_indices: With `features_only`, stages or blocks: a number of last ones, or indices, also negative ones.
            Defaults to None: the four stages, or the last block.
        output_stride: Must be the default, 32: the backbones have no dilation.
        pretrained_cfg: Not supported, nor are `pretrained_cfg_overlay` and `cache_dir`; `TORCH_HOME` sets the folder.
        kwargs: Arguments of the backbone, such as `drop_path_rate`.

    Raises:
        ValueError: If an argument is not supported.
        IndexError: If there are fewer maps than `out_indices` asks for.
        TypeError: If the backbone has no such argument.
        UserError: See `create_backbone`.
    """
    if output_stride != 32:
        raise ValueError(f'output_stride is {output_stride}, but {name} has no dilation: leave it out.')
    if given := [value for value in (pretrained_cfg, pretrained_cfg_overlay, cache_dir) if value is not None]:
        raise ValueError(f'{name} loads the weights of cpvt_mm, not {given[0]!r}: leave it out.')
    with torch.device('meta'):
        last = create_backbone(name).out_indices[-1]
        whole = create_backbone(name, out_indices=tuple(range(last + 1)))
    if not features_only:
        options = dict(out_indices=(last,), out_norm=True) if isinstance(whole, PyramidCPVT) else {}
        backbone = create_backbone(name, pretrained, in_channels=in_chans, **options, **kwargs)
        return Classifier(backbone, maps_of(whole), num_classes)
    if out_indices is None:
        out_indices = len(whole.out_indices) if isinstance(whole, PyramidCPVT) else 1
    if isinstance(out_indices, int):
        out_indices = last_of(last + 1, out_indices)
    backbone = create_backbone(name, pretrained, in_channels=in_chans, out_indices=tuple(out_indices), **kwargs)
    return Features(backbone, FeatureInfo(maps_of(whole), backbone.out_indices))


def maps_of(backbone: Backbone) -> list[dict[str, Any]]:
    """Returns what timm tells of each map of a backbone that is in an attribute `backbone`."""
    return [dict(info, module=f'backbone.{info["module"]}') for info in backbone.feature_info]


def _register(name: str) -> None:
    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return build(name, pretrained, **kwargs)

    create.__name__ = create.__qualname__ = name.replace('-', '_')
    create.__doc__ = f'Builds {name}; see `build`.'
    register_model(create)


for _name in list_backbones():
    _register(_name)
