"""Fused units: operators in a row that an affine passes or enters as one."""
