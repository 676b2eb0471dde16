"""UpdateFeatures beside a tree: the broker that raised the level tells it from then on, before any watch of its."""

from types import SimpleNamespace

from replication.broker.feature_level import FeatureLevel
from replication.broker.handlers.features import FeatureHandlers
from replication.model.features import SUPPORTED
from replication.protocol.features import Feature
from tests.support.interleaving import SteppedTree, run


def told(known):
    return next(feature for feature in known.features().all if feature.name == "pylog.version")


def test_the_broker_that_raised_it_tells_it_at_once():
    tree, known = SteppedTree(), FeatureLevel()
    context = SimpleNamespace(park=lambda: None, version=2)
    update = SimpleNamespace(feature="pylog.version", max_version_level=1, upgrade_type=1)
    run(tree.set("/controller_epoch", b"3"))
    assert told(known) == Feature("pylog.version", *SUPPORTED, 0)
    handlers = FeatureHandlers(known, lambda: tree)
    answer = run(handlers.update(context, SimpleNamespace(feature_updates=[update], validate_only=True)))
    assert (answer["error_code"], known.features().epoch) == (0, 0)
    answer = run(handlers.update(context, SimpleNamespace(feature_updates=[update], validate_only=False)))
    assert (answer["error_code"], known.features().epoch) == (0, 1)
    assert told(known) == Feature("pylog.version", *SUPPORTED, 1)
