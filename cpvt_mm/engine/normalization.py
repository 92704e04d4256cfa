"""Checks that images are normalized for the number of channels of the backbone."""
from torch import Tensor, nn

from cpvt_mm.errors import UserError
from cpvt_mm.models import CPVT, PyramidCPVT


def check_normalization(model: nn.Module) -> None:
    """Checks that a data preprocessor has one mean, or as many means as its model's backbone has `in_channels`.

    Args:
        model: A detector, segmentor or classifier, or a model that contains several of them.

    Raises:
        UserError: If the numbers differ. Torch would silently broadcast a grey image to the number of means.
    """
    for part in model.modules():
        backbone = getattr(part, 'backbone', None)
        mean = getattr(getattr(part, 'data_preprocessor', None), 'mean', None)
        if (isinstance(backbone, CPVT | PyramidCPVT) and isinstance(mean, Tensor)
                and len(mean) not in (1, backbone.in_channels)):
            raise UserError(f'data_preprocessor.mean has {len(mean)} values, but backbone.in_channels is '
                            f'{backbone.in_channels}: give mean and std as many values, or one for all channels.')
