"""IR text: the printer, the parser and the lexer they share."""

from __future__ import annotations

from ...support.exports import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .parser import parse
    from .printer import side_data, to_text

__all__ = ["parse", "side_data", "to_text"]

__getattr__, __dir__ = lazy_exports(
    __name__, {"parser": ("parse",), "printer": ("side_data", "to_text")}
)
