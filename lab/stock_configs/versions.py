"""Lists versions of installed packages."""
from collections.abc import Sequence
from importlib.metadata import packages_distributions, version

LIBRARIES_AND_TORCH = ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg')
# Some models of mmdet and mmseg need them.
OPTIONAL = ('mmpretrain', 'lap', 'motmetrics', 'skimage', 'sklearn', 'transformers', 'fairscale', 'timm')


def versions(modules: Sequence[str]) -> str:
    """Returns the distributions of the installed modules among `modules`, with their versions."""
    distributions = packages_distributions()
    found = [distributions[module][0] for module in modules if module in distributions]
    return ', '.join(f'{name} {version(name)}' for name in found)
