"""Hooks of mmengine's runner."""
