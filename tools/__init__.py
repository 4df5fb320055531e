"""What uses the compiler: the command line, verification, reports, certificates, recovery of fold
maps, int8 models.
"""
