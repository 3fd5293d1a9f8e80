"""Methods and protections of third parties: their types, registration and settings."""
