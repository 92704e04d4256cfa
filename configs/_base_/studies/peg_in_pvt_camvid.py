# In a segmentor of streets, at the training size and twice that.
_base_ = './peg_in_pvt.py'
config = '../../camvid/upernet_pvtv2-b0-pretrained_camvid-192x256.py'
tests = {f'{ratio}x': {'test_dataloader.dataset.pipeline.1.scale': (256 * ratio, 192 * ratio)} for ratio in (1, 2)}
metrics = ['mIoU']
