"""One file a format; `autotune.adopt.registry` lists them in the order in which they are asked."""
