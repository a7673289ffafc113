#!/bin/sh
# The compiler of `make test-sanitizers`: an access out of bounds, or undefined behaviour, ends the process.
exec c++ -fsanitize=address,undefined -fno-sanitize-recover=undefined "$@"
