"""A site's use of differential privacy: releases, their cost in a run, the site's ledger."""
