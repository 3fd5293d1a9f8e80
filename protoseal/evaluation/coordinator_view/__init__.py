"""Search of the messages that a coordinator recorded for any site's prototypes."""
