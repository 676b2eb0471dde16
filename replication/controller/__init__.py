"""The controller, pure: which broker leads which partition, and who is told; see `machine`."""

from replication.controller.context import Controller, Limits
from replication.controller.events import Effect, Event
from replication.controller.machine import step

__all__ = ["Controller", "Effect", "Event", "Limits", "step"]
