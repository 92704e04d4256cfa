import pytest
from mmengine.model import BaseDataPreprocessor, ImgDataPreprocessor
from torch import nn

from cpvt_mm import PyramidCPVT
from cpvt_mm.engine.normalization import check_normalization
from cpvt_mm.errors import UserError


def model(in_channels: int, preprocessor: nn.Module) -> nn.Module:
    detector = nn.Module()
    detector.backbone = PyramidCPVT('nano', in_channels=in_channels, out_indices=(0,))
    detector.data_preprocessor = preprocessor
    return nn.ModuleDict(dict(student=detector))


@pytest.mark.parametrize(('in_channels', 'means'), [(3, 3), (1, 1), (3, 1), (4, 1)])
def test_a_mean_for_each_channel_or_one_for_all(in_channels: int, means: int) -> None:
    check_normalization(model(in_channels, ImgDataPreprocessor(mean=[1.] * means, std=[2.] * means)))


def test_without_normalization_any_number_of_channels_will_do() -> None:
    check_normalization(model(4, ImgDataPreprocessor()))
    check_normalization(model(4, BaseDataPreprocessor()))
    check_normalization(nn.Linear(1, 1))


@pytest.mark.parametrize('in_channels', [1, 4])
def test_another_number_is_told(in_channels: int) -> None:
    with pytest.raises(UserError, match=rf'mean has 3 values, but backbone.in_channels is {in_channels}: give'):
        check_normalization(model(in_channels, ImgDataPreprocessor(mean=[1.] * 3, std=[2.] * 3)))
