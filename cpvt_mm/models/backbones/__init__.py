from .cpvt import CPVT
from .pyramid_cpvt import ARCHS, PyramidCPVT

__all__ = ['ARCHS', 'CPVT', 'PyramidCPVT']
