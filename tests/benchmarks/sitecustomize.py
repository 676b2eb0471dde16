"""Spark's processes run this first: kio loads Hypothesis where that is installed, as it is here, but not with users."""

import sys

sys.modules["hypothesis"] = None
