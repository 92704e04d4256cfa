import pytest

from cpvt_mm.swap import CannotSwap
from cpvt_mm.swap.channels import adapt_heads, adapt_neck

OLD, NEW = (256, 512, 1024, 2048), (64, 128, 320, 512)


@pytest.mark.parametrize(('old', 'new', 'neck', 'becomes'), [
    (OLD, NEW, dict(in_channels=[256, 512, 1024, 2048]), dict(in_channels=[64, 128, 320, 512])),
    (OLD, NEW, dict(in_channels=(256, 512, 1024, 2048)), dict(in_channels=(64, 128, 320, 512))),
    (OLD, NEW, dict(in_channels=[2048, 1024, 512, 256]), dict(in_channels=[512, 320, 128, 64])),
    (OLD, NEW, dict(in_channels=2048), dict(in_channels=512)),
    (OLD, NEW, dict(), dict()),  # such as pooling
    ((768,) * 4, (384,) * 4, dict(embed_dim=768), dict(embed_dim=384)),  # Feature2Pyramid: one number for all maps
    # A neck that hands maps on has them among its outputs.
    ((512, 1024), (128, 320), dict(in_channels=(512, 1024), out_channels=(512, 1024, 512, 256)),
     dict(in_channels=(128, 320), out_channels=(128, 320, 512, 256))),
])
def test_necks_take_the_new_channels(old: tuple, new: tuple, neck: dict, becomes: dict) -> None:
    config = dict(type='FPN', num_outs=5, **neck)
    adapt_neck(config, old, new)
    assert config == dict(type='FPN', num_outs=5, **becomes)


@pytest.mark.parametrize('expected', [1024, [256, 512, 1024]])
def test_neck_that_does_not_fit_its_backbone_is_refused(expected: object) -> None:
    for key in ('in_channels', 'embed_dim'):
        with pytest.raises(CannotSwap, match=f'its neck FPN has {key} .*, but its backbone gives 256, 512'):
            adapt_neck({'type': 'FPN', key: expected}, OLD, NEW)


@pytest.mark.parametrize(('head', 'becomes'), [
    (dict(in_channels=2048, channels=512), dict(in_channels=512, channels=512)),
    (dict(in_channels=1024, in_index=2), dict(in_channels=320, in_index=2)),
    (dict(in_channels=1024, in_index=-2), dict(in_channels=320, in_index=-2)),
    (dict(in_channels=[512, 2048], in_index=(1, 3)), dict(in_channels=[128, 512], in_index=(1, 3))),
    (dict(in_channels=[256, 512, 1024, 2048]), dict(in_channels=[64, 128, 320, 512])),
    (dict(in_channels=2048, c1_in_channels=256), dict(in_channels=512, c1_in_channels=64)),
    (dict(in_channels=2048, channels=2048, num_convs=0), dict(in_channels=512, channels=512, num_convs=0)),
    (dict(in_channels=2048, channels=2048, num_convs=1), dict(in_channels=512, channels=2048, num_convs=1)),
])
def test_heads_of_mmseg_take_the_channels_of_their_index(head: dict, becomes: dict) -> None:
    for model, changed in ((dict(decode_head=head.copy()), dict(decode_head=becomes)),
                           (dict(auxiliary_head=[head.copy()]), dict(auxiliary_head=[becomes]))):
        adapt_heads(model, OLD, NEW)
        assert model == changed


def test_a_nested_head_is_adapted_by_its_index_alone() -> None:
    """512 is a width of the K-Net's own as well as of ResNet's second stage."""
    model = dict(decode_head=dict(kernel_generate_head=dict(in_channels=2048, in_index=3),
                                  kernel_update_head=[dict(in_channels=512)]))
    adapt_heads(model, OLD, NEW)
    assert model['decode_head'] == dict(kernel_generate_head=dict(in_channels=512, in_index=3),
                                        kernel_update_head=[dict(in_channels=512)])


def test_heads_of_a_single_map_are_adapted_by_their_value() -> None:
    model = dict(
        rpn_head=dict(in_channels=2048, out_channels=2048),
        roi_head=dict(bbox_roi_extractor=dict(out_channels=2048, featmap_strides=[16]),
                      bbox_head=dict(in_channels=2048, fc_out_channels=1024)))
    adapt_heads(model, (2048,), (320,))
    assert model == dict(
        rpn_head=dict(in_channels=320, out_channels=2048),
        roi_head=dict(bbox_roi_extractor=dict(out_channels=320, featmap_strides=[16]),
                      bbox_head=dict(in_channels=320, fc_out_channels=1024)))


@pytest.mark.parametrize('head', [
    dict(in_channels=512), dict(in_channels=2048, in_index=2), dict(in_channels=2048, in_index=4),
    dict(in_channels=[512], in_index=3),
])
def test_head_that_does_not_fit_its_backbone_is_refused(head: dict) -> None:
    with pytest.raises(CannotSwap, match=r'its decode_head has in_channels .* for in_index .*, but gets 256, 512'):
        adapt_heads(dict(decode_head=head), OLD, NEW)


def test_the_rest_of_a_resnet_as_a_head_is_refused() -> None:
    with pytest.raises(CannotSwap, match=r'roi_head.shared_head, ResLayer, is the last stage of the old backbone'):
        adapt_heads(dict(roi_head=dict(shared_head=dict(type='ResLayer'))), (1024,), (320,))
