"""The one kind of failure that the demo explains in a line instead of a traceback."""


class DemoError(Exception):
    """Something the person at the keyboard can put right; the message says how."""
