"""Channel affines, their operands and constants: what one is, what scales it, and which operators
are one.
"""
