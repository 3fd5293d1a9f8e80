"""Files that a site leaves in its own folder."""
