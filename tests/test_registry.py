"""The backbone in configs of others, from an empty working directory."""
import subprocess
from collections.abc import Callable

import pytest

Run = Callable[[str], subprocess.CompletedProcess]
BUILD = '''
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
open('config.py', 'w').write({config!r})
cfg = Config.fromfile('config.py')
init_default_scope({scope!r})
model = MODELS.build(cfg.model)
print(type(model).__name__, type(model.backbone).__module__, *model.backbone.out_channels)
'''
MASK_RCNN = '''
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
model = dict(backbone=dict(_delete_=True, type='{type}', arch='nano'), neck=dict(in_channels=[32, 64, 128, 192]))
{imports}
'''
SEGMENTOR = '''
model = dict(type='EncoderDecoder', backbone=dict(type='{type}', arch='nano'),
             decode_head=dict(type='FCNHead', in_channels=192, channels=8, num_classes=3, num_convs=1))
{imports}
'''
IMPORT = "custom_imports = dict(imports=['cpvt_mm'])"


@pytest.mark.parametrize('scope, config, name, kind, imports', [
    ('mmdet', MASK_RCNN, 'MaskRCNN', 'cpvt_mm.PyramidCPVT', ''),
    pytest.param('mmdet', MASK_RCNN, 'MaskRCNN', 'PyramidCPVT', IMPORT, marks=pytest.mark.slow),
    pytest.param('mmseg', SEGMENTOR, 'EncoderDecoder', 'cpvt_mm.PyramidCPVT', '', marks=pytest.mark.slow),
    pytest.param('mmseg', SEGMENTOR, 'EncoderDecoder', 'PyramidCPVT', IMPORT, marks=pytest.mark.slow),
])
def test_one_line_in_a_config_is_enough(run_python: Run, scope: str, config: str, name: str, kind: str,
                                        imports: str) -> None:
    done = run_python(BUILD.format(config=config.format(type=kind, imports=imports), scope=scope))
    assert done.stdout.split() == [name, 'cpvt_mm.models.pyramid_cpvt', '32', '64', '128', '192'], done.stderr
