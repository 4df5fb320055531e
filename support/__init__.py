"""Foundation of every other room: errors, limits, records, files and output paths.

Imports nothing of irc.
"""
