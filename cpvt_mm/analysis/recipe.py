"""What the results in a folder are of, so that those of something else never get among them."""
import json
from pathlib import Path
from typing import Any

from cpvt_mm.errors import UserError
from cpvt_mm.files import write_text


def check_recipe(folder: Path, recipe: dict[str, Any], what: str) -> bool:
    """Whether the results in a folder are of this recipe; False where there are none yet.

    Args:
        folder: Need not exist.
        recipe: All that makes the results; what JSON does not know counts as its text.
        what: The recipe's kind, for the message.

    Raises:
        UserError: If they are of another.
    """
    path = folder / 'recipe.json'
    if not path.exists():
        return False
    if path.read_text() != _text(recipe):
        raise UserError(f'{folder} holds results of another {what} (recipe.json): choose another --work-dir, or remove '
                        'that folder.')
    return True


def write_recipe(folder: Path, recipe: dict[str, Any]) -> None:
    """Makes the folder one for results of this recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / 'recipe.json', _text(recipe))


def _text(recipe: dict[str, Any]) -> str:
    return json.dumps(recipe, indent=1, sort_keys=True, default=str)
