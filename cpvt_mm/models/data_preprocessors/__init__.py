"""Data preprocessors of mmdet and mmseg that attach image sizes and clip lengths to batches.

Each needs its library, so `cpvt_mm.models` does not import them.
"""
