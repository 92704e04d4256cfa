# Compares position encodings on street scenes that keep their aspect, at test sizes from 0.5 to 3 times the training
# size. At 0.75 times, 144 rows are no multiple of 32: the last stage pads half a row of its cells.
_base_ = './position_encodings.py'
config = '../../camvid/segformer_pyramid-cpvt-nano_camvid-192x256.py'
tests = {
    f'{ratio}x': {'test_dataloader.dataset.pipeline.1.scale': (int(256 * ratio), int(192 * ratio))}
    for ratio in (0.5, 0.75, 1, 1.5, 2, 3)
}
metrics = ['mIoU']
