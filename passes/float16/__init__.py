"""float16: the operators that can have it, the constants, and where casts stand."""
