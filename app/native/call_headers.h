/* Header blocks of gRPC calls, read in full. */
#pragma once

#include "module.h"

extern PyTypeObject *header_decoder_type;

/* Decode a block to a `CallHead`, a new reference; NULL with an error, which ends the connection. */
PyObject *read_block(PyObject *decoder, const unsigned char *bytes, Py_ssize_t size);
