/* What the JSON part of an inference request says; `app/protocol/http/json_header.py` reads all of them. */
#pragma once

#include "json.h"

enum { MAX_ENTRIES = 32, MAX_DIMS = 16 };

/* A place in a client's shared memory. */
struct place {
    struct text region;
    uint64_t offset, nbytes;
    int is_given; /* any of these */
};

struct input {
    struct text name, source; /* `source`: its data, as it was given */
    enum datatype datatype;
    ptrdiff_t dims, start, end;
    uint64_t shape[MAX_DIMS];
    struct place place;
    char *data; /* of JSON */
    size_t size;
};

struct output {
    struct text name;
    struct place place;
    int is_binary, has_classification;
    uint64_t classification;
};

enum value_kind { TEXT, FLAG, WHOLE, REAL };

struct parameter {
    struct text key, text;
    enum value_kind kind;
    struct number number;
    int flag;
};

struct request {
    ptrdiff_t inputs, outputs, parameters;
    uint64_t max_size;
    struct text id;
    struct input input[MAX_ENTRIES];
    struct output output[MAX_ENTRIES];
    struct parameter parameter[MAX_ENTRIES];
};

/* Read a JSON part; 0 where Python has to. Whatever it returns, the caller frees the data of the inputs.

binary: bytes that its tensors have behind it.
max_size: bytes that a tensor given as JSON may have. */
int read_json_part(struct cursor *from, struct request *request, ptrdiff_t binary, uint64_t max_size);
