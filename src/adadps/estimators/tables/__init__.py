"""A linear model of a table: a public schema, rows of bounded norm, private training, a folder."""
