from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("optax") else ["src/borat/jax/*"]  # the examples in its docstrings need it
