"""What other people measured on real GPUs, rebuilt and asked of gpumem."""
