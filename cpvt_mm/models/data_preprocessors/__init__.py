"""Data preprocessors of mmdet and mmseg whose batches tell how large their images are, and which are frames of a clip.

Each needs its library, so `cpvt_mm.models` imports neither.
"""
