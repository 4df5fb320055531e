"""Writers of model formats, and what comes with them: fold maps and the runtime."""
