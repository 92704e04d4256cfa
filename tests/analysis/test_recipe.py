from pathlib import Path

import pytest

from cpvt_mm.analysis.recipe import check_recipe, write_recipe
from cpvt_mm.errors import UserError


def test_a_folder_keeps_its_recipe(tmp_path: Path) -> None:
    folder = tmp_path / 'new/folder'
    assert not check_recipe(folder, dict(a=1), 'config')
    write_recipe(folder, dict(a=1, b=(2, Path('c'))))
    assert check_recipe(folder, dict(b=(2, Path('c')), a=1), 'config')
    with pytest.raises(UserError, match=r'holds results of another config \(recipe.json\): choose another --work-dir'):
        check_recipe(folder, dict(a=1, b=(3, Path('c'))), 'config')
