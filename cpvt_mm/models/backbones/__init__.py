from .pyramid_cpvt import ARCHS, PyramidCPVT

__all__ = ['ARCHS', 'PyramidCPVT']
