"""Two passes for irc: `FuseHardSwish` by patterns, `MarkRelu6` by hand."""
