"""IR text: the printer, the parser and the lexer they share."""
