"""The fold map of a model that another tool folded: `recover` finds its norms in a checkpoint."""

from __future__ import annotations

from .checkpoint import Checkpoint, read_checkpoint
from .recover import Recovered, recover

__all__ = ["Checkpoint", "Recovered", "read_checkpoint", "recover"]
