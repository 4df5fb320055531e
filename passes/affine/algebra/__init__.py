"""Channel affines, the operators that are affines, and the constants that they scale."""
