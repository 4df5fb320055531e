"""The study of the tools: irc and others on the same models, judged without irc."""
