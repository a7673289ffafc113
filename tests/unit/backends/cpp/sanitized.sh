#!/bin/sh
# The compiler of `make test-sanitizers`: an access out of bounds, or undefined behaviour, ends the process. It runs
# without the sanitizer that tests have preloaded, which would watch the compiler too: three times as long.
unset LD_PRELOAD
exec c++ "$@" -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined
