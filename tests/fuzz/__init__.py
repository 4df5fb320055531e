"""Fuzzing: what strangers may hand to irc, mutated, and what has to come of it.

`corpus` has the seeds, `mutate` changes them, `targets` says what is run and what may come of it,
and `campaign` runs executions in child processes, so that a signal, a hang or too much memory is
seen and put down to one of them. A case is made from its target and a number alone: the number is
all that is needed to make it again.

    python tests/fuzz --target all --executions 200000
    python tests/fuzz --target importer --only 4711     one case, with its traceback
"""
