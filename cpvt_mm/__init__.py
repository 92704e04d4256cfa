"""CPVT, a vision transformer with conditional position encodings, as a backbone for OpenMMLab."""
from .stack import require
from .version import __version__

require('mmengine')

from .models import ARCHS, PEG, PositionEncoding, PyramidCPVT  # noqa: E402

__all__ = ['ARCHS', 'PEG', 'PositionEncoding', 'PyramidCPVT', '__version__']
