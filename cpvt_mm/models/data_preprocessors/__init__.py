"""Data preprocessors of mmdet and mmseg whose batches tell how large their images are.

Each needs its library, so `cpvt_mm.models` imports neither.
"""
