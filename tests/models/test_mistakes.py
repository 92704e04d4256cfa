"""Arguments and images that do not fit end in a sentence with the value and what is allowed."""
import pytest
import torch
from torch import Tensor

from cpvt_mm import CPVT, PyramidCPVT, SimpleFeaturePyramid, create_backbone
from tests.backbones import NARROW, NARROW_PLAIN
from tests.helpers import refusal
from tests.models.conftest import Build, assert_named, both

OF_BOTH = [
    (ValueError, dict(arch='huge'), ('huge', 'arch', 'tiny, small, base, large')),
    (ValueError, dict(in_channels=0), ('in_channels', 'at least 1')),
    (ValueError, dict(img_size=(224,)), ('img_size', '(224,)', 'height and a width')),
    (ValueError, dict(out_indices='0'), ('out_indices', 'sequence')),
    (ValueError, dict(out_indices=(3, 1)), ('out_indices', 'increasing')),
    (ValueError, dict(frozen_stages=1.), ('frozen_stages', '1.0')),
    (ValueError, dict(drop_path_rate=1.0), ('drop_path_rate', '[0, 1)')),
    (ValueError, dict(with_cp='all'), ('with_cp', 'all', 'selective')),
    (ValueError, dict(padding='same'), ("padding is 'same', but must be None or 'exact'.",)),
    (TypeError, dict(drop_path=0.1), ("'drop_path'",)),
    *((TypeError, dict(init_cfg=value), ('init_cfg', repr(value), 'a dict with a type'))
      for value in ('a.pth', dict(checkpoint='a.pth'), ['a.pth'])),
    (TypeError, dict(position_encoding=dict(type='PEG', kernel=3)), ("'kernel'",))]
OF_PYRAMID = [
    (dict(arch=dict(name='nano', sr_mode='mean')), ('sr_mode', 'mean', "'conv' or 'pool'")),
    (dict(arch=dict(name='nano', mlp_mode='glu')), ('mlp_mode', 'glu', "'linear' or 'conv'")),
    (dict(arch=['tiny']), ('tiny', 'arch')),
    (dict(arch={k: v for k, v in NARROW.items() if k != 'depths'}), ('arch', 'depths')),
    (dict(arch=dict(NARROW, width=3)), ('width', 'sr_ratios')),
    (dict(arch=dict(NARROW, depths=(2, 2, 2))), ('depths', '4 ints')),
    (dict(arch=dict(NARROW, depths=(2, 2, 0, 2))), ('depths', 'at least 1')),
    (dict(arch=dict(NARROW, num_heads=(1, 2, 3, 8))), ('num_heads', '3', 'divide', '40')),
    (dict(out_indices=(0, 4)), ('out_indices', '(0, 4)', '0 to 3')),
    (dict(out_indices=(0, 1), frozen_stages=3), ('frozen_stages', '-1 to 2')),
    (dict(out_norm=1), ('out_norm', '1', 'False or True')),
    (dict(arch='pvtv2-b0', out_norm=True), ('stage_norm and out_norm are True', 'leave out_norm out')),
    *((dict(norm_eps=value), ('norm_eps', repr(value), 'above 0')) for value in (0., True, 'auto'))]
OF_PLAIN = [
    (dict(arch=dict(embed_dims=48, depth=3)), ('arch', 'num_heads')),
    (dict(arch=dict(NARROW_PLAIN, width=3)), ('width', 'mlp_ratio')),
    (dict(arch=dict(NARROW_PLAIN, num_heads=5)), ('num_heads', '5', 'divide', '48')),
    (dict(arch=dict(name='tiny', patch_size=16.)), ('patch_size', '16.0', 'at least 1')),
    (dict(arch=dict(name='tiny', num_register_tokens=True)), ('num_register_tokens', 'True', 'at least 0')),
    (dict(arch=dict(name='tiny', mlp_mode='conv')), ('mlp_mode', 'conv', "'linear' or 'swiglu'")),
    (dict(arch=dict(name='tiny', layer_scale=0)), ('layer_scale is 0, but must be a number above 0',)),
    (dict(out_indices=(-13,)), ('out_indices', '(-13,)', 'from -12 to -1')),
    (dict(cls_token='False'), ('cls_token', "'False'", 'False or True')),
    (dict(out_type='patches'), ('patches', 'out_type', "'featmap' or 'cls_token' or 'gap' or 'raw'")),
    (dict(out_type='cls_token', cls_token=False), ('cls_token', 'gap')),
    (dict(out_indices=(2,), frozen_stages=4), ('frozen_stages', '-1 to 3')),
    (dict(position_encoding=dict(type='PEG', positions=(11,), target='qk')), ('positions', 'to 10')),
    (dict(out_indices=(2,), position_encoding=dict(type='PEG', positions=(3,))), ('positions', 'to 2')),
    (dict(arch=dict(embed_dims=18, depth=1, num_heads=3), position_encoding=dict(type='RotaryPE')),
     ('RotaryPE', 'multiple of 4', '18', '3', 'is 6'))]
OF_NECK = [
    (dict(in_channels=10), ('in_channels', '10', 'divisible by 4')),
    (dict(in_stride=14), ('14', 'in_stride', '8 or 16 or 32')),
    *((dict(strides=value), ('strides', repr(value), 'increasing powers of two')) for value in ((4, 12), (), (4, 4))),
    (dict(num_outs=3), ('num_outs', '3', 'at least 4'))]


@pytest.mark.parametrize(('build', 'error', 'kwargs', 'words'), [
    *((build, *case) for build in (PyramidCPVT, CPVT) for case in OF_BOTH),
    *((build, ValueError, *case) for build, cases in ((PyramidCPVT, OF_PYRAMID), (CPVT, OF_PLAIN)) for case in cases),
    *((SimpleFeaturePyramid, ValueError, {'in_channels': 16, **kwargs}, words) for kwargs, words in OF_NECK)])
def test_arguments(build: type, error: type[Exception], kwargs: dict, words: tuple[str, ...]) -> None:
    assert_named(error, words, build, **kwargs)


@pytest.mark.parametrize(('images', 'words'), [
    *((torch.ones(2, 3, 32, 32, dtype=dtype), f'images are {dtype}, but the weights are torch.float32')
      for dtype in (torch.uint8, torch.float16)),
    *((torch.ones(shape), f'images have shape {shape}, but must have (B, 3, H, W), H and W at least 1')
      for shape in ((2, 3, 0, 32), (3, 32, 32), (2, 32, 32, 3)))])
@both
def test_images(build: Build, images: Tensor, words: str) -> None:
    for run in (build(), build().forward_intermediates):
        assert words in refusal(run, images, error=ValueError)


@both
def test_intermediates(build: Build) -> None:
    image = torch.ones(1, 3, 32, 32)
    for error, words, model, kwargs in (
            (ValueError, "output_fmt is 'NHWC', but must be 'NCHW' or 'NLC'", build(), dict(output_fmt='NHWC')),
            (IndexError, '', build(), dict(indices=[9])), (IndexError, 'from 1 to 4', build(), dict(indices=0)),
            (ValueError, "padding is 'exact', but forward_intermediates", build(padding='exact'), {})):
        assert words in refusal(model.forward_intermediates, image, error=error, **kwargs)


@pytest.mark.parametrize('name, options, told', [
    ('pvtv2-b0', dict(in_chans=4),
     'pvtv2-b0 is a PyramidCPVT, which has no argument in_chans: did you mean in_channels?'),
    ('deit-tiny', dict(in_chans=4), 'deit-tiny is a CPVT, which has no argument in_chans: did you mean in_channels?'),
    ('deit-tiny', dict(depths=4), 'no argument depths: did you mean depth?'),
    ('pvtv2-b0', dict(drop_path=0.1), 'no argument drop_path: did you mean drop_path_rate?'),
    ('pvtv2-b0', dict(num_classes=0), 'no argument num_classes: it has arch, img_size, in_channels, '),
    ('pvtv2-b0', dict(variants=3), 'no argument variants: it has'),
    ('deit-tiny', dict(arch='small'), 'arch of deit-tiny is set by its name: leave it out, or build CPVT(arch=...)')])
def test_create_backbone_names_the_class_and_the_argument(name: str, options: dict[str, object], told: str) -> None:
    assert told in refusal(create_backbone, name, **options, error=TypeError)
