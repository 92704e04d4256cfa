"""Plain mask transformers: EoMT (arXiv 2503.19108) and PMT (arXiv 2603.25398).

Queries join the patches in the last blocks of a ViT, or in a small decoder. The backbones here predict masks, and the
heads classify the queries; Mask2Former of mmdet and mmseg does the rest.
"""
