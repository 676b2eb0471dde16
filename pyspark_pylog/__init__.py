"""What Spark looks for: it registers the DefaultSource of every top-level package named pyspark_*."""

from datasource.connector.source import PylogDataSource as DefaultSource

__all__ = ["DefaultSource"]
