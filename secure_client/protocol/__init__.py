"""Protocol of a site below the methods: set-up, journal, order of phases, exchanges."""
