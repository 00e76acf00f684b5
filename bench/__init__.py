"""Figures beside the peers': `python -m bench [NAME…]`; each NAME is a module here with `figures(options)`."""
