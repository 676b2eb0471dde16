"""Record batches: the bytes of the log, their codecs, and the way to Arrow and back. No file, no clock.

From the ground up: `compression` (the codecs), `varints` and `columns` (Arrow columns as addresses); `batch`, the
header as a view over bytes, its CRC and stamps; `keyed`, small ones of records with keys; `foreign`, messages of other
formats; `marker`, the batch that ends a transaction; `framing`, the schema id before data; `addresses`, rows for
`kernels`, the loops over records in numba, `compiled_code`, where they are kept, and `few`, in Python; `times`, moments
and lengths of time as callers give them; `tables`, what callers have as Arrow; `rows`, what an append was given;
`encoding`, the way from there to batches; `key_map`, keys and their last offsets, `compaction`, which records of stored
batches stay, and `latest`, the last of each key; `schema`, the columns of records; `decoding`, the kernels' way there,
and `arrow`, the way for readers, which loads the kernels once they are worth it; `partitioner`, which partition a row
goes to; `counting`, records by the headers of batches.

`batch`, `keyed`, `foreign`, `marker`, `framing`, `times`, `varints`, `tables` and `compression` need neither numba nor
numpy nor pyarrow; the others load them, so import those where they are used.
"""
