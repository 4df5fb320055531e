"""Back to torch: fold the affines of a fold map in the nn.Module that was exported.

    result = irc.compile(model, args=(x,))
    applied = irc.backends.torch.apply(result.fold_map, model, result.model)

torch is imported when `apply` is called.
"""

from __future__ import annotations

from .application import Applied, apply

__all__ = ["Applied", "apply"]
