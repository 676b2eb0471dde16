"""The files of one partition: what they are called, what is in them, and where one looks.

From the ground up: `index` (.index, .timeindex, .txnindex) and `offset_checkpoints` (one offset per file: log start,
cleaned, tiered); `segment`, one .log file and its indexes; `segments.index_check`, whether those indexes speak of
its batches;
`deleted_files`, which stay for a while for those who still read them; `replacement`, a rewritten segment in the place
of old ones (`.cleaned`, then `.swap`, then the name itself); `directory`, the segments and the end of the log as all
processes see them; `lookup`, which finds by offset, bytes or time and touches nothing; `reader`, whole batches read.

An index is a hint: what it says counts only if the batch header there confirms it.
"""
