"""mmseg's data preprocessor."""
from cpvt_mm.registry import MODELS
from cpvt_mm.stack import require

from .sizes import TellsValidSizes

require('mmseg')

from mmseg.models.data_preprocessor import SegDataPreProcessor as MMSegDataPreProcessor  # noqa: E402


@MODELS.register_module()
class SegDataPreProcessor(TellsValidSizes, MMSegDataPreProcessor):
    """mmseg's SegDataPreProcessor with the same arguments. It attaches image sizes to batches for `padding='exact'`.

    It does so in training, and in tests with a `test_cfg` that pads. Windows of sliding inference count as images that
    fill the batch.
    """
