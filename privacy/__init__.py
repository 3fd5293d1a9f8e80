"""Differential privacy: mechanisms, accounting and the ledger. Knows no network and no agreement."""
