"""Reports for people: plots and one html page."""
