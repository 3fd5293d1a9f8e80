"""What a site and the coordinator exchange within a round, free of methods: each protection's steps at the site."""
