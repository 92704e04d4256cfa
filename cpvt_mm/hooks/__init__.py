"""Hooks of mmengine's runner."""
from .checkpoint import DurableCheckpointHook

__all__ = ['DurableCheckpointHook']
