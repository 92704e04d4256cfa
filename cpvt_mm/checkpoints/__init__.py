from .twins import rename_twins

__all__ = ['rename_twins']
