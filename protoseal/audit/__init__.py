"""Audits: whether a mechanism or a run loses more privacy than it claims, and what privacy costs.

Three subjects share this package:

    canaries       one run of a mechanism on records put in by coin flips (``canary_audit``)
    recorded runs  the noise, payments and answers that sites kept of a run (``run_audit``)
    views          what the messages that a coordinator recorded give away (``coordinator_view``)

Beside them stands the price: the accuracy that a configuration reaches at each ε (``budget_curve``).
"""
