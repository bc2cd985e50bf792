"""Parity: what gpumem predicts against unmodified CUDA PyTorch on the virtual GPU, event by event."""
