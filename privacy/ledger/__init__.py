"""The privacy ledger: what was spent of a data set, durable before anything leaves."""
