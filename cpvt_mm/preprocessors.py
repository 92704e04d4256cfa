"""The data preprocessor of mmdet, which also passes the sizes of the images to the backbone."""
from cpvt_mm.registry import MODELS
from openmmlab_tools.libraries import require

require('mmdet')

from mmdet.models.data_preprocessors import DetDataPreprocessor as MMDetDataPreprocessor  # noqa: E402

from cpvt_mm.batch_invariance import TakesSeveralSizes  # noqa: E402


@MODELS.register_module()
class DetDataPreprocessor(TakesSeveralSizes, MMDetDataPreprocessor):
    """mmdet's DetDataPreprocessor, with the same arguments and results. With `padding='exact'`, you must use this
    class.

    It also passes the size of each image before padding to the backbone.
    """
