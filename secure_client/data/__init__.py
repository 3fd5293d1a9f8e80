"""Data of a site: its sources, and the preprocessing that the federation agreed on."""

from secure_client.data.site_data import SiteData, load_site_data

__all__ = ["SiteData", "load_site_data"]
