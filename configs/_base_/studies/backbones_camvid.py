# Compares small backbones in one segmentor, from random weights, with the same data and schedule.
variants = {
    'PyramidCPVT nano': dict(config='../../camvid/upernet_pyramid-cpvt-nano_camvid-192x256.py'),
    'ResNet-18': dict(config='../../camvid/upernet_r18_camvid-192x256.py'),
    'MiT-b0': dict(config='../../camvid/upernet_mit-b0_camvid-192x256.py'),
    'PVTv2-b0': dict(config='../../camvid/upernet_pvtv2-b0_camvid-192x256.py'),
}
metrics = ['mIoU']
