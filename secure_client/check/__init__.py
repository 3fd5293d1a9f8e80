"""Checks of ``protoseal client check``: a dry run of a site."""
