"""The files of one partition.

From the ground up: `names`, every suffix and pattern; `index` (.index, .timeindex, .txnindex) and `offset_checkpoints`
(one offset per file: log start, cleaned, tiered); `end`, how far a segment is known; `segment`, one .log file and its
indexes; `formats`, what another program wrote there; `index_check`, whether those indexes fit its batches;
`replacement`, a rewritten segment in the place of old ones (`.cleaned`, then `.swap`, then the name itself), which stay
for a while for their readers; `closed`, size and
times of segments that are not active; `directory`, the segments and the end of the log as all processes see them;
`lookup`, which finds by offset, bytes or time.

An index is a hint: an entry counts only if the batch header there confirms it.
"""
