"""A federation of Debian's maintainers."""
