from .deit import rename_deit
from .twins import rename_twins

__all__ = ['rename_deit', 'rename_twins']
