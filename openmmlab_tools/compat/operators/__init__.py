"""The functions of `mmcv._ext` that mmdet and mmseg call, on torchvision's operators and plain torch.

They have the names and arguments that mmcv's wrappers pass, and fill the tensors that these hand over. Gradients come
from a pure function, which runs again in the backward pass.
"""
