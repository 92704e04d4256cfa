"""Registries of the package.

mmengine imports `<scope>.registry` by itself, so `type='cpvt_mm.PyramidCPVT'` is found from any OpenMMLab config.
"""
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import Registry

MODELS = Registry('model', parent=MMENGINE_MODELS, scope='cpvt_mm', locations=['cpvt_mm.models'])

# Parts of a backbone, never built by another scope: a root of its own.
POSITION_ENCODINGS = Registry(
    'position encoding', scope='cpvt_mm', locations=['cpvt_mm.models.position_encodings'])
