"""Record batches: the bytes of the log, their codecs, and the way to Arrow and back.

`batch` and `compression` need neither numba nor numpy nor pyarrow; `arrow` and `kernels` load them, so
import those where they are used.
"""
