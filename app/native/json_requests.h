/* Inference requests by their JSON part. */
#pragma once

#include "module.h"

/* What holds a request: its JSON part lies from `start` to `json_end`, its binary tensors from there to `end`. */
struct body {
    PyObject *object, *model, *version;
    const char *bytes; /* of `object` */
    Py_ssize_t start, json_end, end;
};

/* What a request wants of its response: see `HttpInfer`. */
struct wishes {
    char is_binary, needs_json;
};

/* Whether these are the types of `read_json`; sets an error. */
int are_json_types(PyObject *types);

/* Return the `InferRequest` of a body, of these types; NULL, in general without an error, where Python has to read
it. `max_size`: of a tensor that is given as JSON, in bytes. */
PyObject *read_json_request(PyObject *types, const struct body *body, unsigned long long max_size, struct wishes *wishes);

PyObject *json_data(PyObject *module, PyObject *arguments);
