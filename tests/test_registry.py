"""The backbone in configs of others, from an empty working directory."""
import subprocess
from collections.abc import Callable

import pytest

Run = Callable[[str], subprocess.CompletedProcess]
BUILD = '''
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
init_default_scope({scope!r})
for kind, imports in (('cpvt_mm.PyramidCPVT', []), ('PyramidCPVT', ['cpvt_mm'])):
    open('config.py', 'w').write({config!r} + f"custom_imports = dict(imports={{imports}})")
    cfg = Config.fromfile('config.py')
    cfg.model.backbone.type = kind
    model = MODELS.build(cfg.model)
    print(type(model).__name__, type(model.backbone).__module__, *model.backbone.out_channels)
'''
MASK_RCNN = '''
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
model = dict(backbone=dict(_delete_=True, arch='nano'), neck=dict(in_channels=[32, 64, 128, 192]))
'''
SEGMENTOR = '''
model = dict(type='EncoderDecoder', backbone=dict(arch='nano'),
             decode_head=dict(type='FCNHead', in_channels=192, channels=8, num_classes=3, num_convs=1))
'''


@pytest.mark.parametrize('scope, config, name', [
    ('mmdet', MASK_RCNN, 'MaskRCNN'),
    pytest.param('mmseg', SEGMENTOR, 'EncoderDecoder', marks=pytest.mark.slow),
])
def test_one_line_in_a_config_is_enough(scope: str, config: str, name: str, run_python: Run) -> None:
    done = run_python(BUILD.format(config=config, scope=scope))
    assert done.stdout.splitlines() == [f'{name} cpvt_mm.models.pyramid_cpvt 32 64 128 192'] * 2, done.stderr
