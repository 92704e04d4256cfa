"""Heads of classifiers. Needs mmpretrain, so `cpvt_mm.models` does not import it."""
from .distilled_head import DistilledHead

__all__ = ['DistilledHead']
