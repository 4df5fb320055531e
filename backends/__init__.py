"""Writers of model formats, with fold maps and the runtime."""
