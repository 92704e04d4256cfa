"""mmseg's data preprocessor, which also tells the backbone about the batch. It needs mmseg."""
from cpvt_mm.models.padding import TellsSizes
from cpvt_mm.registry import MODELS
from openmmlab_runs.stack import require

require('mmseg')

from mmseg.models.data_preprocessor import SegDataPreProcessor as MMSegDataPreProcessor  # noqa: E402


@MODELS.register_module()
class SegDataPreProcessor(TellsSizes, MMSegDataPreProcessor):
    """mmseg's SegDataPreProcessor with the same arguments. It tells the image sizes, for `padding='exact'`.

    It does so in training, and in tests with a `test_cfg` that pads. Windows of sliding inference count as images that
    fill the batch.
    """
