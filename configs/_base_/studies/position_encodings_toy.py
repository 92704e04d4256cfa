# Compares position encodings on toy data, at test sizes from 0.75 to 3 times the training size.
_base_ = './position_encodings.py'
config = '../../toy/segformer_pyramid-cpvt-nano_toy-shapes-128x128.py'
tests = {f'{size} px': {'test_dataloader.dataset.pipeline.1.scale': (size, size)} for size in (96, 128, 192, 256, 384)}
metrics = ['mIoU']
