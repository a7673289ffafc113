/* The check of a request against a model's configuration: what it does not pass goes to `app/core/config/request_check.py`. */
#pragma once

#include "messages.h"

typedef struct PlainCheck PlainCheck;

/* Return the batch size of a request that is plainly right, and the bytes of its inputs; 0 for one that needs every
check. Without an error. */
Py_ssize_t plain_rows(const PlainCheck *self, PyObject *request, Py_ssize_t *nbytes);

extern PyTypeObject *plain_check_type;

int add_plain_check(PyObject *module);
