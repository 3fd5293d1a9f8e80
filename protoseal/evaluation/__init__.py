"""Evaluation of privacy and its price.

Each sub-package answers one question:

    coordinator_view    what the messages that a coordinator recorded give away
    privacy_accuracy    which accuracy a configuration reaches at each ε
    privacy_audit       whether a mechanism loses more privacy than it claims
"""
