"""The backbones; importing them registers them."""
from cpvt_mm.archs import PLAIN_ARCHS, PYRAMID_ARCHS

from .cpvt import CPVT
from .create import create_backbone, list_backbones
from .neck import SimpleFeaturePyramid
from .pyramid_cpvt import PyramidCPVT

__all__ = ['CPVT', 'PLAIN_ARCHS', 'PYRAMID_ARCHS', 'PyramidCPVT', 'SimpleFeaturePyramid', 'create_backbone',
           'list_backbones']
