"""The commands of ``ninfer``, one module each.

A command module has ``HELP`` (one line), ``configure(parser)`` and ``run(args) -> int``.  At import
time it loads the standard library only, so that ``ninfer --help`` stays instant; whatever is heavy is
imported inside ``run``.
"""

NAMES: tuple[str, ...] = ("serve", "run", "inspect", "convert", "bench", "kernels")
