"""Branches: linear maps of one value whose results are added, and their sum as one layer."""
