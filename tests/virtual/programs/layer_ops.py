"""Sparse matrices, matrix products, attention, layers, quantization: by name, functions without arguments."""

from __future__ import annotations

import functools

import torch
from op_cases import CASES, CUDA, case, rand
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

# Sparse --------------------------------------------------------------------------------------------------------------


def _sparse(layout: torch.layout) -> torch.Tensor:
    dense = torch.eye(8)
    return dense.to_sparse(
        layout=layout, blocksize=(4, 4) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    ).cuda()


@case
def sparse_products() -> None:
    for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        a, x = _sparse(layout), rand(8, 4)
        torch.sparse.mm(a, x) if layout is torch.sparse_coo else a @ x
        a @ x[:, 0]
        torch.addmm(rand(8, 4), a, x)


@case
def sparse_by_sparse() -> None:
    for layout in (torch.sparse_coo, torch.sparse_csr):
        _sparse(layout) @ _sparse(layout)


@case
def sparse_backward() -> None:
    for layout in (torch.sparse_coo, torch.sparse_csr):
        a, x = _sparse(layout).requires_grad_(), rand(8, 4, grad=True)
        torch.sparse.mm(a, x).sum().backward()


@case
def sampled_addmm() -> None:
    torch.sparse.sampled_addmm(_sparse(torch.sparse_csr), rand(8, 4), rand(4, 8))


@case
def sparse_triangular_solve() -> None:
    torch.triangular_solve(rand(8, 2), _sparse(torch.sparse_csr))


@case
def sparse_solve() -> None:
    torch.sparse.spsolve(_sparse(torch.sparse_csr), rand(8))


@case
def sparse_softmax_and_coalesce() -> None:
    a = _sparse(torch.sparse_coo)
    torch.sparse.softmax(a, 1), torch.sparse.log_softmax(a, 0), (a + a).coalesce(), torch.sparse.sum(a, 0)


@case
def semi_structured_sparsity() -> None:
    dense = torch.tensor([0, 0, 1, 1], dtype=torch.float16, device=CUDA).tile((128, 32))
    compressed = torch.sparse.to_sparse_semi_structured(dense)
    compressed @ rand(128, 128, dtype=torch.float16)


@case
def two_out_of_four_cusparselt() -> None:
    dense = torch.tensor([0, 0, 1, 1], dtype=torch.float16, device=CUDA).tile((128, 32))
    torch._cslt_sparse_mm(torch._cslt_compress(dense), rand(128, 128, dtype=torch.float16))


# Products ------------------------------------------------------------------------------------------------------------


@case
def int8_product() -> None:
    a = torch.ones(32, 64, dtype=torch.int8, device=CUDA)
    torch._int_mm(a, torch.ones(16, 64, dtype=torch.int8, device=CUDA).t())


@case
def float8_product() -> None:
    a = torch.ones(32, 64, device=CUDA).to(torch.float8_e4m3fn)
    b = torch.ones(32, 64, device=CUDA).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=CUDA)
    torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


@case
def float8_product_by_rows() -> None:
    a = torch.ones(32, 64, device=CUDA).to(torch.float8_e4m3fn)
    b = torch.ones(32, 64, device=CUDA).to(torch.float8_e4m3fn).t()
    torch._scaled_mm(
        a, b, scale_a=torch.ones(32, 1, device=CUDA), scale_b=torch.ones(1, 32, device=CUDA), out_dtype=torch.bfloat16
    )


@case
def grouped_product() -> None:
    offsets = torch.tensor([16, 32], dtype=torch.int32, device=CUDA)
    torch._grouped_mm(rand(32, 64, dtype=torch.bfloat16), rand(2, 64, 32, dtype=torch.bfloat16), offs=offsets)


@case
def int4_product() -> None:
    packed = torch._convert_weight_to_int4pack(torch.zeros(64, 64, dtype=torch.uint8, device=CUDA), 4)
    scales = rand(4, 64, 2, dtype=torch.bfloat16)
    torch._weight_int4pack_mm(rand(8, 128, dtype=torch.bfloat16), packed, 32, scales)


@case
def int8_weights() -> None:
    weights = torch.ones(64, 128, dtype=torch.int8, device=CUDA)
    torch._weight_int8pack_mm(rand(8, 128, dtype=torch.bfloat16), weights, rand(64, dtype=torch.bfloat16))


@case
def products_by_both_libraries() -> None:
    for library in ("cublas", "cublaslt"):
        torch.backends.cuda.preferred_blas_library(library)
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64):
            a = rand(8, 16, 16, dtype=dtype, grad=True)
            (torch.bmm(a, a).sum() + (a[0] @ a[1]).sum() + torch.addmm(a[0, 0], a[0], a[1]).sum()).abs().backward()
    torch.backends.cuda.preferred_blas_library("default")


@case
def gelu_and_bias_in_the_product() -> None:
    torch._addmm_activation(rand(16), rand(8, 16), rand(16, 16), use_gelu=True)


# Attention -----------------------------------------------------------------------------------------------------------


def attention(backend: SDPBackend, dtype: torch.dtype, **options: object) -> None:
    q, k, v = (rand(2, 8, 64, 64, dtype=dtype, grad=True) for _ in range(3))
    with sdpa_kernel(backend):
        functional.scaled_dot_product_attention(q, k, v, **options).sum().backward()  # type: ignore[arg-type]


for _backend in (
    SDPBackend.MATH,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
):
    for _causal in (False, True):
        CASES[f"more:attention_{_backend.name.lower()}{'_causal' if _causal else ''}"] = functools.partial(
            attention, _backend, torch.bfloat16, is_causal=_causal
        )
        CASES[f"more:attention_{_backend.name.lower()}_dropout{'_causal' if _causal else ''}"] = functools.partial(
            attention, _backend, torch.float16, is_causal=_causal, dropout_p=0.125
        )


@case
def attention_with_a_mask() -> None:
    q = rand(2, 4, 32, 64, dtype=torch.float16, grad=True)
    functional.scaled_dot_product_attention(q, q, q, attn_mask=rand(32, 32, dtype=torch.float16)).sum().backward()


@case
def attention_with_fewer_keys() -> None:
    q, k = rand(2, 8, 32, 64, dtype=torch.bfloat16, grad=True), rand(2, 2, 32, 64, dtype=torch.bfloat16, grad=True)
    functional.scaled_dot_product_attention(q, k, k, enable_gqa=True).sum().backward()


@case
def attention_of_nested_tensors() -> None:
    parts = [rand(n, 4, 32, dtype=torch.float16) for n in (5, 9)]
    q = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    functional.scaled_dot_product_attention(q, q, q)


@case
def attention_of_varying_lengths() -> None:
    q = rand(14, 4, 32, dtype=torch.float16)
    starts = torch.tensor([0, 5, 14], dtype=torch.int32, device=CUDA)
    torch.ops.aten._flash_attention_forward(q, q, q, starts, starts, 9, 9, 0.0, False, False)


@case
def flex_attention_eager() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q = rand(1, 2, 128, 32)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cuda")
    flex_attention(q, q, q, block_mask=mask)


@case
def multihead_attention_fast_path() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True).cuda().eval()
    attention = nn.MultiheadAttention(64, 4, batch_first=True).cuda().eval()
    x = rand(2, 10, 64)
    with torch.inference_mode():
        layer(x), attention(x, x, x), attention(x, x, x, need_weights=False)
        nn.TransformerEncoder(layer, 2)(x, src_key_padding_mask=torch.zeros(2, 10, dtype=torch.bool, device=CUDA))


# Layers --------------------------------------------------------------------------------------------------------------


@case
def recurrent_layers() -> None:
    for layer in (nn.RNN(8, 16, 2), nn.LSTM(8, 16, 2, bidirectional=True), nn.GRU(8, 16), nn.LSTM(8, 16, proj_size=4)):
        layer.cuda()(rand(5, 3, 8, grad=True))[0].sum().backward()
    for cell in (nn.LSTMCell(8, 16).cuda(), nn.GRUCell(8, 16).cuda(), nn.RNNCell(8, 16).cuda()):
        out = cell(rand(3, 8, grad=True))
        (out[0] if isinstance(out, tuple) else out).sum().backward()


@case
def convolutions() -> None:
    for layer, shape in (
        (nn.Conv1d(8, 16, 3), (2, 8, 20)),
        (nn.Conv2d(8, 16, 3, groups=8), (2, 8, 20, 20)),
        (nn.Conv3d(8, 16, 3, dilation=2), (2, 8, 9, 9, 9)),
        (nn.ConvTranspose1d(8, 16, 3, stride=2), (2, 8, 20)),
        (nn.ConvTranspose2d(8, 16, 3, output_padding=1, stride=2), (2, 8, 20, 20)),
        (nn.ConvTranspose3d(8, 16, 3), (2, 8, 5, 5, 5)),
    ):
        for enabled in (True, False):
            with torch.backends.cudnn.flags(enabled=enabled):
                layer.cuda()(rand(*shape, grad=True)).sum().backward()


@case
def fused_convolution_and_bias() -> None:
    x, w = rand(2, 8, 8, 8), rand(8, 8, 3, 3)
    torch.cudnn_convolution_relu(x, w, rand(8), (1, 1), (1, 1), (1, 1), 1)
    torch.cudnn_convolution_add_relu(x, w, rand(2, 8, 6, 6), 1.0, rand(8), (1, 1), (0, 0), (1, 1), 1)


@case
def connectionist_loss() -> None:
    logits, targets = rand(50, 4, 20, grad=True), torch.randint(1, 20, (4, 10), device=CUDA)
    lengths, short = torch.full((4,), 50), torch.full((4,), 10)
    functional.ctc_loss(logits.log_softmax(2), targets, lengths, short).backward()
    # cuDNN's own takes targets and lengths of the host in 32 bits.
    host = torch.randint(1, 20, (40,), dtype=torch.int32)
    torch._cudnn_ctc_loss(logits.log_softmax(2), host, lengths.tolist(), short.tolist(), 0, False, False)


@case
def embedding_bags() -> None:
    tokens, offsets = torch.zeros(12, dtype=torch.long, device=CUDA), torch.tensor([0, 4, 8], device=CUDA)
    for mode in ("sum", "mean", "max"):
        nn.EmbeddingBag(20, 8, mode=mode).cuda()(tokens, offsets).sum().backward()
    nn.Embedding(20, 8, sparse=True).cuda()(tokens).sum().backward()


@case
def synchronized_batch_norm_of_one() -> None:
    nn.SyncBatchNorm(8).cuda().eval()(rand(2, 8, 4, 4))


@case
def grids_and_pools() -> None:
    x = rand(2, 3, 16, 16, grad=True)
    grid = functional.affine_grid(rand(2, 2, 3, grad=True), [2, 3, 8, 8])
    outputs = [
        *(functional.grid_sample(x, grid, mode=m, align_corners=False) for m in ("bilinear", "nearest", "bicubic")),
        *(functional.interpolate(x, scale_factor=2, mode=m) for m in ("nearest", "bilinear", "bicubic", "area")),
        functional.interpolate(x, size=(5, 7), mode="bicubic", antialias=True),
        functional.max_unpool2d(*functional.max_pool2d(x, 2, return_indices=True), [2]),
        functional.fractional_max_pool2d(x, 2, output_ratio=(0.5, 0.5)),
        functional.adaptive_max_pool2d(x, (5, 7)),
        functional.fold(functional.unfold(x, 3), (16, 16), 3),
        functional.pixel_shuffle(x.repeat(1, 4, 1, 1), 2),
    ]
    sum(o.sum() for o in outputs).backward()  # type: ignore[union-attr]


@case
def random_numbers() -> None:
    x = rand(100).abs()
    x.bernoulli_(), x.exponential_(), x.cauchy_(), x.log_normal_(), x.geometric_(0.5), x.random_()
    torch.poisson(x), torch.binomial(x, x), torch._standard_gamma(x), torch._sample_dirichlet(x)
    torch.randperm(1000, device=CUDA), torch.randperm(100_000, device=CUDA), torch.multinomial(x, 5, replacement=True)


# Quantized -----------------------------------------------------------------------------------------------------------


@case
def fake_quantized() -> None:
    one, zero = torch.ones(1, device=CUDA), torch.zeros(1, dtype=torch.int32, device=CUDA)
    torch.fake_quantize_per_tensor_affine(rand(8, 8, grad=True), one, zero, 0, 255).sum().backward()
    torch.fake_quantize_per_channel_affine(
        rand(8, 8), rand(8), torch.zeros(8, dtype=torch.int32, device=CUDA), 0, 0, 255
    )


@case
def quantized_tensors() -> None:
    quantized = torch.quantize_per_tensor(rand(8, 8), 0.1, 0, torch.qint8)
    quantized.dequantize()
    torch.quantize_per_channel(rand(8, 8), rand(8).abs(), torch.zeros(8, device=CUDA), 0, torch.qint8).dequantize()
