"""One file a format; `autotune.export.registry` lists them."""
