"""Running jobs: lanes of turns, a heart that beats, the execution of one job, and the one-shot drain."""
