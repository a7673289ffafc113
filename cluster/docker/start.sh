#!/bin/sh
# What the image runs: a shell, Python or a path as it is, as in tritonserver's image; other words are nereid's.
case "${1:-}" in
bash | sh | python | python3 | /*) exec "$@" ;;
esac
exec nereid "$@"
