# Compares small backbones in one segmentor.
_base_ = './backbones.py'
config = '../../camvid/upernet_pyramid-cpvt-nano_camvid-192x256.py'
channels = {'model.decode_head.in_channels': [42, 84, 168, 252], 'model.auxiliary_head.in_channels': 168}
variants = {
    'PyramidCPVT nano': dict(),
    'ResNet-18': dict(config='../../camvid/upernet_r18_camvid-192x256.py'),
    'MiT-b0': dict(config='../../camvid/upernet_mit-b0_camvid-192x256.py'),
    'PVTv2-b0': dict(config='../../camvid/upernet_pvtv2-b0_camvid-192x256.py'),
    'PyramidCPVT nano, convolution in the MLP': dict(options=_base_.conv),
    'the same, for the time of PVTv2-b0': dict(options={**_base_.conv, **_base_.longer}),
    'the same, with the parameters of PVTv2-b0': dict(options={**_base_.conv, **_base_.wider, **channels}),
}
metrics = ['mIoU']
