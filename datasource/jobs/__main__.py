"""`spark-submit datasource/jobs/__main__.py NAME --path DIR …`: the same as `pylog jobs NAME …`, in that session."""

from datasource.jobs.cli import main

main()
