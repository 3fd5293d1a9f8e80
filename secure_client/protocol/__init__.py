"""A site's half of the protocol below the methods: set-up, journal, order, exchanges."""
