"""Whether images are normalized for as many channels as the backbone takes."""
from torch import Tensor, nn

from cpvt_mm.errors import UserError
from cpvt_mm.models import CPVT, PyramidCPVT


def check_normalization(model: nn.Module) -> None:
    """Compares the means of data preprocessors with the `in_channels` of backbones beside them; one may serve all.

    Args:
        model: A detector, segmentor or classifier, or a model that holds several.

    Raises:
        UserError: If there are more or fewer. Torch would repeat a grey image for each mean.
    """
    for part in model.modules():
        backbone = getattr(part, 'backbone', None)
        mean = getattr(getattr(part, 'data_preprocessor', None), 'mean', None)
        if (isinstance(backbone, CPVT | PyramidCPVT) and isinstance(mean, Tensor)
                and len(mean) not in (1, backbone.in_channels)):
            raise UserError(f'data_preprocessor.mean has {len(mean)} values, but backbone.in_channels is '
                            f'{backbone.in_channels}: give mean and std as many, or one for all channels.')
