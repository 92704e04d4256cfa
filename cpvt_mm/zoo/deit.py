"""DeiT (arXiv 2012.12877), a plain ViT, whose sizes are those of CPVT."""
from .family import PlainArch

ARCHS = {
    'tiny': PlainArch(embed_dims=192, depth=12, num_heads=3),
    'small': PlainArch(embed_dims=384, depth=12, num_heads=6),
    'base': PlainArch(embed_dims=768, depth=12, num_heads=12),
    'large': PlainArch(embed_dims=1024, depth=24, num_heads=16),
}
