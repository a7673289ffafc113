/* Requests and responses as frames: those that most are. `app/transport/wire/messages.py` has the format, and reads
and writes all others: every function here returns None for what it does not know, malformed bytes among that. */
#include "module.h"

enum { FIELDS = 6, UNSET = 32 };

enum struct_type { TENSOR, OUTPUT, REQUEST, ANSWER, TYPES };

/* Where the fields are that have to be empty, zero or False. */
struct unset {
    Py_ssize_t count, offsets[UNSET];
};

typedef struct {
    PyObject_HEAD
    PyTypeObject *types[TYPES];
    Py_ssize_t offsets[TYPES][FIELDS];
    struct unset request, response;
    Py_ssize_t max_meta, max_tensors, in_meta;
    PyObject *deadline; /* keyword names of a request with a deadline */
} Messages;

/* Methods of the type. */
PyObject *write_request(Messages *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *write_response(Messages *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *read_request(Messages *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *read_response(Messages *self, PyObject *const *arguments, Py_ssize_t count);
