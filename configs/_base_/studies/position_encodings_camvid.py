# Compares position encodings on street scenes, at test sizes from 0.5 to 2 times the training size.
_base_ = './position_encodings.py'
config = '../../camvid/segformer_pyramid-cpvt-nano_camvid-256x256.py'
tests = {f'{size} px': {'test_dataloader.dataset.pipeline.1.scale': (size, size)} for size in (128, 192, 256, 384, 512)}
metrics = ['mIoU']
