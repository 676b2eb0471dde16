"""The files of one partition.

From the ground up: `names`, every suffix and pattern; `index` (.index, .timeindex, .txnindex) and `offset_checkpoints`
(one offset per file: log start, cleaned, tiered); `end`, how far a segment is known; `source`, the bytes and indexes of
one segment, wherever they are stored; `segment_reader`, which finds and reads its batches; `segment`, one .log file
with its indexes, which grows; `formats`, what another program wrote there; `index_check`, whether those indexes fit its
batches; `replacement`, a rewritten segment in the place of old ones (`.cleaned`, then `.swap`, then the name itself),
which stay for a while for their readers; `closed`, size and times of segments that are not active; `directory`, the
segments and the end of the log as all processes see them; `lookup`, which finds by offset, bytes or time; `counting`,
records by the headers of their batches.

An index is a hint: an entry counts only if the batch header there confirms it.
"""
