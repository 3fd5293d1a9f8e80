"""A site's data: where it comes from, and the form that the agreed preprocessing gives it."""

from secure_client.data.site_data import SiteData, load_site_data

__all__ = ["SiteData", "load_site_data"]
