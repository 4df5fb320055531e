"""Tools on the compiler: command line, verification, reports, certificates, recovery, int8."""
