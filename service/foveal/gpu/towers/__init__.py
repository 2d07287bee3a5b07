"""The vision towers: what one must provide (`protocol`), those there are (`registry`), and their parts."""
