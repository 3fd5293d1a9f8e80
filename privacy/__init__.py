"""Differential privacy: mechanisms, accounting and the ledger, without network code or agreements."""
