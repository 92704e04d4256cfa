"""DINOv2 (arXiv 2304.07193), DINOv3 (arXiv 2508.10104), and ViTs of others with their parts."""
from .family import PlainArch

ARCHS = {  # beside those of DeiT; with mlp_mode='swiglu', the first is DINOv2's largest, the others are DINOv3's
    'giant': PlainArch(embed_dims=1536, depth=40, num_heads=24),
    'small-plus': PlainArch(embed_dims=384, depth=12, num_heads=6, mlp_ratio=6),
    'huge-plus': PlainArch(embed_dims=1280, depth=32, num_heads=20, mlp_ratio=6),
}
