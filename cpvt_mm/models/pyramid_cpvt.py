"""The pyramid CPVT: four stages with a PEG in each; with other options PVT, PVT v2 and the MiT of SegFormer."""
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal

from mmengine.registry import MODELS as MMENGINE_MODELS
from torch import Tensor, nn

from cpvt_mm.archs import PYRAMID_ARCHS, STRIDES, PyramidArch, parse_arch
from cpvt_mm.registry import MODELS
from cpvt_mm.tokens.grid import to_output
from cpvt_mm.tokens.packing import Layout
from cpvt_mm.tokens.sizes import grid_size
from cpvt_mm.tokens.validation import check_above, check_choice, check_frozen_stages, parse_indices

from .backbone import Backbone
from .init_cfg import InitCfg
from .layers import BlockSpec, PatchEmbed, PyramidStage, WithCp
from .pvt_parts import MLPS, PATCH_EMBEDS, REDUCTIONS, ClassTokenStage

PATCH_SIZES = (4, 2, 2, 2)


# Also registered in mmengine's root: every OpenMMLab library finds the plain name once this package is imported.
@MMENGINE_MODELS.register_module(force=True)
@MODELS.register_module()
class PyramidCPVT(Backbone):
    """Pyramid vision transformer with the position encodings of CPVT (arXiv 2102.10882).

    The pyramid is Twins-PCPVT (arXiv 2104.13840, section 3.1); other archs make it PVT, PVT v2 or the MiT of SegFormer.
    Images may have any size: sides are zero-padded on the right and at the bottom to a multiple of a patch.

    Args:
        arch: 'nano' (for trials on a CPU), 'tiny', 'small', 'base', 'large', another name of `PYRAMID_ARCHS`, such as
            'pvtv2-b0', or a dict of the fields of `PyramidArch`: all sizes, or a `name` and what differs from it, as
            `dict(name='nano', mlp_mode='conv')`. Defaults to 'small'.
        img_size: Reference image size for position tables, in pixels: one side, or height and width. Defaults to 224.
        in_channels: Channels of the image. Pretrained weights for 3 channels are adapted. Defaults to 3.
        out_indices: Stages whose maps are returned, in increasing order; negative ones count from the end. Later stages
            are not built. Defaults to (0, 1, 2, 3).
        position_encoding: None, a config, or a list of configs that are combined; built once for each stage. Defaults
            to `dict(type='PEG')`.
        drop_rate: Dropout after patch embeddings and projections. Defaults to 0.
        attn_drop_rate: Dropout of attention weights. Defaults to 0.
        drop_path_rate: Stochastic depth rate of the last block; it rises linearly from 0 over all blocks. Defaults to
            0.
        out_norm: Whether a LayerNorm follows each returned map. Defaults to False.
        norm_eps: The eps of the LayerNorms in the blocks and after stages. Weights of mmseg's `PCPVT` need 1e-5.
            Defaults to 1e-6, as in the original.
        frozen_stages: -1 freezes nothing, 0 the first patch embedding, n >= 1 the first n stages. Frozen parts get no
            gradient and stay in eval mode. Defaults to -1.
        with_cp: Activation checkpointing. False: none. 'selective': the backward pass recomputes MLPs. True: it
            recomputes whole blocks. Defaults to False.
        padding: 'exact': an image in a padded batch gets the same features as alone (see `forward`). Defaults to None:
            its features depend on the sizes of the other images, as in other backbones.
        init_cfg: mmengine's initialisation config; type 'Pretrained' takes the arguments of `load_pretrained`. Defaults
            to None: random (see `init_parameters`).

    Attributes:
        out_channels (tuple[int, ...]): Channels of each returned map.
        strides (tuple[int, ...]): Stride of each returned map, in pixels.
        feature_info (FeatureInfo): Channels, stride and stage name of each returned map, in timm's form.

    Raises:
        ValueError: If a value is out of its range.
        TypeError: If an argument is unknown, also of an encoding, or `init_cfg` has a wrong type.
    """

    parts = 'stages'
    arch_fields = tuple(field.name for field in fields(PyramidArch))
    patch_size = PATCH_SIZES[0]

    def __init__(self, arch: str | dict[str, Any] = 'small', img_size: int | tuple[int, int] = 224,
                 in_channels: int = 3, out_indices: Sequence[int] = (0, 1, 2, 3),
                 position_encoding: dict[str, Any] | Sequence[dict[str, Any]] | None = dict(type='PEG'),
                 drop_rate: float = 0., attn_drop_rate: float = 0., drop_path_rate: float = 0.,
                 out_norm: bool = False, norm_eps: float = 1e-6, frozen_stages: int = -1, with_cp: WithCp = False,
                 padding: Literal['exact'] | None = None, init_cfg: InitCfg = None) -> None:
        super().__init__(in_channels, img_size, drop_rate, attn_drop_rate, drop_path_rate, with_cp, padding, init_cfg)
        spec = parse_arch(arch, PyramidArch, PYRAMID_ARCHS)
        check_above('norm_eps', norm_eps, 0)
        check_choice('out_norm', out_norm, (False, True))
        if spec.stage_norm and out_norm:
            raise ValueError('stage_norm and out_norm are True, but a map needs one norm: leave out_norm out.')
        indices = parse_indices(out_indices, len(STRIDES), 'stages')
        num_stages = indices[-1] + 1
        check_frozen_stages(frozen_stages, num_stages, 'stages')

        self.out_indices = indices
        self.depths = tuple(spec.depths[:num_stages])
        self.frozen_stages = frozen_stages
        self.norm_eps = norm_eps
        self.out_channels = tuple(spec.embed_dims[i] for i in indices)
        self.strides = tuple(STRIDES[i] for i in indices)

        # The rates depend on the whole depth, even if out_indices omits stages.
        depth = sum(spec.depths)
        rates = [drop_path_rate * block / max(depth - 1, 1) for block in range(depth)]
        self.stages = nn.ModuleList()
        for i in range(num_stages):
            blocks = BlockSpec(spec.embed_dims[i], spec.num_heads[i], spec.mlp_ratios[i], spec.sr_ratios[i],
                               norm_eps=norm_eps, embed_norm_eps=spec.embed_norm_eps, drop_rate=drop_rate,
                               attn_drop_rate=attn_drop_rate, with_cp=with_cp, make_mlp=MLPS[spec.mlp_mode],
                               make_reduction=REDUCTIONS[spec.sr_mode])
            patch_embed = PATCH_EMBEDS[spec.patch_mode](
                spec.embed_dims[i - 1] if i else in_channels, spec.embed_dims[i], PATCH_SIZES[i], spec.embed_norm_eps)
            of_stage = rates[sum(spec.depths[:i]):sum(spec.depths[:i + 1])]
            make = ClassTokenStage if spec.cls_token and i == len(STRIDES) - 1 else PyramidStage
            self.stages.append(make(patch_embed, grid_size(self.img_size, STRIDES[i]), blocks, of_stage,
                                    position_encoding, spec.stage_norm))
        self.out_norm = out_norm
        self.out_norms = nn.ModuleDict({
            str(i): nn.LayerNorm(spec.embed_dims[i], eps=norm_eps) for i in indices if out_norm})
        self.finish()

    @property
    def stem(self) -> PatchEmbed:
        first: Any = self.stages[0]
        return first.patch_embed

    def tokens_after(self, parts: Sequence[int], x: Tensor, grid: Layout) -> list[tuple[Tensor, Layout]]:
        stages: Any = self.stages
        after = []
        for i, stage in zip(range(max(parts) + 1), stages, strict=False):
            if i:  # the `stem` has embedded the image for the first stage
                x, grid = stage.patch_embed(x, grid)
            x = stage(x, grid)
            if i in parts:
                after.append((x, grid))
        return after

    def norm_of(self, part: int) -> nn.Module:
        return self.out_norms[str(part)] if str(part) in self.out_norms else nn.Identity()

    def to_output(self, x: Tensor, grid: Layout, part: int) -> Tensor:
        """Returns the map of the tokens of stage `part`, `(B, C, ceil(H / stride), ceil(W / stride))`, contiguous."""
        return to_output(*grid.unpack(self.out_norms[str(part)](x) if self.out_norm else x))

    def frozen_parts(self) -> list[nn.Module | nn.Parameter]:
        if self.frozen_stages == 0:
            return [self.stem]
        return [part for i in range(self.frozen_stages) for part in (self.stages[i], self.norm_of(i))]
