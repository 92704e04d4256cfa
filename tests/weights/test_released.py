import pytest

from cpvt_mm import PLAIN_ARCHS, PYRAMID_ARCHS
from cpvt_mm.errors import UserError
from cpvt_mm.weights.fetching import CHECKSUM
from cpvt_mm.weights.formats import FORMATS
from cpvt_mm.weights.released import RELEASED, find_released


@pytest.mark.parametrize('name', RELEASED)
def test_released_weights_name_a_backbone_and_files_of_a_known_format(name: str) -> None:
    released = RELEASED[name]
    assert released.arch in {'PyramidCPVT': PYRAMID_ARCHS, 'CPVT': PLAIN_ARCHS}[released.backbone]
    formats = {known for fmt in FORMATS if fmt.backbone == released.backbone for known in fmt.names}
    assert set(released.files.values()) <= formats
    urls = list(released.files)
    assert all(url.startswith('https://') for url in urls)
    assert CHECKSUM.search(urls[0]) and f'_{released.arch}' in urls[0] and f'_{released.arch}' in urls[1]
    assert 0 < released.top1 < 100 and 'arXiv' in released.source


def test_weights_are_found_by_their_name_and_by_their_urls() -> None:
    released = RELEASED['pyramid-cpvt-small']
    assert find_released('cpvt_mm://pyramid-cpvt-small') is released
    assert all(find_released(url) is released for url in released.files)
    assert find_released('https://example.org/a.pth') is None and find_released('a.pth') is None


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match=r'cpvt_mm://pyramid-cpvt-smal is not .*: did you mean pyramid-cpvt-small; '
                                        r'there are cpvt_mm://pyramid-cpvt-small, .*cpvt_mm://deit-base\.$'):
        find_released('cpvt_mm://pyramid-cpvt-smal')
