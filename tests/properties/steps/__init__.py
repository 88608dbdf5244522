"""What can happen in a walk. Most steps are plans: an operation, what the model does with it, what its caller learns.

Steps name workers, jobs and leases by small numbers, so that drawing one never depends on what happened before: a walk
that chance in the database leads elsewhere still draws the same steps. A step with nobody to make it does nothing.
"""
