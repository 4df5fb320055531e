"""float16 models of which every value is known to be finite: `irc compile --float16`."""
