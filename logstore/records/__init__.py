"""Record batches: the bytes of the log, their codecs, and the way to Arrow and back. No file, no clock.

From the ground up: `compression` (the codecs) and `columns` (Arrow columns as addresses); `batch`, the header as a view
over bytes, its CRC and stamps; `kernels`, the loops over records in numba, and `compiled_code`, where they are kept;
`rows`, what an append was given; `compaction`, which records of stored batches stay; `arrow`, batches to Arrow and
back; `partitioner`, which partition a row goes to.

`batch` and `compression` need neither numba nor numpy nor pyarrow; the others load them, so import those where they are
used.
"""
