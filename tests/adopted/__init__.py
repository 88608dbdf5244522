"""Tables of other people, as queues."""
