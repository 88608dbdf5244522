"""The tests: a mirror of src/dibs, the suites that span it, and the real servers they run on."""
