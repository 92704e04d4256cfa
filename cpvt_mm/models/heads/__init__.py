"""Heads of classifiers. They need mmpretrain, so `cpvt_mm.models` does not import them."""
from .distilled_head import DistilledHead

__all__ = ['DistilledHead']
