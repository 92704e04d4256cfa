"""mmseg's data preprocessor."""
from cpvt_mm.registry import MODELS
from cpvt_mm.stack import require

from .sizes import TellsValidSizes

require('mmseg')

from mmseg.models.data_preprocessor import SegDataPreProcessor as MMSegDataPreProcessor  # noqa: E402


@MODELS.register_module()
class SegDataPreProcessor(TellsValidSizes, MMSegDataPreProcessor):
    """mmseg's, with its arguments; its batches tell the sizes of their images to `padding='exact'`.

    In training, and with a `test_cfg` that pads; windows of sliding inference count as images that fill their batch.
    """
