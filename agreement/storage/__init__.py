"""Files and databases that both the coordinator and the sites keep."""
