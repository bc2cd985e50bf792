"""One feature of PyTorch, named by the argument; whatever it prints last is compared."""

import sys

import torch
from torch import nn


def lstm() -> object:
    network = nn.LSTM(64, 128, 2, batch_first=True, bidirectional=True, dropout=0.1).cuda()
    output, _ = network(torch.randn(4, 20, 64, device="cuda"))
    output.sum().backward()
    return tuple(output.shape)


def gru_amp() -> object:
    network = nn.GRU(64, 128).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        output, _ = network(torch.randn(20, 4, 64, device="cuda"))
    output.float().sum().backward()
    return tuple(output.shape)


def packed_lstm_with_projection() -> object:
    network = nn.LSTM(8, 16, proj_size=4).cuda()
    packed = nn.utils.rnn.pack_sequence([torch.randn(n, 8, device="cuda") for n in (5, 3)])
    return tuple(network(packed)[0].data.shape)


def linear_algebra() -> object:
    a = torch.eye(16, device="cuda")
    torch.linalg.cholesky(a)
    torch.linalg.svd(a)
    torch.linalg.solve(a, a)
    torch.linalg.qr(a)
    torch.linalg.eigh(a)
    return tuple(torch.linalg.inv(a).shape)


def fourier() -> object:
    x = torch.randn(4, 3, 32, 32, device="cuda", requires_grad=True)
    y = torch.fft.irfft2(torch.fft.rfft2(x))
    y.sum().backward()
    return tuple(torch.stft(x[0, 0], 16, window=torch.ones(16, device="cuda"), return_complex=True).shape)


def compiled_at_run_time() -> object:
    """Kernels that PyTorch has NVRTC compile: complex values, special functions, a program's own."""
    spectrum = torch.fft.rfft(torch.randn(4, 8, device="cuda", requires_grad=True))
    spectrum.abs().sum().backward()
    torch.special.bessel_j0(torch.ones(3, device="cuda"))
    double = torch.cuda.jiterator._create_jit_fn("template <typename T> T twice(T x) { return x + x; }")
    return tuple(spectrum.abs().shape), tuple(double(torch.ones(3, device="cuda")).shape)


def sparse() -> object:
    a = torch.eye(4).to_sparse().cuda().requires_grad_()
    torch.sparse.mm(a, torch.randn(4, 4, device="cuda")).sum().backward()
    return tuple((torch.eye(4).to_sparse_csr().cuda() @ torch.randn(4, 2, device="cuda")).shape)


def graph() -> object:
    layer, x, side = nn.Linear(64, 64).cuda(), torch.randn(4, 64, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        layer(x)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        layer(x)
    captured.replay()
    return captured.pool() is not None


def devices() -> object:
    x = torch.ones(1 << 20, device="cuda:1")
    y = x.to("cuda:0")
    return str(y.device), torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1)


def device_properties() -> object:
    properties = torch.cuda.get_device_properties(0)
    return properties.major, properties.minor, properties.multi_processor_count, properties.L2_cache_size


def nvml() -> object:
    return torch.cuda.device_count(), torch.cuda._raw_device_count_nvml()


print(repr(globals()[sys.argv[1]]()))
