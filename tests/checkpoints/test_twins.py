import torch

from cpvt_mm import PyramidCPVT
from cpvt_mm.checkpoints import rename_twins
from tests.conftest import GOLDEN, NARROW


def test_every_name_of_the_original_backbone_has_one_here() -> None:
    weights = torch.load(GOLDEN / 'official.pth', weights_only=True)
    renamed = rename_twins(weights)
    assert len(renamed) == len(weights)
    left = set(renamed) - set(PyramidCPVT(NARROW).state_dict())
    assert all(name.startswith(('norm.', 'head.')) for name in left)


def test_other_names_stay() -> None:
    assert list(rename_twins({'head.weight': torch.zeros(1), 'blocks': torch.zeros(1)})) == ['head.weight', 'blocks']
