"""Classifiers. Needs mmpretrain, so `cpvt_mm.models` does not import it."""
from .distilled_classifier import DistilledClassifier

__all__ = ['DistilledClassifier']
