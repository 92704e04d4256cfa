"""Classifiers. They need mmpretrain, so `cpvt_mm.models` does not import them."""
from .distilled_classifier import DistilledClassifier

__all__ = ['DistilledClassifier']
