"""The pyramid CPVT: four stages with a PEG in each; with other options PVT, PVT v2 and the MiT of SegFormer."""
from collections.abc import Sequence
from typing import Any, Literal, cast

from mmengine.registry import MODELS as MMENGINE_MODELS
from torch import Tensor, nn

from cpvt_mm.registry import MODELS
from cpvt_mm.tokens.grid import grid_size, to_output
from cpvt_mm.tokens.layout import Cells, Layout
from cpvt_mm.tokens.validation import check_above, check_choice, check_frozen_stages, parse_indices
from cpvt_mm.zoo.families import PYRAMID_ARCHS
from cpvt_mm.zoo.family import STRIDES, PyramidArch, parse_arch

from .backbone import Backbone
from .init import InitCfg
from .layers import BlockSpec, PatchEmbed, PyramidStage, WithCp
from .pvt_parts import MLPS, PATCH_EMBEDS, REDUCTIONS, ClassTokenStage

PATCH_SIZES = (4, 2, 2, 2)
MLP_MODES = ('linear', 'conv', 'relu-conv')


# Also registered in mmengine's root: every OpenMMLab library finds the plain name once this package is imported.
@MMENGINE_MODELS.register_module()
@MODELS.register_module()
class PyramidCPVT(Backbone):
    """Pyramid vision transformer with the position encodings of CPVT (arXiv 2102.10882).

    The pyramid is Twins-PCPVT (arXiv 2104.13840, section 3.1); `create_backbone` names the options that make it PVT,
    PVT v2, or the MiT of SegFormer. Images may have any size: sides are zero-padded on the right and at the bottom to a
    multiple of a patch.

    Args:
        arch: Widths and depths: 'nano' (for trials on a CPU), 'tiny', 'small', 'base', 'large', another of
            `PYRAMID_ARCHS` (these are sizes only: `create_backbone` also sets the other options of PVT v2 and MiT), or
            a dict with `embed_dims`, `depths`, `num_heads`, `mlp_ratios` and `sr_ratios`, four ints each. Defaults to
            'small'.
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
        stage_norm: Whether a LayerNorm ends each stage, whose result is returned and handed on to the next stage, as in
            PVT v2 and SegFormer. Defaults to False.
        norm_eps: The eps of the LayerNorms in the blocks and after stages. Weights of mmseg's `PCPVT` need 1e-5.
            Defaults to 1e-6, as in the original.
        embed_norm_eps: The eps of the LayerNorms in patch embeddings and spatial reduction. In mmdet, mmseg, and PVT
            and PVT v2 of transformers it is 1e-6. Defaults to 1e-5, as in the originals.
        frozen_stages: -1 freezes nothing, 0 the first patch embedding, n >= 1 the first n stages. Frozen parts get no
            gradient and stay in eval mode. Defaults to -1.
        with_cp: Activation checkpointing. False: none. 'selective': the backward pass recomputes MLPs. True: it
            recomputes whole blocks. Defaults to False.
        sr_mode: Spatial reduction of keys and values. 'conv': by the arch's `sr_ratios`; attention costs the square of
            the number of pixels. 'pool': to 7 x 7 (PVT v2, arXiv 2106.13797, section 3.2); it is linear. Defaults to
            'conv'.
        patch_mode: 'disjoint': patches of 4 x 4 pixels, then 2 x 2 cells. 'overlap': convolutions of 7 x 7 with stride
            4, then 3 x 3 with stride 2 (PVT v2, section 3.2). Defaults to 'disjoint'.
        cls_token: Whether the cells of the last stage attend to a class token, too, which is not returned, as in the
            classifiers of PVT (arXiv 2102.12122, section 3.5). Defaults to False, as in its detectors.
        mlp_mode: 'linear'; 'conv', a zero-padded depthwise 3 x 3 convolution in front of each MLP's GELU (PVT v2,
            section 3.2); or 'relu-conv', with ReLU before this, as in its b2-li. Defaults to 'linear', as in the
            original.
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
        TypeError: If an argument is unknown, also of an encoding, or `position_encoding` or `init_cfg` has a wrong
            type.
    """

    parts = 'stages'
    patch_size = PATCH_SIZES[0]

    def __init__(self, arch: str | dict[str, Sequence[int]] = 'small', img_size: int | tuple[int, int] = 224,
                 in_channels: int = 3, out_indices: Sequence[int] = (0, 1, 2, 3),
                 position_encoding: dict[str, Any] | Sequence[dict[str, Any]] | None = dict(type='PEG'),
                 drop_rate: float = 0., attn_drop_rate: float = 0., drop_path_rate: float = 0.,
                 out_norm: bool = False, norm_eps: float = 1e-6, embed_norm_eps: float = 1e-5,
                 frozen_stages: int = -1, with_cp: WithCp = False, sr_mode: Literal['conv', 'pool'] = 'conv',
                 mlp_mode: Literal['linear', 'conv', 'relu-conv'] = 'linear',
                 patch_mode: Literal['disjoint', 'overlap'] = 'disjoint', stage_norm: bool = False,
                 cls_token: bool = False, padding: Literal['exact'] | None = None, init_cfg: InitCfg = None) -> None:
        super().__init__(in_channels, img_size, drop_rate, attn_drop_rate, drop_path_rate, with_cp, padding, init_cfg)
        spec = parse_arch(arch, PyramidArch, PYRAMID_ARCHS)
        check_above('norm_eps', norm_eps, 0)
        check_above('embed_norm_eps', embed_norm_eps, 0)
        check_choice('sr_mode', sr_mode, ('conv', 'pool'))
        check_choice('mlp_mode', mlp_mode, MLP_MODES)
        check_choice('patch_mode', patch_mode, PATCH_EMBEDS)
        for name, value in (('out_norm', out_norm), ('stage_norm', stage_norm), ('cls_token', cls_token)):
            check_choice(name, value, (False, True))
        if stage_norm and out_norm:
            raise ValueError('stage_norm and out_norm are True, but a map needs one norm: leave out_norm out.')
        if cls_token and (mlp_mode != 'linear' or sr_mode == 'pool' or spec.sr_ratios[-1] > 1):
            raise ValueError("cls_token is True, but the last stage has convolutions or spatial reduction, which take "
                             "cells only: leave cls_token out, as PVT v2 does.")
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
                               norm_eps=norm_eps, embed_norm_eps=embed_norm_eps, drop_rate=drop_rate,
                               attn_drop_rate=attn_drop_rate, with_cp=with_cp, make_mlp=MLPS[mlp_mode],
                               make_reduction=REDUCTIONS[sr_mode])
            patch_embed = PATCH_EMBEDS[patch_mode](spec.embed_dims[i - 1] if i else in_channels, spec.embed_dims[i],
                                                   PATCH_SIZES[i], embed_norm_eps)
            of_stage = rates[sum(spec.depths[:i]):sum(spec.depths[:i + 1])]
            make = ClassTokenStage if cls_token and i == len(STRIDES) - 1 else PyramidStage
            self.stages.append(make(patch_embed, grid_size(self.img_size, STRIDES[i]), blocks, of_stage,
                                    position_encoding, stage_norm))
        self.out_norm = out_norm
        self.out_norms = nn.ModuleDict({
            str(i): nn.LayerNorm(spec.embed_dims[i], eps=norm_eps) for i in indices if out_norm})
        self.finish()

    @property
    def stem(self) -> PatchEmbed:
        return cast(PyramidStage, self.stages[0]).patch_embed

    def tokens_after(self, parts: Sequence[int], x: Tensor, grid: Cells) -> list[tuple[Tensor, Layout]]:
        kept = []
        for i, stage in zip(range(max(parts) + 1), self.stages, strict=False):
            x, grid = stage(x, grid)
            if i in parts:
                kept.append((x, cast(Layout, grid)))
        return kept

    def norm_of(self, part: int) -> nn.Module:
        return self.out_norms[str(part)] if str(part) in self.out_norms else nn.Identity()

    def normed(self, x: Tensor, part: int) -> Tensor:
        return self.out_norms[str(part)](x) if self.out_norm else x

    def to_output(self, x: Tensor, grid: Layout) -> Tensor:
        """Returns the map of tokens, `(B, C, ceil(H / stride), ceil(W / stride))`, contiguous."""
        return to_output(*grid.unpack(x))

    def frozen_parts(self) -> list[nn.Module | nn.Parameter]:
        stages = range(self.frozen_stages)
        return [*([self.stem] if self.frozen_stages == 0 else ()), *(self.stages[i] for i in stages),
                *(self.norm_of(i) for i in stages)]
