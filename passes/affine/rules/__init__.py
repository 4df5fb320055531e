"""How an affine passes each operator: derived from rows, or written for layers and operators of
their own kind.
"""
