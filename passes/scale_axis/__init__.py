"""The parts of FoldScaleAxis: `plan` decides, `commit` writes."""
