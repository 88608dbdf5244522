"""Whole processes and real servers: what holds when they race, are killed, stopped, cut off and promoted."""
