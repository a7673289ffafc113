#!/bin/sh
# sanitized.sh DIRECTORY PYTHON: compiles app/native into a directory with the sanitizers of GCC, and runs its tests.
set -e
export CFLAGS="-fsanitize=address,undefined -fno-sanitize-recover=undefined -Werror" LDFLAGS="-fsanitize=address,undefined"
CC=gcc "$2" setup.py -q build_ext --build-lib "$1/native" --build-temp "$1/native.o"
SANITIZED="$1/native" LD_PRELOAD="$(gcc -print-file-name=libasan.so)" "$2" -m pytest -p tests.unit.app.native.sanitized \
    tests/unit/app/native tests/unit/app/transport/memory tests/unit/app/transport/wire \
    tests/unit/app/transport/channel/test_ends.py tests/unit/app/transport/channel/test_shared_tensors.py \
    tests/unit/app/protocol/http/test_json_requests.py tests/unit/app/protocol/http/test_json_writer.py \
    tests/unit/app/ingress/rest/test_known_requests.py tests/unit/app/ingress/rest/test_known_client_memory.py \
    tests/unit/app/ingress/rest/test_known_responses.py \
    tests/unit/app/ingress/http2/test_planes.py tests/unit/app/ingress/http2/test_planes_responses.py \
    tests/unit/app/ingress/http2/test_planes_long.py \
    tests/unit/app/cost/test_tap.py tests/unit/deployments/replica/test_compiled_requests.py
