"""What a real GPU does, recorded once and compared for ever.

    python -m tests.gpu_truth.record --out DIR --seconds 400     on the machine with the card, or under `gpumem run`
    python -m tests.gpu_truth.compare [DIR]                      the recording beside gpumem's predictions

A recording belongs under `tests/data/gpu/`; `test_recordings.py` then replays it with every run of the tests.
"""
