"""Weight formats of DINOv2 (arXiv 2304.07193), DINOv3 (arXiv 2508.10104), and other ViTs with the same parts."""
from .members import ROTARY
from .plain import BLOCK, REGISTERS, STEM, TABLE, PlainFormat
from .renaming import below, block

Q_KV_BIAS = (BLOCK + 'attn.q.bias', BLOCK + 'attn.kv.bias')

# timm, and the files of DINOv3's authors. Keys have no bias, or one that is masked.
TIMM_DINOV3 = PlainFormat(
    'timm-dinov3', 'CPVT', (STEM, 'blocks.0.attn.qkv.weight', 'storage_tokens|blocks.0.gamma_1'),
    {
        ('blocks.{i}.mlp.fc1_g.{p}', 'blocks.{i}.mlp.fc1_x.{p}'): 'blocks.{i}.mlp.fc1.{p}',
        ('blocks.{i}.attn.q_bias', None, 'blocks.{i}.attn.v_bias'): Q_KV_BIAS,
        **block(BLOCK, BLOCK, 'attn.qkv.{p}', scale='gamma_{k}'),
        'reg_token': REGISTERS,
        'storage_tokens': REGISTERS,
        'blocks.{i}.ls{k}.gamma': 'blocks.{i}.ls{k}.gamma',
        ('blocks.{i}.mlp.w1.{p}', 'blocks.{i}.mlp.w2.{p}'): 'blocks.{i}.mlp.fc1.{p}',
        'blocks.{i}.mlp.w3.{p}': 'blocks.{i}.mlp.fc2.{p}',
    }, norm_eps=1e-5, encoding=ROTARY)

SCALE = 'layer_scale{k}.lambda1'
QKV = ('attention.q_proj.{p}', 'attention.k_proj.{p}', 'attention.v_proj.{p}')
TRANSFORMERS_DINOV2 = PlainFormat(
    'transformers-dinov2', 'CPVT',
    ('embeddings.patch_embeddings.projection.weight', 'encoder.layer.0.layer_scale1.lambda1'),
    {
        **below('embeddings.', {
            'cls_token': 'cls_token',
            'register_tokens': REGISTERS,
            'position_embeddings': TABLE,
            'patch_embeddings.projection.{p}': 'patch_embed.proj.{p}',
        }),
        **block('encoder.layer.{i}.', BLOCK, tuple(f'attention.attention.{part}.{{p}}' for part in (
            'query', 'key', 'value')), 'attention.output.dense', scale=SCALE),
        **block('encoder.layer.{i}.', BLOCK, QKV, 'attention.o_proj', scale=SCALE),  # from transformers 5 on
        **below('encoder.layer.{i}.mlp.', {  # gated MLPs
            'weights_in.{p}': 'blocks.{i}.mlp.fc1.{p}',
            'weights_out.{p}': 'blocks.{i}.mlp.fc2.{p}',
            ('gate_proj.{p}', 'up_proj.{p}'): 'blocks.{i}.mlp.fc1.{p}',
            'down_proj.{p}': 'blocks.{i}.mlp.fc2.{p}',
        }),
        'layernorm.{p}': 'norm.{p}',
    })

LAYERS = ('layer.{i}.', 'model.layer.{i}.')  # the latter from transformers 5 on
TRANSFORMERS_DINOV3 = PlainFormat(
    'transformers-dinov3', 'CPVT', ('embeddings.patch_embeddings.weight', 'embeddings.register_tokens'),
    {
        **below('embeddings.', {
            'cls_token': 'cls_token',
            'register_tokens': REGISTERS,
            'patch_embeddings.{p}': 'patch_embed.proj.{p}',
        }),
        **{names: names_here for layer in LAYERS for names, names_here in {
            (f'{layer}mlp.gate_proj.{{p}}', f'{layer}mlp.up_proj.{{p}}'): 'blocks.{i}.mlp.fc1.{p}',  # gated MLPs
            (f'{layer}attention.q_proj.bias', None, f'{layer}attention.v_proj.bias'): Q_KV_BIAS,
            **block(layer, BLOCK, QKV, 'attention.o_proj', fc=('mlp.up_proj', 'mlp.down_proj'), scale=SCALE),
        }.items()},
    }, norm_eps=1e-5, encoding=ROTARY)

FORMATS = (TIMM_DINOV3, TRANSFORMERS_DINOV2, TRANSFORMERS_DINOV3)
