"""One suite, run over every engine: what holds on one holds on all."""
