"""The package that Spark looks for: Spark registers the DefaultSource of every top-level package named pyspark_*."""

from datasource.connector.source import PylogDataSource as DefaultSource

__all__ = ["DefaultSource"]
