from .cpvt import CPVT, PLAIN_ARCHS
from .pyramid_cpvt import ARCHS, PyramidCPVT

__all__ = ['ARCHS', 'CPVT', 'PLAIN_ARCHS', 'PyramidCPVT']
