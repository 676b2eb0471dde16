"""The work of the `pylog` commands: functions with values in and values out; `logstore.cli` prints.

`dump`, what stands in the files of a segment; `describe`, what there is to say of a topic beside its records; `verify`,
which reads a whole store and says what is damaged; `console`, lines to records and back, and `typed_console`, to rows
of columns; `topic_patterns`, topics by name or by regular expression; `schemas`, as rows and as options say them;
`dead_letters`, which there are, and how they are sent again; `top`, what moves between two looks.
"""
