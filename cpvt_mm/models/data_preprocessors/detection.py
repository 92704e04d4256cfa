"""mmdet's data preprocessor."""

from cpvt_mm.registry import MODELS
from cpvt_mm.stack import require

from .sizes import TellsValidSizes

require('mmdet')

from mmdet.models.data_preprocessors import DetDataPreprocessor as MMDetDataPreprocessor  # noqa: E402


@MODELS.register_module()
class DetDataPreprocessor(TellsValidSizes, MMDetDataPreprocessor):
    """mmdet's DetDataPreprocessor with the same arguments. It attaches image sizes to batches for `padding='exact'`."""
